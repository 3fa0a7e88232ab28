#pragma once

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

inline constexpr uint32_t kProtocol = 1;  // Of contracts; this build speaks it alone.
inline constexpr absl::Duration kBeat = absl::Seconds(2);
inline constexpr absl::Duration kSuspectAfter = absl::Seconds(6);    // Of silence.
inline constexpr absl::Duration kLostAfter = absl::Seconds(10);      // Of silence.
inline constexpr absl::Duration kLostAfterBreak = absl::Seconds(3);  // Of the heartbeat stream.
// After the controller's start nobody is lost.
inline constexpr absl::Duration kGrace = absl::Seconds(10);

// What is stored of a daemon, at daemons/ID.
struct DaemonRecord {
  std::string id;
  Role role = Role::kRollout;
  std::string boot;  // Hex.
  int64_t incarnation = 0;
  std::string build;
  uint32_t protocol_min = 0, protocol_max = 0;
  std::map<std::string, std::string> addresses;  // HOST:PORT by listener.
  std::map<std::string, std::string> labels;
  std::string capacity;        // As the daemon said it; opaque here. Hex.
  uint64_t events_stored = 0;  // Seq of its last event that is stored, of this incarnation.
};

// How a daemon stands with a job, from its last heartbeat.
struct Progress {
  std::string job;
  int64_t incarnation = 0;  // Of the assignment: the gang's for a trainer.
  bool ready = false;
  PolicyVersion version;
  int64_t step = 0;
  std::string phase;  // `done`, `failed`, `restore`, else free.
  std::string cause;
  EvalSummary eval;  // Of a trainer.
};

enum class Liveness { kLive, kSuspect, kLost };
absl::string_view LivenessName(Liveness liveness);  // "up", "suspect", "lost".

struct Daemon {
  DaemonRecord record;
  Liveness liveness = Liveness::kLost;
  bool draining = false;
  uint64_t stream = 0;         // Of its heartbeats; 0: none is open.
  absl::Duration heard;        // Monotonic.
  absl::Duration broken;       // When the stream broke, if stream == 0.
  bool ever_heard = false;     // By this controller.
  uint64_t generation_up = 0;  // Of the assignments it has applied.
  std::map<std::string, double> load;
  std::map<std::string, Progress> progress;  // By job.

  bool present() const { return liveness != Liveness::kLost; }
  bool usable() const { return liveness == Liveness::kLive && !draining; }
};

struct RegisterInput {
  DaemonRecord daemon;      // Its incarnation: the one it had, 0 for none.
  uint64_t generation = 0;  // Of the assignments that it runs.
};
struct RegisterOutput {
  bool repeat = false;
  int64_t incarnation = 0;
  uint32_t protocol = kProtocol;
};

// The registry: which daemons there are, under which incarnation, and who is silent. Not
// thread-safe; time comes with each call.
class Fleet {
 public:
  // `gone`: this incarnation of the daemon works no more; called once for each. `back`: a lost
  // daemon beats again. Neither may call the fleet back.
  struct Listener {
    std::function<void(Instant, const Daemon&, int64_t incarnation, const std::string& cause)> gone;
    std::function<void(Instant, const Daemon&)> back;
  };
  explicit Fleet(Listener listener) : listener_(std::move(listener)) {}

  // A daemon of the store, before the first other call. `working`: it serves a job, so it is given
  // kGrace to come back; else it counts as lost until it registers.
  void Restore(Instant now, DaemonRecord record, bool working);

  // The same boot keeps its incarnation, another gets the next; the one before is gone then.
  // FAILED_PRECONDITION NOT_YET: the old boot still beats. FAILED_PRECONDITION PROTOCOL: none in
  // common. ALREADY_EXISTS CONFLICT: the id is a daemon of another role. INVALID_ARGUMENT: a name
  // that is none.
  absl::StatusOr<RegisterOutput> Register(Instant now, const RegisterInput& input);

  // A heartbeat over `stream` (not 0). NOT_FOUND GONE: register again. ABORTED FENCED: another boot
  // has taken over.
  absl::StatusOr<Daemon*> Beat(Instant now, const std::string& id, int64_t incarnation,
                               uint64_t stream);

  // The stream ended. A daemon that was draining is gone at once.
  void StreamClosed(Instant now, const std::string& id, uint64_t stream);

  // Judges silence.
  void Tick(Instant now);

  Daemon* Find(const std::string& id);
  const std::map<std::string, Daemon>& daemons() const { return daemons_; }
  std::map<std::string, Daemon>& daemons() { return daemons_; }

 private:
  void Lose(Instant now, Daemon& daemon, const std::string& cause);

  const Listener listener_;
  std::map<std::string, Daemon> daemons_;
  absl::Duration started_ = -absl::InfiniteDuration();  // When daemons were restored.
};

}  // namespace sluice::controller
