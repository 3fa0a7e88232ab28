#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "services/controller/core/types.h"

namespace sluice::job::v1 {
class JobSpec;
}  // namespace sluice::job::v1
namespace sluice::queue::v1 {
class QueueSpec;
}  // namespace sluice::queue::v1

// What the controller makes of a job's spec: what its core needs, and what the queue is told.
namespace sluice::controller {

// The full check of what a client submits: the one of `sluice config validate`, without places in a
// file. Gives the warnings. INVALID_ARGUMENT: what is wrong, all at once, a line each.
absl::StatusOr<std::vector<std::string>> CheckSpec(const job::v1::JobSpec& spec);

Needs NeedsOf(const job::v1::JobSpec& spec);

// Of a spec that CheckSpec() took.
queue::v1::QueueSpec QueueSpecOf(const job::v1::JobSpec& spec);

// The fields in which two specs differ, as `path: old -> new` lines, at most 20 and a count of the
// rest.
std::string Difference(const job::v1::JobSpec& before, const job::v1::JobSpec& after);

}  // namespace sluice::controller
