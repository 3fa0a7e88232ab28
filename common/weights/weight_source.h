#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/rl/version.h"
#include "common/weights/fingerprint.h"

namespace sluice {

// A published version, as it was announced to subscribers when it was the newest.
struct PublishedVersion {
  PolicyVersion version;
  // Id of its manifest: the SHA-256, 32 bytes. That of a delta, if the version has both.
  std::string manifest;
  // Fingerprint of its weights.
  Fingerprint state;
  // Set while the trainer replays steps: engines whose version has a number up to this one keep the
  // weights they hold.
  std::optional<int64_t> hold_until;

  bool operator==(const PublishedVersion&) const = default;
};

// A manifest that is kept: an edge to a version, from the version with the state `base`, or from
// nothing.
struct WeightEdge {
  PublishedVersion version;
  std::string manifest;
  std::optional<Fingerprint> base;
  uint64_t bytes = 0;  // Of its chunks.
  absl::Time created;
};

// What a subscriber is told.
struct Announcement {
  PublishedVersion version;
  // The version is on trial at this subscriber, and no other must hear of it.
  bool candidate = false;

  bool operator==(const Announcement&) const = default;
};

// What a daemon serves of the weights of one job: a trainer all that it keeps (WeightPublisher), a
// rollout what it holds of the newest version or is just receiving (WeightRelay).
//
// Thread-safe.
class WeightSource {
 public:
  virtual ~WeightSource() = default;

  // The newest version that this daemon has published for all or heard of.
  std::optional<PublishedVersion> latest() const ABSL_LOCKS_EXCLUDED(latest_mu_);
  // The newer version that is on trial at a worker, the canary.
  std::optional<PublishedVersion> candidate() const ABSL_LOCKS_EXCLUDED(latest_mu_);
  // Calls `on_announced` each time that what `worker` is to have changes, and once at once if there
  // is a version for it: `latest`, or the candidate if the worker is the canary. `on_announced`
  // must not block. It may still be running when RemoveListener() returns.
  uint64_t AddListener(std::string worker, std::function<void(const Announcement&)> on_announced)
      ABSL_LOCKS_EXCLUDED(latest_mu_);
  void RemoveListener(uint64_t listener) ABSL_LOCKS_EXCLUDED(latest_mu_);
  // The workers that listen.
  std::set<std::string> listeners() const ABSL_LOCKS_EXCLUDED(latest_mu_);

  struct Lookup {
    std::shared_ptr<const std::string> object;  // Null: it is not here.
    bool is_coming = false;  // It is not here yet, and may come; see CallWhenChanged().
  };
  // Looks for an object that is wanted for the version `wanted`.
  virtual Lookup Find(const std::string& id, PolicyVersion wanted) const = 0;
  // Calls `changed` once, after the answer of Find() has changed for some object. It may be called
  // on any thread, must not block, and is dropped with this source if nothing ever changes.
  virtual void CallWhenChanged(std::function<void()> changed) = 0;

  // By version, oldest first; an anchor comes before the delta of the same version.
  virtual std::vector<WeightEdge> edges() const = 0;

  // Counts bytes of objects that were sent to others.
  virtual void OnSent(uint64_t bytes) { sent_ += bytes; }
  uint64_t sent_bytes() const { return sent_; }

 protected:
  // Moves `latest`, ends a trial, and tells the listeners. If one thread alone calls this and
  // MoveCandidate(), each listener hears of the versions in this order.
  void MoveLatest(const PublishedVersion& latest) ABSL_LOCKS_EXCLUDED(latest_mu_);
  // Tells `canary`, alone, of a newer version than `latest`. An earlier canary is told nothing and
  // keeps what it has. Nullopt: nobody is told of the version on trial any more.
  void MoveCandidate(const std::optional<PublishedVersion>& candidate, const std::string& canary)
      ABSL_LOCKS_EXCLUDED(latest_mu_);

 private:
  struct Listener {
    std::string worker;
    std::function<void(const Announcement&)> on_announced;
  };
  std::optional<Announcement> AnnouncedTo(const std::string& worker) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(latest_mu_);

  std::atomic<uint64_t> sent_ = 0;

  mutable Mutex latest_mu_;
  std::optional<PublishedVersion> latest_ ABSL_GUARDED_BY(latest_mu_);
  std::optional<PublishedVersion> candidate_ ABSL_GUARDED_BY(latest_mu_);
  std::string canary_ ABSL_GUARDED_BY(latest_mu_);  // Of candidate_.
  std::map<uint64_t, Listener> listeners_ ABSL_GUARDED_BY(latest_mu_);
  uint64_t next_listener_ ABSL_GUARDED_BY(latest_mu_) = 1;
};

}  // namespace sluice
