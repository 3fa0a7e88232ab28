#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/rl/version.h"
#include "common/weights/fingerprint.h"

namespace sluice {
class Clock;
class TensorSet;

// A published version, as it was announced to subscribers when it was the newest.
struct PublishedVersion {
  PolicyVersion version;
  std::string manifest;  // Id of its manifest: the SHA-256, 32 bytes.
  // Fingerprint of its weights.
  Fingerprint state;
  // Id of the full manifest with this state. It equals `manifest`, except for a relabel: a version
  // whose weights are those of the version before, and whose own manifest has no chunks. Empty
  // means `manifest`.
  std::string anchor;
  // Set while the trainer replays steps: engines whose version has a number up to this one keep the
  // weights they hold.
  std::optional<int64_t> hold_until;
};

// What a subscriber last reported about itself.
struct ReplicaState {
  std::string worker;
  PolicyVersion version;
  std::string phase;  // FETCHING, STAGED, ACTIVE, REFUSED
  Fingerprint state;
  // Why the version was refused; else empty.
  std::string cause;
  absl::Duration reported_at;  // On the monotonic clock.
};

// Keeps published weights in the trainer's memory: immutable objects (manifests and chunks), each
// named by its SHA-256, and `latest`, the newest version. A version is published at the moment
// `latest` names it.
//
// The publisher keeps the objects of the newest `retain_versions` versions, of older versions that
// a subscriber leases, and of the full manifests that these depend on.
//
// Thread-safe, except that two calls of Publish() must not run at once. Owns no thread.
class WeightPublisher {
 public:
  struct Options {
    std::string job;
    std::string policy = "policy";
    int retain_versions = 4;
    uint64_t chunk_target_bytes = 1 << 20;
  };
  WeightPublisher(Options options, Clock* clock);

  // Makes chunks and a FULL manifest of `weights`, stores them, and moves `latest` to `version`. If
  // the version before has the same fingerprint, for instance after a skipped step, the new version
  // is a relabel: its manifest is a DELTA without chunks, with the same state as its base. `source`
  // is a directory with the same weights, for information; it may be empty.
  // ABORTED (LOST_RACE): `version` is not above `latest`.
  absl::StatusOr<PublishedVersion> Publish(const TensorSet& weights, PolicyVersion version,
                                           const std::string& source,
                                           std::optional<int64_t> hold_until = std::nullopt)
      ABSL_LOCKS_EXCLUDED(mu_);

  std::optional<PublishedVersion> latest() const ABSL_LOCKS_EXCLUDED(mu_);
  // Calls `on_latest` each time `latest` moves, and once at once if there is a version. Versions
  // come in rising order. `on_latest` must not block. It may still be running when
  // RemoveListener() returns.
  uint64_t AddListener(std::function<void(const PublishedVersion&)> on_latest)
      ABSL_LOCKS_EXCLUDED(mu_);
  void RemoveListener(uint64_t listener) ABSL_LOCKS_EXCLUDED(mu_);

  // Returns the object with this id, or null if it was never stored or has been freed.
  std::shared_ptr<const std::string> FindObject(const std::string& id) const
      ABSL_LOCKS_EXCLUDED(mu_);

  // Keeps the objects of these `manifests` from being freed for `ttl`. Replaces the earlier lease
  // of `holder`.
  void Lease(const std::string& holder, std::vector<std::string> manifests, absl::Duration ttl)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Stores what a subscriber reports; replaces its earlier report.
  void Report(ReplicaState state) ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<ReplicaState> replicas() const ABSL_LOCKS_EXCLUDED(mu_);

  // Describes a version that is kept here.
  struct Node {
    PublishedVersion version;
    // Bytes of its chunks.
    uint64_t bytes = 0;
    absl::Time created;
  };
  // The versions kept, oldest first.
  std::vector<Node> nodes() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // A kept version with the objects that it needs.
  struct StoredVersion {
    Node node;
    std::string layout_id;
    std::vector<std::string> objects;  // Ids; the manifest's is the first.
  };
  struct HeldLease {
    std::vector<std::string> manifests;
    absl::Duration expires;  // On the monotonic clock.
  };
  std::string AnchorOf(const Fingerprint& state, const std::string& layout_id) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // Frees the versions and objects that are no longer to be kept.
  void FreeUnused() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Options options_;
  Clock* const clock_;

  mutable Mutex mu_;
  // Oldest first, so (incarnation, number) rises; the last is `latest`.
  std::vector<StoredVersion> versions_ ABSL_GUARDED_BY(mu_);
  // By id: the objects of versions_.
  std::map<std::string, std::shared_ptr<const std::string>> objects_ ABSL_GUARDED_BY(mu_);
  std::map<uint64_t, std::function<void(const PublishedVersion&)>> listeners_ ABSL_GUARDED_BY(mu_);
  uint64_t next_listener_ ABSL_GUARDED_BY(mu_) = 1;
  std::map<std::string, HeldLease> leases_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, ReplicaState> replicas_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice
