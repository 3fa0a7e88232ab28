// Commands that contact no daemon.

#include <cstdio>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/base/id.h"
#include "common/base/status.h"
#include "common/config/job_file.h"
#include "common/daemon/daemon.h"
#include "sluice/job/v1/job.pb.h"
#include "tools/sluice/client.h"
#include "tools/sluice/commands.h"
#include "tools/sluice/json_output.h"
#include "tools/sluice/options.h"
#include "tools/sluice/output.h"

namespace sluice::cli {
namespace {

nlohmann::ordered_json ProblemsJson(const std::vector<ConfigProblem>& problems) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const ConfigProblem& problem : problems) {
    char code[32];
    std::snprintf(code, sizeof code, "SLUICE-CONFIG-%04d", problem.number);
    json.push_back({{"file", problem.file},
                    {"line", problem.line},
                    {"column", problem.column},
                    {"code", code},
                    {"message", problem.text}});
  }
  return json;
}

ExitCode ValidateConfig(const std::string& path, const std::vector<std::string>& sets,
                        const std::string& output) {
  const JobFile file = ReadJobFile(path, {.sets = sets});
  if (IsData(output)) {
    nlohmann::ordered_json json = {{"file", path}, {"valid", file.problems.empty()}};
    json["problems"] = ProblemsJson(file.problems);
    json["warnings"] = ProblemsJson(file.warnings);
    json["hash"] = ToHex(file.hash);
    json["spec"] = file.problems.empty() ? ToJson(*file.spec) : nlohmann::ordered_json(nullptr);
    json["origins"] = file.problems.empty() ? nlohmann::ordered_json(file.origins)
                                            : nlohmann::ordered_json(nullptr);
    PrintData(json, output);
  } else if (file.problems.empty()) {
    std::fputs(JobFileText(*file.spec).c_str(), stdout);
    PrintWarnings(file);
  }
  if (file.problems.empty()) return kDone;
  return IsData(output) ? kMisuse : Complain(ProblemStatus(file.problems));
}

struct ConfigOptions {
  std::string file, output;
  std::vector<std::string> sets;
};

}  // namespace

std::vector<Command> LocalCommands() {
  return {
      {"config", "validate", "Check a job file, and print it with every value filled in.",
       "  sluice config validate job.yaml\n  sluice config validate job.yaml --set "
       "trainer.optimizer.lr=1e-4 -o json",
       [](CLI::App* app) {
         auto o = std::make_shared<ConfigOptions>();
         app->add_option("FILE", o->file, "the job file")->required();
         AddSets(app, &o->sets);
         AddFormats(app, &o->output);
         return [o] { return ValidateConfig(o->file, o->sets, o->output); };
       }},
      {"config", "defaults",
       "Print a job file with every key, its default, unit, bounds and meaning.",
       "  sluice config defaults > job.yaml",
       [](CLI::App*) {
         return [] {
           std::fputs(JobFileDefaults().c_str(), stdout);
           return kDone;
         };
       }},
      {"config", "explain",
       "Explain a key of the job file: its meaning, default, bounds and values.",
       "  sluice config explain algorithm.loss.kind\n  sluice config explain trainer.optimizer",
       [](CLI::App* app) {
         auto key = std::make_shared<std::string>();
         app->add_option("KEY", *key, "the key, with the blocks it is in")->required();
         return [key] {
           const absl::StatusOr<std::string> text = ExplainKey(*key);
           if (!text.ok()) return Complain(text.status());
           std::fputs(text->c_str(), stdout);
           return kDone;
         };
       }},
      {"", "version", "Print the version.", "  sluice version\n  sluice version -o json",
       [](CLI::App* app) {
         auto output = std::make_shared<std::string>();
         AddFormats(app, output.get());
         return [output] {
           if (IsData(*output))
             PrintData({{"version", daemon::kBuild}, {"protocol", daemon::kProtocol}}, *output);
           else std::printf("sluice %s, protocol %u\n", daemon::kBuild, daemon::kProtocol);
           return kDone;
         };
       }},
  };
}

}  // namespace sluice::cli
