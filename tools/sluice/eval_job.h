#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/rpc/channel.h"
#include "common/weights/publisher.h"
#include "common/weights/staged.h"
#include "services/rollout/core/eval/eval.h"
#include "sluice/job/v1/job.pb.h"

namespace sluice::cli {

// A running job as `sluice eval` sees it: what it trains on, and where its trainer is.
struct EvalJob {
  job::v1::JobStatus status;
  std::string trainer;  // HOST:PORT
};

// NOT_FOUND: no such job. FAILED_PRECONDITION: it has no trainer now, with its state and what to
// do.
absl::StatusOr<EvalJob> FindEvalJob(const std::string& server, const std::string& name);

// What the job says of its model: directory or random start, context, chat template.
absl::Status TakeModel(const job::v1::JobSpec& spec, EvalOptions* options);

// Of the versions that the trainer keeps, `version`, or the newest without one. UNAVAILABLE: it
// keeps none yet. NOT_FOUND: it no longer, or not yet, has that one, with those it has and what to
// do.
absl::StatusOr<LatestVersion> ChooseVersion(const job::v1::JobStatus& job,
                                            const std::vector<LatestVersion>& kept,
                                            std::optional<int64_t> version);

// The weights of `version`, or of the newest without one, from the job's trainer, which goes on
// training: leased while they are fetched, every byte checked. Errors: ChooseVersion's, and of the
// connection.
absl::StatusOr<StagedWeights> FetchJobWeights(const EvalJob& job, std::optional<int64_t> version,
                                              const TensorSet& layout);

}  // namespace sluice::cli
