#include "common/config/check.h"

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/base/utf8.h"
#include "common/checkpoint/model_config.h"
#include "common/config/refused.h"
#include "common/config/rules.h"
#include "sluice/job/v1/job.pb.h"

namespace sluice {
namespace {

// Replaces invalid bytes in the problem texts: they may quote files, which hold any bytes, and are
// sent in protobuf strings, which must be UTF-8.
std::vector<SpecProblem> WithCleanTexts(std::vector<SpecProblem> problems) {
  for (SpecProblem& problem : problems) problem.text = Utf8Lossy(problem.text);
  return problems;
}

// Warnings are only of interest if there are no errors.
SpecCheck ResultOf(const config::SpecProblems& found) {
  SpecCheck check{.errors = WithCleanTexts(found.errors()), .warnings = {}};
  if (check.errors.empty()) check.warnings = WithCleanTexts(found.warnings());
  return check;
}

}  // namespace

std::string SpecProblem::ToString() const {
  return absl::StrFormat("SLUICE-CONFIG-%04d %s", number, text);
}

uint32_t QueueTokenBytes(const ModelConfig& model) {
  return kQueueTokenBytes +
         static_cast<uint32_t>(sizeof(uint16_t) * model.num_layers * model.experts_per_token);
}

SpecCheck CheckSingleValues(const job::v1::JobSpec& spec) {
  config::SpecProblems found;
  config::CheckValues(spec, &found);
  config::CheckRefused(spec, &found);
  return ResultOf(found);
}

SpecCheck CheckJobSpec(const job::v1::JobSpec& spec, const SpecCheckOptions& options) {
  SpecCheck check = CheckSingleValues(spec);
  // Stop here if single values are wrong: the rules across values would report them again, and the
  // file checks need correct values.
  if (!check.errors.empty()) return check;

  config::SpecProblems found;
  config::CheckRules(spec, &found);
  if (found.errors().empty()) config::CheckUnusual(spec, &found);
  if (found.errors().empty() && options.check_files) {
    config::CheckFiles(spec, options.files_must_exist, &found);
  }
  return ResultOf(found);
}

absl::Status CheckBuilt(const job::v1::JobSpec& spec) {
  config::SpecProblems found;
  config::CheckRefused(spec, &found);
  if (found.errors().empty()) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrJoin(
      found.errors(), "; ",
      [](std::string* out, const SpecProblem& problem) { out->append(problem.text); }));
}

}  // namespace sluice
