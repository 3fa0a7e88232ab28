#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "common/base/splitmix.h"
#include "services/queue/core/types.h"

namespace sluice::queue {

enum class LeaseKind { kTrajectory, kTask, kBatch };
const char* LeaseKindName(LeaseKind kind);

// How a lease ended.
enum class LeaseEnd { kSealed, kDropped, kDone, kReleased, kExpired, kFenced };

struct LeaseEntry {
  LeaseKind kind = LeaseKind::kTrajectory;
  uint64_t group = 0;  // The group's ordinal, for trajectory and task leases.
  uint32_t member = 0;
  uint32_t task = 0;  // Index in Spec::tasks.
  int64_t batch = 0;  // The step, for batch leases.
  std::string worker;
  int64_t incarnation = 0;
  Instant granted;
  Instant expires;
  Instant limit = absl::InfiniteDuration();  // No renewal goes beyond this time.
};

// All leases of a job. Each grant has a new id. The last 64 Ki leases that ended are remembered
// with how they ended, so that repeated calls are known as such.
class LeaseTable {
 public:
  LeaseTable(absl::Duration ttl, uint64_t seed) : ttl_(ttl), random_(seed) {}

  absl::Duration ttl() const { return ttl_; }
  Lease Grant(LeaseEntry entry, Instant now);
  const LeaseEntry* Find(const Id16& id) const;
  // None: the lease runs, is unknown, or ended too long ago.
  std::optional<LeaseEnd> FindEnd(const Id16& id) const;
  void End(const Id16& id, LeaseEnd how);
  void Renew(const Id16& id, Instant now);

  // Leases that `worker` holds with an incarnation up to this one, in the order of their ids.
  std::vector<Id16> HeldBy(const std::string& worker, int64_t incarnation) const;
  // Leases of `kind` that any worker holds with an incarnation up to this one, in the same order.
  std::vector<Id16> HeldOfKind(LeaseKind kind, int64_t incarnation) const;
  // Leases that have run out, in the order of expiry. The caller ends them.
  std::vector<Id16> FindExpired(Instant now) const;
  Instant NextExpiry() const {
    return due_.empty() ? absl::InfiniteDuration() : due_.begin()->first;
  }
  // Gives all leases their full time again: nobody could renew while the queue was away.
  void RestartAll(Instant now);

  Id16 NewId();
  size_t size() const { return live_.size(); }
  const absl::flat_hash_map<Id16, LeaseEntry>& live() const { return live_; }

 private:
  friend struct Access;  // dump.cc
  using Due = std::pair<Instant, Id16>;

  void AddToIndexes(const Id16& id, const LeaseEntry& entry);
  void SetExpiry(const Id16& id, LeaseEntry& entry, Instant expires);

  const absl::Duration ttl_;
  SplitMix64 random_;
  // Each lease of live_ is also in by_worker_ (which has no empty sets) and, by its expiry, in
  // due_.
  absl::flat_hash_map<Id16, LeaseEntry> live_;
  absl::flat_hash_map<std::string, absl::flat_hash_set<Id16>> by_worker_;
  std::set<Due> due_;
  // The leases that ended, and their ids in the order in which they did.
  absl::flat_hash_map<Id16, LeaseEnd> ended_;
  std::deque<Id16> ended_order_;
};

}  // namespace sluice::queue
