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

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/checkpoint/tensor_set.h"
#include "common/rl/version.h"
#include "common/weights/fingerprint.h"
#include "common/weights/version_health.h"
#include "common/weights/weight_source.h"

namespace sluice {
class Clock;

// What a subscriber last reported about itself.
struct ReplicaState {
  std::string worker;
  PolicyVersion version;
  std::string phase;  // FETCHING, STAGED, ACTIVE, REFUSED
  Fingerprint state;
  // Why the version was refused, or which holder of it was left and why; else empty.
  std::string cause;
  std::string parent;                   // From whom it fetches. Empty: the trainer.
  std::string transport, why;           // By which transport, and why by that one.
  std::map<std::string, double> times;  // Seconds by part.
  std::optional<VersionHealth> health;  // Set by a canary.
  absl::Duration reported_at;           // On the monotonic clock.
};

// How a version is sent.
enum class WeightEncoding {
  kAuto,  // As a delta, if that has at most half the bytes of all weights.
  kFull,  // Always whole.
};

// Keeps published weights in the trainer's memory: immutable objects (manifests and chunks), each
// named by its SHA-256, and `latest`, the newest version. A version is published at the moment
// `latest` names it. Before, it may be on trial at one subscriber, the canary.
//
// Versions are the nodes of a graph. A delta is an edge between two versions in a row, which a
// subscriber can take in both directions; a version that is there as a whole is an anchor, where
// a subscriber that holds nothing can begin. There is a new anchor when the deltas since the last
// one have more than half of the bytes of all weights, or are many, or when a subscriber has
// refused what it got.
//
// The publisher keeps the newest `retain_versions` versions and the manifests that a subscriber
// leases. For each of their versions it also keeps the cheapest way from an anchor, so each takes
// at most an anchor and deltas of half its bytes. It keeps a copy of the weights that it published
// last, to which the next ones are compared.
//
// Thread-safe, except that no two calls of Publish(), Stage(), Try(), Promote() and Withdraw() may
// run at once. Owns no thread.
class WeightPublisher : public WeightSource {
 public:
  struct Options {
    std::string job;
    std::string policy = "policy";
    int retain_versions = 4;
    uint64_t chunk_target_bytes = 1 << 20;  // At most; see SetReceivers().
    WeightEncoding encoding = WeightEncoding::kAuto;
    // Called by Publish() and Promote() before a version is announced to all. TakeSnapshot() has it
    // as the newest then. May be empty.
    std::function<void()> on_stored;
  };
  WeightPublisher(Options options, Clock* clock);

  // Makes a delta or chunks of all `weights`, or both, stores them, and moves `latest` to
  // `version`. If the version before has the same fingerprint, for instance after a skipped step,
  // the new version is a relabel: its manifest is a DELTA without chunks, with the same state as
  // its base. `source` is a directory with the same weights, for information; it may be empty.
  // ABORTED (LOST_RACE): `version` is not above the newest version that is kept.
  absl::StatusOr<PublishedVersion> Publish(const TensorSet& weights, PolicyVersion version,
                                           const std::string& source,
                                           std::optional<int64_t> hold_until = std::nullopt)
      ABSL_LOCKS_EXCLUDED(mu_);

  // The same, but `latest` stays, so that nobody is told of the version yet. Needs
  // `retain_versions` of at least 2, else the new version would take the place of `latest`.
  absl::StatusOr<PublishedVersion> Stage(const TensorSet& weights, PolicyVersion version)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Tells one subscriber, alone, of a staged version. It takes the place of an earlier canary.
  void Try(const PublishedVersion& staged, const std::string& canary) {
    MoveCandidate(staged, canary);
  }
  // Moves `latest` to a staged version.
  void Promote(const PublishedVersion& staged) ABSL_LOCKS_EXCLUDED(mu_);
  // Nobody is told of the staged version any more. It is kept as long as any other.
  void Withdraw() { MoveCandidate(std::nullopt, ""); }

  // Says what List() tells of the trial that is under way, if there is one.
  struct Trial {
    PolicyVersion version;
    std::string canary;  // Empty: none has been found yet.
    absl::Duration waited;
    std::string text;
  };
  void SetTrial(std::optional<Trial> trial) ABSL_LOCKS_EXCLUDED(mu_);
  std::optional<Trial> trial() const ABSL_LOCKS_EXCLUDED(mu_);
  // Versions that earlier incarnations have given up, oldest first.
  struct Withdrawn {
    PolicyVersion version;
    int64_t from = 0;  // The version from which the job went on.
    std::string cause;
  };
  void SetWithdrawn(std::vector<Withdrawn> withdrawn) ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<Withdrawn> withdrawn() const ABSL_LOCKS_EXCLUDED(mu_);

  // How many subscribers there are. Chunks are made smaller for many, who pass them on one to the
  // next: the last one has a version when it has crossed one link and a chunk the others.
  void SetReceivers(int receivers) { receivers_ = receivers; }

  // Returns the object with this id, or null if it was never stored or has been freed.
  std::shared_ptr<const std::string> FindObject(const std::string& id) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // Nothing is ever coming: what is published is here.
  Lookup Find(const std::string& id, PolicyVersion) const override { return {FindObject(id)}; }
  void CallWhenChanged(std::function<void()>) override {}

  // Keeps the objects of these `manifests` from being freed for `ttl`. Replaces the earlier lease
  // of `holder`.
  void Lease(const std::string& holder, std::vector<std::string> manifests, absl::Duration ttl)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Keeps a manifest from being freed until the pin is taken off. "": that of the newest version.
  // NOT_FOUND GONE: it is not here.
  absl::Status SetPin(const std::string& manifest, bool on) ABSL_LOCKS_EXCLUDED(mu_);
  // What one holder keeps from being freed.
  struct HeldLease {
    std::string holder;
    std::vector<std::string> manifests;
    absl::Duration expires;  // On the monotonic clock.
    bool pin = false;        // It has no end.
  };
  std::vector<HeldLease> leases() const ABSL_LOCKS_EXCLUDED(mu_);
  // Stores what a subscriber reports; replaces its earlier report. If it was refused something, the
  // next version is an anchor: an object kept here, or what the subscriber holds, may be damaged.
  void Report(ReplicaState state) ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<ReplicaState> replicas() const ABSL_LOCKS_EXCLUDED(mu_);

  using Edge = WeightEdge;
  std::vector<Edge> edges() const override ABSL_LOCKS_EXCLUDED(mu_);

  // All that is kept at one moment.
  struct Snapshot {
    PublishedVersion newest;  // That was stored last, and may not be announced yet.
    std::vector<Edge> edges;  // As edges() lists them.
    std::map<std::string, std::shared_ptr<const std::string>> objects;  // By id.
  };
  // Nullopt: nothing has been published.
  std::optional<Snapshot> TakeSnapshot() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // A manifest with its chunks.
  struct Objects {
    std::string manifest;
    uint64_t bytes = 0;            // Of the chunks.
    std::vector<std::string> ids;  // Of all, the manifest's first.
  };
  // A kept version. At least one of the two is set.
  struct StoredVersion {
    PublishedVersion version;
    absl::Time created;
    std::optional<Objects> full;
    std::optional<Objects> delta;  // From the version before, or from one that is gone by now.
    Fingerprint base;              // Of `delta`.
  };
  // What was published last.
  struct Shadow {
    std::string layout_id;
    TensorSet weights;                 // Empty if no deltas are made.
    std::vector<Fingerprint> tensors;  // Partial fingerprints.
  };
  // What FreeUnused() keeps of a stored version.
  struct Kept {
    bool full = false, delta = false;
    bool any() const { return full || delta; }
  };
  // The chunks of a manifest while it is made.
  struct Chunks {
    std::vector<std::string> chunks;
    uint64_t bytes = 0;
  };
  // Stores a version. Nobody is told of it.
  absl::StatusOr<PublishedVersion> Store(const TensorSet& weights, PolicyVersion version,
                                         const std::string& source,
                                         std::optional<int64_t> hold_until)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Compares `weights` to the shadow and updates it. Returns the difference, if both have the same
  // layout, deltas are made, and it has at most `most` bytes. Chunks close at `target` bytes.
  std::optional<Chunks> UpdateShadow(const TensorSet& weights, uint64_t target, uint64_t most);
  // The size at which the chunks of the next version are closed.
  uint64_t ChunkTarget() const;
  // Makes a new shadow. Returns whether the old one had the fingerprints of `weights`.
  bool ReplaceShadow(const TensorSet& weights);
  // Returns whether the next version is to be an anchor, and forgets it.
  bool TakeAnchorWish() ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<Edge> ListEdges() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Frees the versions and objects that are no longer to be kept.
  void FreeUnused() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether version i has a delta from version i - 1.
  bool IsLinked(size_t i) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Marks the cheapest way from an anchor to version i.
  void KeepWayTo(size_t i, std::vector<Kept>* kept) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Options options_;
  Clock* const clock_;
  std::atomic<int> receivers_ = 0;

  // These are used by Publish() alone.
  std::optional<Shadow> shadow_;
  uint64_t last_bytes_ = 0;   // Of the version before, as sent.
  uint64_t delta_bytes_ = 0;  // Of the deltas since the last anchor.
  int deltas_ = 0;            // Their number.

  mutable Mutex mu_;
  // Oldest first, so (incarnation, number) rises. The last is `latest`, or a staged version.
  std::vector<StoredVersion> versions_ ABSL_GUARDED_BY(mu_);
  // By id: the objects of versions_.
  std::map<std::string, std::shared_ptr<const std::string>> objects_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, HeldLease> leases_ ABSL_GUARDED_BY(mu_);  // By holder.
  std::set<std::string> pins_ ABSL_GUARDED_BY(mu_);               // Manifests.
  std::map<std::string, ReplicaState> replicas_ ABSL_GUARDED_BY(mu_);
  bool anchor_wanted_ ABSL_GUARDED_BY(mu_) = false;  // A subscriber has refused something.
  std::optional<Trial> trial_ ABSL_GUARDED_BY(mu_);
  std::vector<Withdrawn> withdrawn_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice
