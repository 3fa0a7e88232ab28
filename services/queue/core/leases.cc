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

Lease LeaseTable::Grant(LeaseEntry entry, Instant now) {
  const Id16 id = NewId();
  entry.granted = now;
  entry.expires = std::min(now + ttl_, entry.limit);
  due_.push({entry.expires, id});
  by_worker_[entry.worker].insert(id);
  SLUICE_CHECK(live_.emplace(id, std::move(entry)).second);
  return {id, ttl_};
}

const LeaseEntry* LeaseTable::Find(const Id16& id) const {
  const auto it = live_.find(id);
  return it == live_.end() ? nullptr : &it->second;
}

std::optional<LeaseEnd> LeaseTable::Ended(const Id16& id) const {
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
  if (it != live_.end()) it->second.expires = std::min(now + ttl_, it->second.limit);
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

std::vector<Id16> LeaseTable::Of(LeaseKind kind, int64_t incarnation) const {
  std::vector<Id16> found;
  for (const auto& [id, entry] : live_) {
    if (entry.kind == kind && entry.incarnation <= incarnation) found.push_back(id);
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::vector<Id16> LeaseTable::Expired(Instant now) {
  std::vector<Id16> expired;
  while (!due_.empty() && due_.top().first <= now) {
    const Id16 id = due_.top().second;
    due_.pop();
    const auto it = live_.find(id);
    if (it == live_.end()) continue;
    if (it->second.expires > now) {
      due_.push({it->second.expires, id});
    } else {
      expired.push_back(id);
    }
  }
  return expired;
}

Instant LeaseTable::NextExpiry() {
  while (!due_.empty() && live_.find(due_.top().second) == live_.end()) due_.pop();
  return due_.empty() ? absl::InfiniteDuration() : due_.top().first;
}

}  // namespace sluice::queue
