#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/rpc/channel.h"
#include "common/weights/staged.h"
#include "services/rollout/core/eval/eval.h"
#include "sluice/job/v1/job.pb.h"

namespace sluice::cli {

// A running job as `sluice eval` sees it: what it trains on, and where its trainer is.
struct EvalJob {
  job::v1::JobStatus status;
  std::string trainer;  // HOST:PORT
};

// NOT_FOUND: no such job. FAILED_PRECONDITION: it has no trainer now, with its state and what to do.
absl::StatusOr<EvalJob> FindEvalJob(const std::string& server, const std::string& name);

// What the job says of its model: directory or random start, context, chat template.
absl::Status TakeModel(const job::v1::JobSpec& spec, EvalOptions* options);

// The weights of `version`, or of the newest without one, from the job's trainer, which goes on training: leased while they are
// fetched, every byte checked. NOT_FOUND: the trainer no longer keeps that version, with those it has.
absl::StatusOr<StagedWeights> FetchJobWeights(const EvalJob& job, std::optional<int64_t> version, const TensorSet& layout);

}  // namespace sluice::cli
