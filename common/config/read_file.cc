#include "common/config/read_file.h"

#include <filesystem>

#include "common/base/file.h"
#include "common/base/status.h"
#include "common/config/bind.h"
#include "common/config/job_file.h"
#include "common/config/problems.h"
#include "common/config/rules.h"
#include "common/config/yaml_tree.h"

namespace sluice::config {

absl::Status ReadOperatorFile(
    const std::string& path, const std::string& kind, google::protobuf::Message* message,
    const std::function<void(const Binder& binder, Problems* problems)>& check) {
  SLUICE_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxJobFileBytes));
  Problems problems({path});
  const YamlNode root = ParseYaml(text, 0, &problems);
  const std::string folder = std::filesystem::absolute(path).parent_path().string();
  Binder binder(folder, folder, kind, &problems);
  binder.FillDefaults(message, "");
  if (problems.empty()) binder.Bind(root, message, "");
  if (problems.empty()) {
    SpecProblems found;
    CheckMessage(*message, &found);
    for (const SpecProblem& problem : found.errors())
      problems.Add(binder.PlaceOf(problem.path), problem.number, problem.text);
    check(binder, &problems);
  }
  return ProblemStatus(problems.Take());
}

}  // namespace sluice::config
