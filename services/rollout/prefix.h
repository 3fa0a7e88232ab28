#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "services/rollout/core/trajectory/trajectory.h"
#include "sluice/common/v1/common.pb.h"

namespace sluice {
class QueueClient;
}

namespace sluice::rollout {

// Reads from the queue the part of an answer that earlier attempts have sampled, so that this
// worker can continue it: the tokens at positions [prompt_tokens, end), their log-probs, and their
// versions. `lease` must cover `owner`, and `end` must be above prompt_tokens.
//
// ABORTED LEASE_LOST: the lease has ended meanwhile.
// NOT_FOUND GONE: the queue no longer has all of it.
absl::StatusOr<Trajectory> ReadPrefix(QueueClient* queue, const common::v1::TrajectoryRef& owner,
                                      const std::string& lease, uint32_t prompt_tokens,
                                      uint64_t end);

}  // namespace sluice::rollout
