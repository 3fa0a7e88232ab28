#include "common/rpc/wait.h"

#include <grpcpp/channel.h>

#include <algorithm>

#include "absl/time/clock.h"

namespace sluice::rpc {
namespace {
// How soon `cancel` is seen.
constexpr absl::Duration kSlice = absl::Milliseconds(50);
}  // namespace

bool WaitToRepeat(const Channel& channel, absl::Duration duration, Cancel* cancel) {
  const absl::Time end = absl::Now() + duration;
  const Channel::Peer peer = channel.peer();
  while (true) {
    if (cancel != nullptr && cancel->triggered()) return true;
    const absl::Duration left = end - absl::Now();
    if (left <= absl::ZeroDuration()) return false;

    const absl::Time until = absl::Now() + std::min(left, kSlice);
    const grpc_connectivity_state state = peer.channel->GetState(/*try_to_connect=*/true);
    if (state == GRPC_CHANNEL_SHUTDOWN) {
      // A channel within the process has no connection.
      absl::SleepFor(until - absl::Now());
    } else {
      peer.channel->WaitForStateChange(state, absl::ToChronoTime(until));
    }
  }
}

}  // namespace sluice::rpc
