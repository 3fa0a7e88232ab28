#include "tests/fault/trained.h"

#include <cstring>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/file.h"
#include "common/base/status.h"
#include "services/trainer/core/lineage.h"
#include "tests/integration/harness/job.h"

namespace sluice::fault {
namespace {

// The metrics of each step that do not depend on time or on restarts.
absl::StatusOr<std::vector<std::string>> ReadMetrics(const std::string& path) {
  SLUICE_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  std::vector<std::string> steps;
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const nlohmann::json step = nlohmann::json::parse(line);
    nlohmann::json kept = nlohmann::json::object();
    for (const auto& [name, value] : step.items()) {
      if (name != "time" && name != "incarnation" && !absl::StartsWith(name, "seconds_"))
        kept[name] = value;
    }
    steps.push_back(kept.dump());
  }
  return steps;
}

bool EqualBits(const TensorSet& a, const TensorSet& b) {
  return a.layout_id() == b.layout_id() && a.buffer().size() == b.buffer().size() &&
         std::memcmp(a.buffer().data(), b.buffer().data(), a.buffer().size()) == 0;
}

// Adds the first line in which they differ.
void CompareLines(const char* what, const std::vector<std::string>& a,
                  const std::vector<std::string>& b, std::vector<std::string>* out) {
  if (a.size() != b.size())
    out->push_back(absl::StrCat(a.size(), " and ", b.size(), " lines of ", what));
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    if (a[i] == b[i]) continue;
    out->push_back(absl::StrCat("line ", i, " of ", what, ":\n  ", a[i], "\n  ", b[i]));
    return;
  }
}

}  // namespace

absl::StatusOr<Trained> ReadTrained(const job::v1::JobStatus& end) {
  if (end.state() != job::v1::JOB_STATE_SUCCEEDED)
    return absl::InternalError(absl::StrCat("it has not succeeded: ", integration::Text(end)));
  SLUICE_RETURN_IF_ERROR(integration::CheckLedgerBalances(end));

  const std::string& path = end.result().checkpoint();
  Trained trained;
  SLUICE_ASSIGN_OR_RETURN(trained.checkpoint, trainer::ReadCheckpoint(path));
  SLUICE_ASSIGN_OR_RETURN(const std::string lineage, ReadFile(path + "/lineage.jsonl"));
  for (const absl::string_view line : absl::StrSplit(lineage, '\n', absl::SkipEmpty())) {
    SLUICE_ASSIGN_OR_RETURN(const trainer::LineageEntry entry, trainer::ParseLineageLine(line));
    trained.batches.push_back(absl::StrCat(entry.k, " ", entry.group.hex().substr(16), " ",
                                           entry.member, " ", entry.crc32c));
  }
  SLUICE_ASSIGN_OR_RETURN(trained.metrics, ReadMetrics(absl::StrCat(path.substr(0, path.rfind('/')),
                                                                    "/metrics.jsonl")));
  return trained;
}

std::vector<std::string> Differences(const Trained& a, const Trained& b) {
  std::vector<std::string> out;
  CompareLines("batches", a.batches, b.batches, &out);
  CompareLines("metrics", a.metrics, b.metrics, &out);
  const auto &ours = a.checkpoint, &theirs = b.checkpoint;
  if (ours.state.version.number != theirs.state.version.number)
    out.push_back("the versions of the last checkpoints");
  if (ours.state.updates != theirs.state.updates) out.push_back("the numbers of updates");
  if (!EqualBits(ours.model, theirs.model)) out.push_back("the weights");
  const auto moments = ReadAll(*ours.optimizer), their_moments = ReadAll(*theirs.optimizer);
  if (!moments.ok() || !their_moments.ok() || !EqualBits(*moments, *their_moments))
    out.push_back("the moments of the optimizer");
  if (a.batches.empty() || a.metrics.empty() || ours.model.buffer().size() == 0)
    out.push_back("nothing was trained");
  return out;
}

}  // namespace sluice::fault
