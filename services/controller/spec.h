#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/policy/policy.h"
#include "services/controller/core/types.h"

namespace sluice::job::v1 {
class JobSpec;
}  // namespace sluice::job::v1
namespace sluice::queue::v1 {
class QueueSpec;
}  // namespace sluice::queue::v1

// Translates a job's spec into what the controller's core needs and into what the queue is told.
namespace sluice::controller {

// Checks a submitted spec as `sluice config validate` does, but without line numbers of a file, and
// against the operator's policy and roots. Returns the warnings.
// INVALID_ARGUMENT: the first 20 errors, one per line, and how many more there are.
absl::StatusOr<std::vector<std::string>> CheckSpec(const job::v1::JobSpec& spec,
                                                   const Policy& policy);

// Whether the submitter's quota lets the job start, beside `other_rollouts` of the submitter's
// other jobs.
// PERMISSION_DENIED POOL, OUTSIDE_ROOTS, JUDGE: its jobs may not use the job's pool, a folder of
// its paths, or a judge of its rewards.
// RESOURCE_EXHAUSTED QUOTA: the job's minimum, with the others, is above the quota.
absl::Status CheckQuota(const Policy::Quota& quota, const std::string& submitter,
                        const job::v1::JobSpec& spec, int other_rollouts = 0);

// Returns how many daemons each submitter's jobs may have.
std::function<DaemonQuota(const std::string& submitter)> QuotasOf(Policy policy);

Needs NeedsOf(const job::v1::JobSpec& spec);

// `spec` must have passed CheckSpec().
queue::v1::QueueSpec QueueSpecOf(const job::v1::JobSpec& spec);

// The fields in which two specs differ, as the differences that protobuf's MessageDifferencer
// reports: at most 20, joined by "; ", and a count of the rest.
std::string Difference(const job::v1::JobSpec& before, const job::v1::JobSpec& after);

}  // namespace sluice::controller
