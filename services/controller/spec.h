#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "services/controller/core/types.h"

namespace sluice {
struct Policy;
}
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

Needs NeedsOf(const job::v1::JobSpec& spec);

// `spec` must have passed CheckSpec().
queue::v1::QueueSpec QueueSpecOf(const job::v1::JobSpec& spec);

// The fields in which two specs differ, as the differences that protobuf's MessageDifferencer
// reports: at most 20, joined by "; ", and a count of the rest.
std::string Difference(const job::v1::JobSpec& before, const job::v1::JobSpec& after);

}  // namespace sluice::controller
