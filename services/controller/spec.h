#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "services/controller/core/types.h"

namespace sluice::job::v1 {
class JobSpec;
}  // namespace sluice::job::v1
namespace sluice::queue::v1 {
class QueueSpec;
}  // namespace sluice::queue::v1

// What the controller makes of a job's spec: what its core needs, and what the queue is told.
namespace sluice::controller {

// INVALID_ARGUMENT, all reasons at once: a block is missing, or the job asks for what this build does not have. Each names
// the field, its value and what to write instead. The CLI checks files before; this guards against other clients.
absl::Status CheckSpec(const job::v1::JobSpec& spec);

Needs NeedsOf(const job::v1::JobSpec& spec);

// Of a spec that CheckSpec() took.
queue::v1::QueueSpec QueueSpecOf(const job::v1::JobSpec& spec);

// The fields in which two specs differ, as `path: old -> new` lines, at most 20 and a count of the rest.
std::string Difference(const job::v1::JobSpec& before, const job::v1::JobSpec& after);

}  // namespace sluice::controller
