#include "tests/fault/network/line.h"

#include <algorithm>
#include <utility>

namespace sluice::fault {

void Line::Send(std::string frame, Instant now) {
  if (!quality_.passes) return;

  Instant leaves = now;
  if (quality_.bytes_per_second > 0) {
    const auto time_for = [&](int64_t bytes) {
      return absl::Seconds(static_cast<double>(bytes) /
                           static_cast<double>(quality_.bytes_per_second));
    };
    const Instant begins = std::max(now, free_at_);
    if (begins - now > time_for(kBufferBytes)) return;
    leaves = begins + time_for(static_cast<int64_t>(frame.size()));
  }
  free_at_ = leaves;

  // After a change for the better, frames still arrive in order.
  const Instant arrives = std::max(leaves + quality_.delay,
                                   frames_.empty() ? absl::ZeroDuration() : frames_.back().arrives);
  frames_.push_back({arrives, std::move(frame)});
}

std::optional<std::string> Line::Receive(Instant now) {
  if (frames_.empty() || frames_.front().arrives > now) return std::nullopt;
  std::string frame = std::move(frames_.front().frame);
  frames_.pop_front();
  return frame;
}

Line::Instant Line::NextArrival() const {
  return frames_.empty() ? absl::InfiniteDuration() : frames_.front().arrives;
}

}  // namespace sluice::fault
