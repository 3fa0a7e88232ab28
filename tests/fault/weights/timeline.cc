#include "tests/fault/weights/timeline.h"

#include <algorithm>
#include <utility>

#include "common/base/status.h"

namespace sluice::fault {

void Timeline::Sleep(absl::Duration) { SLUICE_CHECK_MSG(false, "no real thread may wait"); }

void Timeline::After(absl::Duration delay, std::function<void()> event) {
  events_.emplace(now_ + std::max(delay, absl::ZeroDuration()), std::move(event));
}

bool Timeline::Run(absl::Duration until, const std::function<bool()>& done) {
  while (!done()) {
    if (events_.empty() || events_.begin()->first > until) {
      now_ = std::max(now_, until);
      return false;
    }
    auto next = events_.extract(events_.begin());
    now_ = next.key();
    next.mapped()();
  }
  return true;
}

std::shared_ptr<Fiber> Fiber::Start(Timeline* timeline, std::function<void(Fiber&)> body) {
  std::shared_ptr<Fiber> fiber(new Fiber(timeline));
  fiber->thread_ = std::thread([self = fiber.get(), body = std::move(body)] {
    {
      MutexLock lock(&self->mu_);
      while (!self->is_running_) self->changed_.Wait(&self->mu_);
    }
    body(*self);
    MutexLock lock(&self->mu_);
    self->ended_ = true;
    self->is_running_ = false;
    self->changed_.NotifyAll();
  });
  fiber->Wake();
  return fiber;
}

Fiber::~Fiber() {
  SLUICE_CHECK(ended_);
  thread_.join();
}

void Fiber::Park(absl::Duration until) {
  if (finishing_) return;
  ++parks_;
  if (until != absl::InfiniteDuration()) ResumeAt(until);
  MutexLock lock(&mu_);
  is_running_ = false;
  changed_.NotifyAll();
  while (!is_running_) changed_.Wait(&mu_);
}

void Fiber::Wake() { ResumeAt(timeline_->Monotonic()); }

void Fiber::ResumeAt(absl::Duration time) {
  timeline_->After(time - timeline_->Monotonic(), [weak = weak_from_this(), park = parks_] {
    const std::shared_ptr<Fiber> fiber = weak.lock();
    if (fiber != nullptr && !fiber->ended_ && fiber->parks_ == park) fiber->Resume();
  });
}

void Fiber::Resume() {
  MutexLock lock(&mu_);
  is_running_ = true;
  changed_.NotifyAll();
  while (is_running_) changed_.Wait(&mu_);
}

void Fiber::Finish() {
  finishing_ = true;
  while (!ended_) Resume();
}

}  // namespace sluice::fault
