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

// A running job for `sluice eval`: its status (with the spec) and its trainer.
struct EvalJob {
  job::v1::JobStatus status;
  std::string trainer;  // HOST:PORT
};

// Finds the job and its trainer.
// NOT_FOUND: there is no such job.
// FAILED_PRECONDITION: it has no trainer now; the message gives its state and says what to do.
absl::StatusOr<EvalJob> FindEvalJob(const std::string& server, const std::string& name);

// Copies the job's model settings to the options: the directory, or the config and seed of random
// weights; number type, context and chat template.
absl::Status CopyModelSettings(const job::v1::JobSpec& spec, EvalOptions* options);

// Returns version `version` of those that the trainer keeps, or the newest if `version` is unset.
// UNAVAILABLE: the trainer has no version yet.
// NOT_FOUND: it no longer has the version, or not yet; the message lists its versions and says what
// to do.
absl::StatusOr<PublishedVersion> ChooseVersion(const job::v1::JobStatus& job,
                                               const std::vector<PublishedVersion>& kept,
                                               std::optional<int64_t> version);

// Downloads the weights of `version` (unset: the newest) from the job's trainer, which goes on
// training meanwhile. The version is leased during the download, and every byte is checked. Errors
// are those of ChooseVersion() and WeightFetcher::Fetch().
absl::StatusOr<StagedWeights> FetchJobWeights(const EvalJob& job, std::optional<int64_t> version,
                                              absl::Span<const TensorSpec> layout);

}  // namespace sluice::cli
