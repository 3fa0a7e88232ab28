#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/rl/version.h"
#include "common/weights/broadcast_transport.h"
#include "common/weights/fetcher.h"
#include "common/weights/fingerprint.h"
#include "common/weights/object_fetcher.h"
#include "common/weights/relay_chain.h"
#include "common/weights/staged.h"
#include "common/weights/version_health.h"

namespace sluice {
class Clock;
class FileTransport;
class WeightRelay;

// Follows the trainer's `latest` version for one engine: watches it, downloads what is missing,
// checks every object, and hands over versions that are ready for activation.
//
// With a chain (relay_chain.h) the objects come from the rollout before this one, and the relay
// passes them on to the next. The trainer still announces the versions and lists what leads to
// them. While it does not answer, the other rollouts are asked for both.
//
// Each download has a plan of whom to ask by which transport (holder_plan.h). While the trainer
// announces nothing, `latest` of the folder is followed as well as other rollouts.
//
// Which version is downloaded, and when, is decided by a VersionFollower. While the engine has no
// room for what was downloaded, newer versions are fetched and passed on all the same, and each
// takes the place of the one before. A broken connection is opened again with back-off. A new
// address (the trainer restarted elsewhere), given by SetSource(), ends at once the stream and the
// download from the old address.
//
// If the trainer has chosen this engine as the canary of a version, it alone hears of it. Until the
// version is promoted, the relay does not name it to others, and the trainer is told every 100 ms
// what the engine has found about it.
//
// Thread-safe. Owns four threads: two follow `latest`, of the trainer and of relays, one downloads
// and calls `on_staged`, and one sends reports.
class WeightSubscriber {
 public:
  struct Options {
    std::string job;     // 32 hex digits.
    std::string worker;  // This daemon's id.
    int64_t incarnation = 0;
    std::string policy = "policy";
    FanOut fan_out = FanOut::kStar;
    // Whether what the trainer, or a rollout before this one, shares on this host is read from its
    // memory.
    bool shared_memory = false;
    // How it takes part in broadcasts of the trainer. Nullopt: not at all.
    std::optional<BroadcastOptions> broadcast;
    // The devices over which memory of other hosts is read with UCX, or why it is not. Nullopt: the
    // job does not want it.
    std::optional<absl::StatusOr<std::string>> ucx_devices;
    // Reads the folder that the trainer writes; null: there is none.
    std::shared_ptr<FileTransport> folder;
    // Passes on what is fetched here; null: nothing is, and all comes from the trainer.
    std::shared_ptr<WeightRelay> relay;
    HolderLimits limits;
    // Used for the back-off after a failed download and after a refusal; null means the real clock.
    // Must outlive the subscriber.
    Clock* clock = nullptr;
    // Called after a download failed, on the downloading thread, with the reason. May be empty.
    std::function<void(const absl::Status& why)> on_download_failed;
    // Called on the same thread at the end of each download, failed or not. May be empty.
    std::function<void(const ObjectFetcher::Stats& stats)> on_download_ended;
    // Whether the engine has room for the weights of one more version now. May be empty: it always
    // has. Called with a lock held, so it must not call the subscriber; see OnRoom().
    std::function<bool()> has_room;
    // What is known of the version that was activated last, while it is on trial here. Called on
    // the thread of the reports, and may be empty; then the trainer is told nothing.
    std::function<VersionHealth()> health;
  };
  // Called with each version that is ready, on the downloading thread. No other version is fetched
  // before it returns.
  // No further version is offered until OnActivated() or OnRefused() has been called for this one.
  using OnStaged = std::function<void(StagedWeights staged)>;

  // `layout` gives the names, types and shapes of the engine's tensors, in the order of the names,
  // and `held` is the fingerprint of the weights that it starts with, those of the initial
  // checkpoint. Their version is unset until OnActivated() is called.
  WeightSubscriber(Options options, absl::Span<const TensorSpec> layout, Fingerprint held,
                   OnStaged on_staged);
  ~WeightSubscriber();  // Stops and joins the threads.

  // Sets the HOST:PORT of the trainer; empty means that there is none for now.
  void SetSource(const std::string& address);
  // Sets the rollouts that work for the job, this one included.
  void SetMembers(std::vector<RelayMember> members);

  // Tells that the engine uses `version` from its next token on. `pause` is how long no token was
  // sampled during the change.
  void OnActivated(PolicyVersion version, Fingerprint state, absl::Duration pause);
  // Tells that the engine found other bits than announced in `tensor` and keeps its old weights.
  // After a back-off the version is downloaded again, and at the second refusal as a whole. If it
  // was a delta that a relay listed, others are asked for their list first.
  void OnRefused(PolicyVersion version, const std::string& cause, const std::string& tensor);
  // Tells that Options::has_room returns true again.
  void OnRoom();
  // Tells that the weights in the engine's memory are damaged, in `tensor`. The next version that
  // it is given, which may be the one it had, begins at nothing.
  void OnDamaged(PolicyVersion version, const std::string& cause, const std::string& tensor);

  // What the download that is under way waits for.
  std::optional<ObjectFetcher::Wait> wait() const;
  // A version that was downloaded and for which the engine has no room.
  struct RoomWait {
    PolicyVersion version;
    absl::Duration since;  // On the real monotonic clock; perhaps an older version waited first.
  };
  std::optional<RoomWait> room_wait() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice
