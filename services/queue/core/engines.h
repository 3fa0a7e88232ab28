#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "services/queue/core/event.h"
#include "services/queue/core/staleness.h"
#include "services/queue/core/types.h"

namespace sluice::queue {

// The rollout engines of a job with the weights that each of them holds, and the versions that they
// may hold: which the trainers reached, which lie on the job's branch, which is published.
//
// An engine lives while it renews and holds a verified version of the branch. A live engine counts
// unless its version is too far behind the newest live one: the lowest version of those that count
// sets how far ahead groups are admitted, and one slow engine must not hold up the job.
class Engines {
 public:
  struct Engine {
    int64_t incarnation = 0;
    Loaded loaded;
    Instant renewed;
  };

  // `ttl`: how long an engine lives after a renewal. `max_span`: how many versions an engine that
  // counts may be behind the newest live one.
  Engines(absl::Duration ttl, uint32_t max_span) : ttl_(ttl), max_span_(max_span) {}

  // The worker told which version it holds.
  void SetLoaded(const std::string& worker, int64_t incarnation, const Loaded& loaded);
  // The worker renewed its leases. Nothing happens if it has not told its version.
  void Renew(const std::string& worker, Instant now);
  void Remove(const std::string& worker) { engines_.erase(worker); }
  // Removes the worker's engine if its incarnation is not above this one.
  void RemoveUpTo(const std::string& worker, int64_t incarnation);
  void RemoveUnlisted(const std::map<std::string, Worker>& listed);
  void Clear() { engines_.clear(); }

  bool empty() const { return engines_.empty(); }
  const Engine* Find(const std::string& worker) const;
  const std::map<std::string, Engine>& all() const { return engines_; }
  bool Counts(const Engine& engine, Instant now) const;
  // The lowest version among engines that count. None: there is no such engine.
  std::optional<int64_t> LowestVersion(Instant now) const;
  // The caller's engine if it counts, else null.
  const Engine* FindServing(const Caller& caller, Instant now) const;
  // When the first live engine dies unless it renews.
  Instant NextExpiry(Instant now) const;

  const std::optional<PolicyVersion>& published() const { return published_; }
  // The version that engines are to load. It only rises.
  void Publish(const PolicyVersion& version);

  const Branch& branch() const { return branch_; }
  void AddFork(int64_t incarnation, int64_t fork) { branch_.AddFork(incarnation, fork); }

  // The trainers of this incarnation have trained up to this version.
  void SetReached(int64_t incarnation, int64_t version) { reached_[incarnation] = version; }
  void RaiseReached(int64_t incarnation, int64_t version);
  // INVALID_ARGUMENT: a token is stamped with a version that no trainer reached.
  absl::Status CheckStamps(const Piece& piece) const;

 private:
  friend struct Access;  // dump.cc

  bool IsLive(const Engine& engine, Instant now) const;
  std::optional<int64_t> NewestVersion(Instant now) const;

  const absl::Duration ttl_;
  const uint32_t max_span_;
  std::map<std::string, Engine> engines_;  // By worker.
  std::optional<PolicyVersion> published_;
  std::map<int64_t, int64_t> reached_;  // Highest version by incarnation of the trainers.
  Branch branch_;
};

}  // namespace sluice::queue
