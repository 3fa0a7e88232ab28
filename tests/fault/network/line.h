#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "absl/time/time.h"

namespace sluice::fault {

// How a line treats what is sent over it.
struct LineQuality {
  absl::Duration delay = absl::ZeroDuration();
  int64_t bytes_per_second = 0;  // 0: no limit.
  bool passes = true;            // False: all is lost, and nobody is told.
};

// One direction of a network line: frames go in, and come out when the line has carried them. A
// line with a limited rate carries one frame after the other, and loses what comes while more than
// kBufferBytes wait for it, as the buffer of a router does. Not thread-safe.
class Line {
 public:
  // Times are those of a monotonic clock.
  using Instant = absl::Duration;
  static constexpr int64_t kBufferBytes = 256 << 10;

  // Applies to frames that are sent from now on.
  void SetQuality(const LineQuality& quality) { quality_ = quality; }

  void Send(std::string frame, Instant now);
  // The next frame that has arrived by now.
  std::optional<std::string> Receive(Instant now);
  // When Receive() will return the next frame. InfiniteDuration(): nothing is on its way.
  Instant NextArrival() const;

 private:
  struct OnItsWay {
    Instant arrives;
    std::string frame;
  };
  LineQuality quality_;
  Instant free_at_ = absl::ZeroDuration();  // When all that was sent has left the sender.
  std::deque<OnItsWay> frames_;             // In the order of sending, which is that of arrival.
};

}  // namespace sluice::fault
