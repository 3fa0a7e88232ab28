#include "common/weights/relay.h"

#include <algorithm>
#include <utility>

namespace sluice {

void WeightRelay::SetLatest(const PublishedVersion& version) {
  if (latest() != version) MoveLatest(version);
}

void WeightRelay::Begin(const PublishedVersion& version, std::vector<WeightEdge> path) {
  std::vector<std::function<void()>> waiters;
  {
    MutexLock lock(&mu_);
    const bool again = newest_ && newest_->version.manifest == version.manifest &&
                       newest_->version.version == version.version;
    if (!again) {
      if (newest_ && newest_->complete) before_ = std::move(newest_);
      newest_.emplace();
      newest_->version = version;
    }
    newest_->path = std::move(path);
    newest_->complete = newest_->failed = false;
    newest_->expected.clear();
    newest_->unread = newest_->path.size();
    // By it others can tell that the version is no lie, whichever way led to it here.
    ExpectObject(version.manifest);
    for (const WeightEdge& edge : newest_->path) ExpectObject(edge.manifest);
    waiters = TakeWaiters();
  }
  for (const auto& waiter : waiters) waiter();
}

void WeightRelay::Expect(absl::Span<const std::string> ids) {
  std::vector<std::function<void()>> waiters;
  {
    MutexLock lock(&mu_);
    if (!newest_) return;
    for (const std::string& id : ids) ExpectObject(id);
    if (newest_->unread > 0) --newest_->unread;
    waiters = TakeWaiters();
  }
  for (const auto& waiter : waiters) waiter();
}

void WeightRelay::ExpectObject(const std::string& id) {
  if (newest_->objects.contains(id)) return;
  if (const auto held = FindHeld(id); held != nullptr) newest_->objects[id] = held;
  else newest_->expected.insert(id);
}

void WeightRelay::Add(const std::string& id, std::shared_ptr<const std::string> object) {
  std::vector<std::function<void()>> waiters;
  {
    MutexLock lock(&mu_);
    if (!newest_ || newest_->expected.erase(id) == 0) return;
    newest_->objects[id] = std::move(object);
    waiters = TakeWaiters();
  }
  for (const auto& waiter : waiters) waiter();
}

void WeightRelay::Reached(PolicyVersion version) {
  std::vector<std::function<void()>> waiters;
  {
    MutexLock lock(&mu_);
    reached_ = std::max(reached_, version);
    waiters = TakeWaiters();
  }
  for (const auto& waiter : waiters) waiter();
}

void WeightRelay::Drop(const std::string& id) {
  MutexLock lock(&mu_);
  if (before_) before_->objects.erase(id);
  if (newest_ && newest_->objects.erase(id) > 0) newest_->expected.insert(id);
}

void WeightRelay::End(bool complete) {
  std::vector<std::function<void()>> waiters;
  {
    MutexLock lock(&mu_);
    if (!newest_) return;
    newest_->expected.clear();
    newest_->unread = 0;
    newest_->complete = complete;
    newest_->failed = !complete;
    if (complete) before_.reset();
    waiters = TakeWaiters();
  }
  for (const auto& waiter : waiters) waiter();
}

void WeightRelay::Clear() {
  End(/*complete=*/false);
  MutexLock lock(&mu_);
  newest_.reset();
  before_.reset();
}

std::shared_ptr<const std::string> WeightRelay::FindHeld(const std::string& id) const {
  for (const std::optional<Held>* held : {&newest_, &before_}) {
    if (!held->has_value()) continue;
    const auto it = (*held)->objects.find(id);
    if (it != (*held)->objects.end()) return it->second;
  }
  return nullptr;
}

WeightSource::Lookup WeightRelay::Find(const std::string& id, PolicyVersion wanted) const {
  MutexLock lock(&mu_);
  Lookup lookup{.object = FindHeld(id)};
  if (lookup.object == nullptr) {
    const bool begun = newest_ && newest_->version.version >= wanted;
    if (begun) lookup.is_coming = newest_->unread > 0 || newest_->expected.contains(id);
    else lookup.is_coming = wanted > reached_;
  }
  return lookup;
}

void WeightRelay::CallWhenChanged(std::function<void()> changed) {
  MutexLock lock(&mu_);
  waiters_.push_back(std::move(changed));
}

std::vector<std::function<void()>> WeightRelay::TakeWaiters() {
  return std::exchange(waiters_, {});
}

std::vector<WeightEdge> WeightRelay::edges() const {
  MutexLock lock(&mu_);
  std::vector<WeightEdge> edges;
  for (const std::optional<Held>* held : {&before_, &newest_}) {
    if (!held->has_value() || (*held)->failed) continue;
    for (const WeightEdge& edge : (*held)->path) {
      if ((*held)->objects.contains(edge.manifest)) edges.push_back(edge);
    }
  }
  return edges;
}

void WeightRelay::OnSent(uint64_t bytes) {
  WeightSource::OnSent(bytes);
  if (options_.on_sent) options_.on_sent(bytes);
}

uint64_t WeightRelay::bytes() const {
  MutexLock lock(&mu_);
  std::set<std::shared_ptr<const std::string>> objects;
  for (const std::optional<Held>* held : {&newest_, &before_}) {
    if (!held->has_value()) continue;
    for (const auto& [unused, object] : (*held)->objects) objects.insert(object);
  }
  uint64_t sum = 0;
  for (const auto& object : objects) sum += object->size();
  return sum;
}

}  // namespace sluice
