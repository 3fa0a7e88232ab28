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

// The newest version that is out: what subscribers follow. Only rises, as a pair.
struct LatestVersion {
  PolicyVersion version;
  std::string manifest;  // Id, 32 bytes.
  Fingerprint state;
  // Id of the full manifest that has this state. It is `manifest`, but for a relabel: a version
  // with the state of the one before, whose manifest has no chunks. Empty: taken for `manifest`.
  std::string anchor;
  // During a replay: engines with a version up to this number keep what they hold.
  std::optional<int64_t> hold_until;
};

// What a subscriber last said of itself.
struct ReplicaState {
  std::string worker;
  PolicyVersion version;
  std::string phase;  // FETCHING, STAGED, ACTIVE, REFUSED
  Fingerprint state;
  std::string cause;
  absl::Duration reported_at;  // Monotonic.
};

// Published weights in the trainer's memory: objects (manifests, chunks) named by their SHA-256,
// and `latest`.
//
// The manifest's appearance in `latest` is the commit; an object is immutable. The objects of the
// newest `retain_versions` versions are kept, those of older ones that a subscriber leases, and the
// anchors of all of these.
//
// Thread-safe. Owns no thread.
class WeightPublisher {
 public:
  struct Options {
    std::string job;
    std::string policy = "policy";
    int retain_versions = 4;
    uint64_t chunk_target_bytes = 1 << 20;
  };
  WeightPublisher(Options options, Clock* clock);

  // Makes chunks and a FULL manifest of `weights`, stores them, and moves `latest` to `version`.
  // `source`: a directory with the same weights, for people; may be empty. Where the version before
  // has the same fingerprint, as after a skipped step, this one is a relabel: a DELTA manifest
  // without chunks, whose base is its state. ABORTED: `version` is not above `latest` (LOST_RACE).
  absl::StatusOr<LatestVersion> Publish(const TensorSet& weights, PolicyVersion version,
                                        const std::string& source,
                                        std::optional<int64_t> hold_until = std::nullopt)
      ABSL_LOCKS_EXCLUDED(mu_);

  std::optional<LatestVersion> latest() const ABSL_LOCKS_EXCLUDED(mu_);
  // Calls `on_latest` at each move of `latest` until it is removed; at once if there is one. It
  // must not block.
  uint64_t AddListener(std::function<void(const LatestVersion&)> on_latest)
      ABSL_LOCKS_EXCLUDED(mu_);
  void RemoveListener(uint64_t listener) ABSL_LOCKS_EXCLUDED(mu_);

  // Null: not here (never was, or collected).
  std::shared_ptr<const std::string> Object(const std::string& id) const ABSL_LOCKS_EXCLUDED(mu_);

  // Replaces what `holder` keeps from collection, for `ttl`.
  void Lease(const std::string& holder, std::vector<std::string> manifests, absl::Duration ttl)
      ABSL_LOCKS_EXCLUDED(mu_);
  void Report(ReplicaState state) ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<ReplicaState> replicas() const ABSL_LOCKS_EXCLUDED(mu_);
  struct Node {
    LatestVersion version;
    uint64_t bytes = 0;
    absl::Time created;
  };
  std::vector<Node> nodes() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Version {
    Node node;
    std::string layout_id;
    std::vector<std::string> objects;  // Ids, the manifest's first.
  };
  struct HeldLease {
    std::vector<std::string> manifests;
    absl::Duration expires;  // Monotonic.
  };
  std::string AnchorOf(const Fingerprint& state, const std::string& layout_id) const
      ABSL_LOCKS_EXCLUDED(mu_);
  void Collect() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Options options_;
  Clock* const clock_;

  mutable Mutex mu_;
  std::vector<Version> versions_ ABSL_GUARDED_BY(mu_);  // Oldest first.
  std::map<std::string, std::shared_ptr<const std::string>> objects_ ABSL_GUARDED_BY(mu_);
  std::map<uint64_t, std::function<void(const LatestVersion&)>> listeners_ ABSL_GUARDED_BY(mu_);
  uint64_t next_listener_ ABSL_GUARDED_BY(mu_) = 1;
  std::map<std::string, HeldLease> leases_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, ReplicaState> replicas_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice
