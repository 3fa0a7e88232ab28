#include "common/weights/weight_source.h"

#include <utility>
#include <vector>

namespace sluice {

std::optional<PublishedVersion> WeightSource::latest() const {
  MutexLock lock(&latest_mu_);
  return latest_;
}

std::optional<PublishedVersion> WeightSource::candidate() const {
  MutexLock lock(&latest_mu_);
  return candidate_;
}

std::optional<Announcement> WeightSource::AnnouncedTo(const std::string& worker) const {
  if (candidate_.has_value() && worker == canary_)
    return Announcement{.version = *candidate_, .candidate = true};
  if (!latest_.has_value()) return std::nullopt;
  return Announcement{.version = *latest_};
}

uint64_t WeightSource::AddListener(std::string worker,
                                   std::function<void(const Announcement&)> on_announced) {
  // The listener is added only once it has heard of the newest version. Were it added before,
  // MoveLatest() might tell it of a newer version first.
  std::optional<Announcement> told;
  while (true) {
    {
      MutexLock lock(&latest_mu_);
      const std::optional<Announcement> announced = AnnouncedTo(worker);
      if (announced == told) {
        listeners_[next_listener_] = {std::move(worker), std::move(on_announced)};
        return next_listener_++;
      }
      told = announced;
    }
    if (told.has_value()) on_announced(*told);
  }
}

void WeightSource::RemoveListener(uint64_t listener) {
  MutexLock lock(&latest_mu_);
  listeners_.erase(listener);
}

std::set<std::string> WeightSource::listeners() const {
  MutexLock lock(&latest_mu_);
  std::set<std::string> workers;
  for (const auto& [unused, listener] : listeners_) workers.insert(listener.worker);
  return workers;
}

// Listeners are called after the lock is released, because they may call the source.
void WeightSource::MoveLatest(const PublishedVersion& latest) {
  std::vector<std::function<void(const Announcement&)>> listeners;
  {
    MutexLock lock(&latest_mu_);
    latest_ = latest;
    candidate_.reset();
    for (const auto& [unused, listener] : listeners_) listeners.push_back(listener.on_announced);
  }
  for (const auto& listener : listeners) listener({.version = latest});
}

void WeightSource::MoveCandidate(const std::optional<PublishedVersion>& candidate,
                                 const std::string& canary) {
  std::vector<std::function<void(const Announcement&)>> listeners;
  {
    MutexLock lock(&latest_mu_);
    candidate_ = candidate;
    canary_ = canary;
    if (!candidate_.has_value()) return;
    for (const auto& [unused, listener] : listeners_) {
      if (listener.worker == canary) listeners.push_back(listener.on_announced);
    }
  }
  for (const auto& listener : listeners) listener({.version = *candidate, .candidate = true});
}

}  // namespace sluice
