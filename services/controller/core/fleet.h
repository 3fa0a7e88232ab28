#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "services/controller/core/types.h"

namespace sluice::controller {

// Version of the wire protocol. This build speaks no other.
inline constexpr uint32_t kProtocol = 1;
inline constexpr absl::Duration kHeartbeatInterval = absl::Seconds(2);
// A daemon that has sent no heartbeat for this long is suspect, and later lost.
inline constexpr absl::Duration kSuspectAfter = absl::Seconds(6);
inline constexpr absl::Duration kLostAfter = absl::Seconds(10);
// A daemon whose heartbeat stream has broken is lost if it opens no new one for this long.
inline constexpr absl::Duration kLostAfterBreak = absl::Seconds(3);
// How long no daemon counts as lost after the controller has started, or was away.
inline constexpr absl::Duration kGrace = absl::Seconds(10);
// A daemon that has been lost for this long and works for no job is forgotten. A pod that is
// replaced comes back under another id, so the old ones would stay for ever.
inline constexpr absl::Duration kForgetAfter = absl::Hours(1);
// Most daemons that are registered at one time, lost ones included.
inline constexpr size_t kMostDaemons = 10'000;

// The record of a daemon that is stored at daemons/ID.
struct DaemonRecord {
  std::string id;
  Role role = Role::kRollout;
  std::string boot;  // Random id of the process. Hex.
  int64_t incarnation = 0;
  std::string build;
  uint32_t protocol_min = 0, protocol_max = 0;
  std::map<std::string, std::string> addresses;  // HOST:PORT by name of the listener ("grpc", ..).
  std::map<std::string, std::string> labels;
  std::string capacity;        // The serialised registry.v1.Capacity, opaque to the core. Hex.
  uint64_t events_stored = 0;  // Highest seq of this incarnation's events that is stored.
  // An operator wants it to give back its work and to get no new one.
  bool drained = false;
  // Jobs that it works for and that the store does not know, by id. They are of another controller,
  // or the store has lost them. The daemon is left alone, so that they go on until the operator
  // restores the store from a backup, or drains the daemon.
  std::vector<std::string> unknown_jobs;
  // It was about to end, and said so, when it was lost.
  bool left = false;

  // The pool that it is in, by its label.
  const std::string& pool() const {
    static const std::string kDefault(kDefaultPool);
    const auto label = labels.find("pool");
    return label == labels.end() ? kDefault : label->second;
  }
};

// How far a daemon is with a job, as of its last heartbeat.
struct Progress {
  std::string job;
  // The assignment's incarnation: the trainer group's for a trainer, else the daemon's own.
  int64_t incarnation = 0;
  bool ready = false;
  PolicyVersion version;
  int64_t step = 0;
  // `done`, `failed` and `restore` have an effect; any other text is for people.
  std::string phase;
  std::string cause;  // Why it is in this phase, for people.
  EvalSummary eval;   // Set by trainers.
};

enum class Liveness { kLive, kSuspect, kLost };
absl::string_view LivenessName(Liveness liveness);  // "up", "suspect", "lost".

struct Daemon;
// The same, but "left" for a daemon that has left.
absl::string_view StateText(const Daemon& daemon);

// Names a step of a trainer group.
struct StepMark {
  int64_t incarnation = 0;
  int64_t k = -1;
  auto operator<=>(const StepMark&) const = default;
};

struct Daemon {
  DaemonRecord record;
  Liveness liveness = Liveness::kLost;
  bool draining = false;
  uint64_t stream = 0;        // Number of its heartbeat stream; 0 if none is open.
  absl::Duration last_heard;  // Monotonic time of its last sign of life.
  // Monotonic time at which the stream broke; meaningful only while stream == 0.
  absl::Duration broken_at;
  // Monotonic time at which this controller first saw it as lost; meaningful only while it is.
  absl::Duration lost_at;
  bool ever_heard = false;  // It has sent a heartbeat to this controller process.
  // This incarnation became lost after Restore(), and has sent no heartbeat since.
  bool was_lost = false;
  // Newest generation of assignments that it says it has applied.
  uint64_t generation_applied = 0;
  std::map<std::string, double> load;
  std::map<std::string, Progress> progress;  // By job id.
  // By job id: the last of the step reports in its newest heartbeat that had any. Those up to it
  // are stored, or are not wanted.
  std::map<std::string, StepMark> steps_stored;

  bool present() const { return liveness != Liveness::kLost; }  // It keeps its work.
  // It is lost because it ended in an orderly way: nobody waits for it to come back.
  bool left() const { return !present() && record.left; }
  // It may get new work.
  bool usable() const {
    return liveness == Liveness::kLive && !draining && !record.drained &&
           record.unknown_jobs.empty();
  }
};

struct RegisterInput {
  DaemonRecord daemon;      // `incarnation` is the one that the daemon had before, 0 if none.
  uint64_t generation = 0;  // Generation of the assignments that it runs now.
  std::vector<std::string> running = {};  // Ids of the jobs of these assignments.
};
struct RegisterOutput {
  bool repeat = false;
  int64_t incarnation = 0;
  uint32_t protocol = kProtocol;
  std::vector<std::string> unknown_jobs = {};  // As in DaemonRecord. Set by Controller::Register().
};

// The registry: which daemons there are, under which incarnation, and which are silent. Not
// thread-safe; the time comes with each call.
class Fleet {
 public:
  // `on_lost` is called each time an incarnation of a daemon becomes lost after Restore().
  // `on_back` is called when such an incarnation sends a heartbeat again, registered anew or not.
  // It is also called for one that Restore() added as lost and that sends a heartbeat without
  // registering. Neither may call the fleet.
  struct Listener {
    std::function<void(Instant, const Daemon&, int64_t incarnation, const std::string& cause)>
        on_lost;
    std::function<void(Instant, const Daemon&)> on_back;
  };
  explicit Fleet(Listener listener) : listener_(std::move(listener)) {}

  // Adds a daemon that the store knows. Call it before all other methods. If it serves a job
  // (`working`) it has kGrace to come back; else it counts as lost until it registers.
  void Restore(Instant now, DaemonRecord record, bool working);

  // Registers a daemon process. The same boot keeps its incarnation; another boot gets the next
  // one, and the earlier incarnation is lost if it was not lost before.
  // FAILED_PRECONDITION NOT_YET: the process of the old boot still sends heartbeats.
  // FAILED_PRECONDITION PROTOCOL: the two builds have no protocol in common.
  // ALREADY_EXISTS CONFLICT: the id belongs to a daemon of another role.
  // INVALID_ARGUMENT: the id is not a valid name; see CheckName().
  // RESOURCE_EXHAUSTED DAEMONS: the id is new, and kMostDaemons are registered.
  absl::StatusOr<RegisterOutput> Register(Instant now, const RegisterInput& input);

  // Takes a heartbeat that came over `stream` (not 0).
  // NOT_FOUND GONE: the daemon is unknown and must register again.
  // ABORTED FENCED: another boot has taken over the id.
  absl::StatusOr<Daemon*> Heartbeat(Instant now, const std::string& id, int64_t incarnation,
                                    uint64_t stream);

  // Call it when a stream has ended. A daemon that was draining is then lost at once.
  void StreamClosed(Instant now, const std::string& id, uint64_t stream);

  // The controller could hear no daemon for `away`, up to now: that was not their silence. They
  // have kGrace again to come back.
  void OnAway(Instant now, absl::Duration away);

  // Marks silent daemons as suspect or lost.
  void Tick(Instant now);

  // The daemons that have been lost for kForgetAfter and that no operator drains: a drain outlives
  // its daemon. This controller counts the time from when it saw the loss, or from its own start.
  std::vector<std::string> ListForgettable(Instant now) const;
  // Removes a daemon that is lost. Returns whether floor() has risen, and is to be stored.
  bool Forget(const std::string& id);

  // The highest incarnation of all daemons that were forgotten. A daemon that registers without a
  // record gets a higher one, whoever had its id before: so the calls of a process that ran under
  // the id and was cut off from the fleet are refused for ever, as if the record had been kept. One
  // number for all ids does that without a record of each, and incarnations need not be dense.
  int64_t floor() const { return floor_; }
  // Sets the floor that is stored. Call it before Register().
  void RestoreFloor(int64_t floor) { floor_ = floor; }

  Daemon* Find(const std::string& id);
  const std::map<std::string, Daemon>& daemons() const { return daemons_; }
  std::map<std::string, Daemon>& daemons() { return daemons_; }

 private:
  void Lose(Instant now, Daemon& daemon, const std::string& cause);

  const Listener listener_;
  std::map<std::string, Daemon> daemons_;
  int64_t floor_ = 0;
  // Time of the last Restore(), which is the controller's own start, or of OnAway().
  absl::Duration back_since_ = -absl::InfiniteDuration();
};

}  // namespace sluice::controller
