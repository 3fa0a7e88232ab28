#include "common/weights/weight_source.h"

#include <utility>

namespace sluice {

std::optional<PublishedVersion> WeightSource::latest() const {
  MutexLock lock(&latest_mu_);
  return latest_;
}

uint64_t WeightSource::AddListener(std::function<void(const PublishedVersion&)> on_latest) {
  // The listener is added only once it has heard of `latest`. Were it added before, MoveLatest()
  // might tell it of a newer version first.
  std::optional<PublishedVersion> told;
  while (true) {
    {
      MutexLock lock(&latest_mu_);
      if (latest_ == told) {
        listeners_[next_listener_] = std::move(on_latest);
        return next_listener_++;
      }
      told = latest_;
    }
    on_latest(*told);
  }
}

void WeightSource::RemoveListener(uint64_t listener) {
  MutexLock lock(&latest_mu_);
  listeners_.erase(listener);
}

void WeightSource::MoveLatest(const PublishedVersion& latest) {
  // Listeners are called after the lock is released, because they may call the source.
  std::vector<std::function<void(const PublishedVersion&)>> listeners;
  {
    MutexLock lock(&latest_mu_);
    latest_ = latest;
    for (const auto& [unused, listener] : listeners_) listeners.push_back(listener);
  }
  for (const auto& listener : listeners) listener(latest);
}

}  // namespace sluice
