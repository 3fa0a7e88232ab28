#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/data/dataset.h"
#include "services/trainer/batch_payload.h"
#include "services/trainer/config.h"
#include "services/trainer/core/evaluations.h"
#include "services/trainer/core/held_out.h"

namespace sluice {
class Clock;
struct ModelDir;
}  // namespace sluice

namespace sluice::trainer {

// The rows of eval.datasets of a job of kind sft or dpo, whose answers the trainer itself scores.
//
// Immutable once it is read.
class HeldOutRows {
 public:
  // Scores rows with the weights of the moment (Trainer::Evaluate). An error ends the evaluation.
  using Score = std::function<absl::StatusOr<HeldOutSums>(std::vector<Group> rows)>;

  // Reads all datasets. Errors are those of ReadDataset() and MakeRowEncoder().
  static absl::StatusOr<HeldOutRows> Read(const ModelDir& model, const JobConfig& config);

  // Scores all rows, some at a time, and returns the values and the score, which is the mean over
  // the datasets of their loss. Version and state are left empty.
  // INVALID_ARGUMENT: a row has no answer that can be used, and such rows are not to be skipped; or
  // no row of a dataset fits into the model's context.
  // FAILED_PRECONDITION: the loss of a dataset is not finite.
  absl::StatusOr<Evaluation> Evaluate(const Score& score, Clock& clock) const;

 private:
  struct Source {
    std::string name;
    Dataset rows;
  };

  HeldOutRows(RowEncoder encode, const JobConfig& config);
  absl::StatusOr<HeldOutSums> ScoreDataset(const Source& source, const Score& score) const;
  absl::StatusOr<Group> EncodeRow(const Source& source, uint64_t row) const;

  const RowEncoder encode_;
  const bool skip_bad_rows_;
  std::vector<Source> sources_;
};

}  // namespace sluice::trainer
