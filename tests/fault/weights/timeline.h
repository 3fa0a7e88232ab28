#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <thread>

#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"

namespace sluice::fault {

// The time of a simulation: events in the order of their times, and those of one time in the order
// in which they were added. No real time passes. One thread uses it.
class Timeline : public Clock {
 public:
  absl::Time Now() override { return absl::FromUnixSeconds(1'700'000'000) + now_; }
  absl::Duration Monotonic() override { return now_; }
  // Code that is simulated waits in a Fiber.
  void Sleep(absl::Duration) override;

  void After(absl::Duration delay, std::function<void()> event);
  // Runs events until `done` or `until`. Returns whether it is done.
  bool Run(absl::Duration until, const std::function<bool()>& done);

 private:
  absl::Duration now_;
  std::multimap<absl::Duration, std::function<void()>> events_;
};

// Blocking code in a simulation. It has a thread of its own, but never runs at the same time as the
// events of the timeline or another fiber, so a run depends on the seed alone.
class Fiber : public std::enable_shared_from_this<Fiber> {
 public:
  // `body` begins as an event of the timeline.
  static std::shared_ptr<Fiber> Start(Timeline* timeline, std::function<void(Fiber&)> body);
  ~Fiber();

  // Called by the body: lets time pass until Wake() or `until`.
  void Park(absl::Duration until = absl::InfiniteDuration());
  // Lets the body go on, as an event of its own.
  void Wake();
  // Runs the body to its end: Park() returns at once from now on. Called by events.
  void Finish();
  bool finishing() const { return finishing_; }

 private:
  explicit Fiber(Timeline* timeline) : timeline_(timeline) {}
  // Has the body run until it parks or ends.
  void Resume();
  void ResumeAt(absl::Duration time);

  Timeline* const timeline_;
  bool finishing_ = false, ended_ = false;
  uint64_t parks_ = 0;  // An event that was to end an earlier Park() does nothing.

  Mutex mu_;
  CondVar changed_;
  bool is_running_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace sluice::fault
