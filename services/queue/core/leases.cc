#include "services/queue/core/leases.h"

#include <algorithm>

#include "common/base/status.h"

namespace sluice::queue {
namespace {
constexpr size_t kEndedKept = 65536;
}  // namespace

const char* LeaseKindName(LeaseKind kind) {
  switch (kind) {
    case LeaseKind::kTrajectory: return "trajectory";
    case LeaseKind::kTask: return "task";
    case LeaseKind::kBatch: return "batch";
  }
  return "";
}

Id16 LeaseTable::NewId() {
  Id16 id;
  const uint64_t words[2] = {random_.Next(), random_.Next()};
  for (int i = 0; i < 16; ++i) id.bytes[i] = static_cast<uint8_t>(words[i / 8] >> (8 * (i % 8)));
  return id;
}

void LeaseTable::AddToIndexes(const Id16& id, const LeaseEntry& entry) {
  due_.insert(due_.end(), {entry.expires, id});
  by_worker_[entry.worker].insert(id);
}

void LeaseTable::SetExpiry(const Id16& id, LeaseEntry& entry, Instant expires) {
  if (expires == entry.expires) return;
  due_.erase({entry.expires, id});
  entry.expires = expires;
  due_.insert(due_.end(), {expires, id});
}

Lease LeaseTable::Grant(LeaseEntry entry, Instant now) {
  const Id16 id = NewId();
  entry.granted = now;
  entry.expires = std::min(now + ttl_, entry.limit);
  AddToIndexes(id, entry);
  SLUICE_CHECK(live_.emplace(id, std::move(entry)).second);
  return {id, ttl_};
}

const LeaseEntry* LeaseTable::Find(const Id16& id) const {
  const auto it = live_.find(id);
  return it == live_.end() ? nullptr : &it->second;
}

std::optional<LeaseEnd> LeaseTable::FindEnd(const Id16& id) const {
  const auto it = ended_.find(id);
  if (it == ended_.end()) return std::nullopt;
  return it->second;
}

void LeaseTable::End(const Id16& id, LeaseEnd how) {
  const auto it = live_.find(id);
  SLUICE_CHECK(it != live_.end());

  const auto held = by_worker_.find(it->second.worker);
  held->second.erase(id);
  if (held->second.empty()) by_worker_.erase(held);
  due_.erase({it->second.expires, id});
  live_.erase(it);

  ended_[id] = how;
  ended_order_.push_back(id);
  if (ended_order_.size() > kEndedKept) {
    ended_.erase(ended_order_.front());
    ended_order_.pop_front();
  }
}

void LeaseTable::Renew(const Id16& id, Instant now) {
  const auto it = live_.find(id);
  if (it != live_.end()) SetExpiry(id, it->second, std::min(now + ttl_, it->second.limit));
}

void LeaseTable::RestartAll(Instant now) {
  for (auto& [id, entry] : live_) {
    entry.limit = std::max(entry.limit, now + ttl_);
    SetExpiry(id, entry, now + ttl_);
  }
}

std::vector<Id16> LeaseTable::HeldBy(const std::string& worker, int64_t incarnation) const {
  std::vector<Id16> held;
  const auto it = by_worker_.find(worker);
  if (it == by_worker_.end()) return held;
  for (const Id16& id : it->second) {
    if (live_.at(id).incarnation <= incarnation) held.push_back(id);
  }
  std::sort(held.begin(), held.end());
  return held;
}

std::vector<Id16> LeaseTable::HeldOfKind(LeaseKind kind, int64_t incarnation) const {
  std::vector<Id16> found;
  for (const auto& [id, entry] : live_) {
    if (entry.kind == kind && entry.incarnation <= incarnation) found.push_back(id);
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::vector<Id16> LeaseTable::FindExpired(Instant now) const {
  std::vector<Id16> expired;
  for (auto it = due_.begin(); it != due_.end() && it->first <= now; ++it)
    expired.push_back(it->second);
  return expired;
}

}  // namespace sluice::queue
