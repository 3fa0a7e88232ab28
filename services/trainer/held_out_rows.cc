#include "services/trainer/held_out_rows.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/log/log.h"
#include "services/trainer/demonstrations.h"

namespace sluice::trainer {
namespace {

// Rows are scored this many tokens at a time, so that an evaluation of long datasets holds only a
// few rows as tokens. It is the same for every job, as it decides in which order sums are added up.
constexpr size_t kTokensAtATime = 1 << 16;

void AddValues(const std::string& dataset, const HeldOutSums& sums, double seconds,
               std::map<std::string, double>* values) {
  const std::string prefix = absl::StrCat("eval/", dataset, "/");
  (*values)[prefix + "loss"] = sums.MeanLoss();
  (*values)[prefix + "rows"] = static_cast<double>(sums.rows);
  (*values)[prefix + "left_out"] = static_cast<double>(sums.left_out);
  (*values)[prefix + "tokens"] = static_cast<double>(sums.tokens);
  (*values)[prefix + "seconds"] = seconds;

  const PairStats& pairs = sums.pairs;
  if (pairs.pairs == 0) return;
  const double count = static_cast<double>(pairs.pairs);
  (*values)[prefix + "accuracy"] = static_cast<double>(pairs.correct) / count;
  (*values)[prefix + "margin"] = (pairs.reward_chosen - pairs.reward_rejected) / count;
}

}  // namespace

HeldOutRows::HeldOutRows(RowEncoder encode, const JobConfig& config)
    : encode_(std::move(encode)), skip_bad_rows_(config.skip_bad_rows) {}

absl::StatusOr<HeldOutRows> HeldOutRows::Read(const ModelDir& model, const JobConfig& config) {
  SLUICE_ASSIGN_OR_RETURN(RowEncoder encode, MakeRowEncoder(model, config, config.eval_sources));
  HeldOutRows read(std::move(encode), config);
  for (const JobConfig::Source& source : config.eval_sources) {
    SLUICE_ASSIGN_OR_RETURN(Dataset rows, ReadDataset({.name = source.name,
                                                       .path = source.path,
                                                       .fields = source.columns,
                                                       .skip_bad_rows = config.skip_bad_rows}));
    read.sources_.push_back({source.name, std::move(rows)});
  }
  return read;
}

absl::StatusOr<Group> HeldOutRows::EncodeRow(const Source& source, uint64_t row) const {
  absl::StatusOr<std::vector<EncodedAnswer>> answers = encode_(source.name, source.rows.json(row));
  if (!answers.ok()) {
    const absl::Status status =
        Annotate(answers.status(), absl::StrCat("row ", row, " of ", source.name));
    if (!skip_bad_rows_) return status;
    log::Warning("bad_row", {{"error", status}});
    answers = std::vector<EncodedAnswer>(1);
  }
  Group group;
  for (EncodedAnswer& answer : *answers) {
    Trajectory& trajectory = group.members.emplace_back();
    trajectory.tokens = std::move(answer.tokens);
    trajectory.mask = std::move(answer.mask);
  }
  return group;
}

absl::StatusOr<HeldOutSums> HeldOutRows::ScoreDataset(const Source& source,
                                                      const Score& score) const {
  HeldOutSums sums;
  sums.left_out = static_cast<int64_t>(source.rows.skipped());
  std::vector<Group> groups;
  size_t tokens = 0;
  for (uint64_t row = 0; row < source.rows.rows(); ++row) {
    SLUICE_ASSIGN_OR_RETURN(groups.emplace_back(), EncodeRow(source, row));
    for (const Trajectory& answer : groups.back().members) tokens += answer.tokens.size();
    if (tokens < kTokensAtATime && row + 1 < source.rows.rows()) continue;

    SLUICE_ASSIGN_OR_RETURN(const HeldOutSums part, score(std::exchange(groups, {})));
    sums.Merge(part);
    tokens = 0;
  }
  return sums;
}

absl::StatusOr<Evaluation> HeldOutRows::Evaluate(const Score& score, Clock& clock) const {
  Evaluation evaluation;
  for (const Source& source : sources_) {
    const absl::Duration start = clock.Monotonic();
    SLUICE_ASSIGN_OR_RETURN(const HeldOutSums sums, ScoreDataset(source, score));
    if (sums.rows == 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "none of the ", source.rows.rows() + source.rows.skipped(), " rows of ", source.name,
          " can be scored: each has an answer that is too long for model.max_context, or that "
          "cannot be read"));
    }
    const double loss = sums.MeanLoss();
    if (!std::isfinite(loss))
      return absl::FailedPreconditionError(
          absl::StrCat("the loss of ", source.name, " is ", loss, ", not a finite number"));
    AddValues(source.name, sums, absl::ToDoubleSeconds(clock.Monotonic() - start),
              &evaluation.values);
    evaluation.score += loss / static_cast<double>(sources_.size());
  }
  return evaluation;
}

}  // namespace sluice::trainer
