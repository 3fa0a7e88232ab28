#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/meta/store.h"
#include "services/controller/core/assign.h"
#include "services/controller/core/fleet.h"
#include "services/controller/core/job.h"
#include "services/controller/core/types.h"
#include "services/controller/core/why.h"

namespace sluice::controller {

struct SubmitInput {
  std::string id;  // 32 hex digits, fresh; unused where the name is known.
  std::string name;
  std::string hash;  // Hex.
  std::string spec;  // Opaque.
  Needs needs;
  std::string request = {};  // Of the submission, the same in all its tries. Hex; empty: none.
  std::vector<std::string> warnings = {};  // Of unusual values; an event each.
};
struct SubmitOutput {
  bool repeat = false;
  std::string job;
  std::string previous;  // The job that had the name and has ended; empty: none, or a repeat.
};

struct HeartbeatInput {
  std::string daemon;
  int64_t incarnation = 0;
  uint64_t stream = 0;
  uint64_t generation = 0;
  bool draining = false;
  std::map<std::string, double> load;
  std::vector<Progress> progress;
  std::vector<std::pair<std::string, StepReport>> steps;  // With their jobs, in order.
  std::vector<Event> events;                              // Their seq is the daemon's.
};

// A worker's part in a job, as it goes down.
enum class PartPhase { kRun = 1, kStop = 3 };
struct Part {
  std::string job;
  int64_t incarnation = 0;    // Of the gang for a trainer, else the daemon's own.
  std::vector<Worker> peers;  // With incarnations as they call.
  PartPhase phase = PartPhase::kRun;
  bool checkpoint = false;
  std::vector<std::string> queues, weights;  // Addresses.
  uint32_t rank = 0, world = 0;
  std::string rendezvous;
  bool operator==(const Part&) const = default;
};
struct Down {
  uint64_t generation = 0;
  std::vector<Part> parts;
  // By job: k of the newest report stored of this gang.
  std::map<std::string, int64_t> steps_stored;
  uint64_t events_stored = 0;
};

// A SetJob that is due, and what the queue answers.
struct SetJobCall {
  std::string job, queue, address;
  int64_t queue_incarnation = 0;  // As registered when the call was made.
  uint64_t revision = 0;
  QueuePhase phase = QueuePhase::kOpen;
  std::vector<Worker> workers;  // With incarnations as they call.
  int64_t gang = 0;             // That of the trainers among them, or the last.
};
struct SetJobAnswer {
  bool restored = false;
  Ledger ledger;
};
// A Release of all that a lost worker holds.
struct ReleaseCall {
  std::string job, queue, address, worker;
  int64_t incarnation = 0;
};

// What the calls since the last Take() did. First the transaction is stored; only then the rest may
// be acted on.
struct Outbox {
  std::vector<meta::Compare> compares;
  std::vector<meta::Op> ops;
  std::vector<SetJobCall> set_jobs;
  std::vector<ReleaseCall> releases;
  std::set<std::string> daemons;  // Whose Down changed.
  std::set<std::string> jobs;     // With something new to watch.
  // Jobs that are stalled: all their daemons are to be asked, then Diagnosed().
  std::vector<std::string> diagnose;
};

// The controller's thinking: jobs, their states and ends; the fleet; who works for whom. A state
// machine without threads, clocks or I/O: calls come with their time, what they cause lies in the
// outbox.
//
// Not thread-safe. Views stay valid until the next call that is not const.
class Controller {
 public:
  // Goes on where the store says. `store` is read here alone. DATA_LOSS: a record cannot be read;
  // it is named.
  static absl::StatusOr<std::unique_ptr<Controller>> Load(meta::Store* store, Instant now);

  // A repeat: of the same request, or of the name and hash of a job that lives. A job in a final
  // state gives up its name. ALREADY_EXISTS CONFLICT: the job that has the name lives and has
  // another hash; `current` is its id.
  absl::StatusOr<SubmitOutput> Submit(Instant now, const SubmitInput& input);
  // Answers whether it is a repeat. `hard`: without a last checkpoint; it hurries a cancel under
  // way. FAILED_PRECONDITION NOT_YET: the job has ended, or ends by itself.
  absl::StatusOr<bool> Cancel(Instant now, const std::string& job, bool hard);

  // As Fleet's calls of these names.
  absl::StatusOr<RegisterOutput> Register(Instant now, const RegisterInput& input);
  absl::Status Heartbeat(Instant now, const HeartbeatInput& input);
  void StreamClosed(Instant now, const std::string& daemon, uint64_t stream);

  void SetJobAnswered(Instant now, const SetJobCall& call,
                      const absl::StatusOr<SetJobAnswer>& answer);

  // Judges silence and limits; due four times a second.
  void Tick(Instant now);

  // Lets all that follow from the calls so far happen, and hands it out. Committed() with the
  // transaction's revision, or 0 where there was none, before the next Take().
  Outbox Take(Instant now);
  void Committed(int64_t revision);

  // Views. NOT_FOUND JOB: neither an id nor a name. A name means the job that took it last.
  absl::StatusOr<const Job*> Find(const std::string& id_or_name) const;
  const std::map<std::string, Job>& jobs() const { return jobs_; }  // By id.
  const Fleet& fleet() const { return fleet_; }
  Down DownFor(const std::string& daemon) const;
  std::string Address(const std::string& daemon) const;  // Of its gRPC listener; empty: unknown.
  // Seconds from the first RUNNING to the end, or to now.
  static double Seconds(const Job& job, absl::Time now);
  // Who is not ready, for people. Empty: all are.
  std::vector<std::string> NotReady(const Job& job) const;
  // What the job waits for, as far as the controller knows; what its daemons say comes on top.
  Waits WaitsOf(Instant now, const Job& job) const;
  // Whether steps advance: the last one ended no longer ago than three median steps (and 2 s).
  bool Moving(Instant now, const Job& job) const;
  // What a stalled job waits for, in words: the answer to Outbox::diagnose. Told as an event, kept
  // for the day it fails.
  void Diagnosed(Instant now, const std::string& job, const std::string& text);

 private:
  Controller();

  // lifecycle.cc: states, limits and ends.
  void Advance(Instant now, Job& job);
  void AdvanceLive(Instant now, Job& job);
  void AdvanceEnding(Instant now, Job& job);
  void Judge(Instant now, Job& job);  // Conditions and limits.
  void SetState(Instant now, Job& job, JobState state, std::string code, std::string message);
  void End(Instant now, Job& job, JobState target, bool checkpoint, std::string code,
           std::string message);
  // The trainer has nothing more to do, `why`. A job that has trained no step fails.
  void TrainerDone(Instant now, Job& job, const std::string& why);
  void Fail(Instant now, Job& job, std::string code, std::string message);
  void Enter(Instant now, Job& job, Stage stage);
  void Finalize(Instant now, Job& job);
  void QueueBack(Instant now, Job& job, const SetJobCall& call, const SetJobAnswer& answer);
  // After the event that tells of it; too many fail the job.
  void CountRestart(Instant now, Job& job, Role role, const std::string& cause);
  bool Left(const Job& job, const Worker& worker) const;
  bool TrainersReady(const Job& job) const;
  // The queue's present process is there, and holds the job.
  bool QueueServes(const Job& job) const;
  std::string QueueStanding(const Job& job) const;  // For people; empty: it serves.
  int Ready(const Job& job, Role role) const;

  // waits.cc: which jobs have the trainers and rollouts that a waiting one lacks, as in "job digits
  // has trainer-0"; may be empty.
  std::string HeldByOthers(const Job& job) const;
  std::optional<Edge> FaultOf(Instant now, const std::string& id, Role role) const;
  void AddLeaving(Instant now, const Job& job, Waits& waits) const;
  void AddUnheard(Instant now, const Job& job, Waits& waits) const;

  // staffing.cc: who works, and what is told them and the queue.
  void Staff(Instant now);
  void StaffJob(Instant now, Job& job, const Parts& parts);
  void Gone(Instant now, const Daemon& daemon, int64_t incarnation, const std::string& cause);
  void QueueGone(Instant now, Job& job, const Daemon& daemon, const std::string& cause);
  void Back(Instant now, const Daemon& daemon);
  void RefreshDowns();
  void DueCalls(Instant now);
  Part PartOf(const Job& job, const Worker& worker) const;
  std::vector<Worker> Callers(const Job& job) const;

  // controller.cc
  absl::Status LoadJob(meta::Store* store, Instant now, const std::string& id);
  void Heard(Instant now, Daemon& daemon, const HeartbeatInput& input);
  void HeardProgress(Instant now, Job& job, const Worker& worker, const Progress& progress);
  void HeardStep(Instant now, Job& job, const StepReport& step);
  // Tells once of each spell without learning, and of each collapse.
  void WatchLearning(Instant now, Job& job, const StepSignal& step);
  // A new gang goes on with step k: what an old one reported of that step and of later ones is off
  // the lineage.
  void DropSteps(Job& job, int64_t k);
  // Bounds what is kept of a long run. Of the newest kStepsKept steps and the first few all stay.
  // Of those between, each S-th stays, S being the least power of two that leaves at most
  // kStepsKept / 2; the sums over the rest are folded.
  void ThinSteps(Job& job);
  void Emit(Instant now, Job& job, Severity severity, absl::string_view role,
            const std::string& daemon, absl::string_view code, std::string message);
  void Touch(Job& job);
  void Save(const Daemon& daemon);
  void PutGuarded(std::string key, std::string value);

  std::map<std::string, Job> jobs_;           // By id.
  std::map<std::string, std::string> names_;  // To ids: of each name, the job that took it last.
  std::set<std::string> active_;              // Jobs whose stage is not kOver.
  Fleet fleet_;
  std::map<std::string, Down> downs_;  // By daemon; without what is stored.
  bool staff_due_ = true;

  Outbox out_;
  std::set<std::string> unsaved_;             // Jobs.
  std::map<std::string, int64_t> revisions_;  // Of the keys changed by compare-and-set.
  std::vector<std::string> guarded_;          // Such keys in the transaction handed out.
};

}  // namespace sluice::controller
