#pragma once

#include <cstdint>
#include <functional>
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
  std::string id;  // 32 hex digits, newly drawn; unused if the call is a repeat.
  std::string name;
  std::string hash;  // SHA-256 of the job file's text, its folder and the --set options. Hex.
  std::string spec;  // The serialised job.v1.JobSpec, opaque to the core.
  Needs needs;
  // Id of this Submit, the same in all its retries. Hex; empty if there is none.
  std::string request = {};
  std::vector<std::string> warnings = {};  // About unusual settings; each becomes an event.
  std::string owner = {};                  // Name of the submitter; empty without certificates.
  bool only_own = false;                   // The caller may see its own jobs alone.
  std::optional<uint32_t> max_jobs = {};   // Most jobs of this owner that have not ended.
};
struct SubmitOutput {
  bool repeat = false;
  std::string job;
  // The ended job that had the name before; empty if there was none, and in a repeat.
  std::string previous;
};

// The part of a job that is only in the store once the job is over.
struct StoredJob {
  std::string spec;                      // As Job::spec.
  std::map<int64_t, StepSummary> steps;  // As Job::steps.
};
absl::StatusOr<StoredJob> ReadStoredJob(meta::Store* store, const std::string& id);

struct RetryInput {
  std::string job;                        // Id or name.
  int64_t incarnation = 0;                // The one of the trainer group that is given up.
  StoredJob stored;                       // Of ReadStoredJob(); unused if the job has not ended.
  std::optional<uint32_t> max_jobs = {};  // As in SubmitInput.
};

struct HeartbeatInput {
  std::string daemon;
  int64_t incarnation = 0;
  uint64_t stream = 0;      // Number of the heartbeat stream, not 0.
  uint64_t generation = 0;  // Generation of the assignments that it has applied.
  bool draining = false;
  std::map<std::string, double> load;
  std::vector<Progress> progress;
  std::vector<std::pair<std::string, StepReport>> steps;  // With their job ids, in order of k.
  // With the id of the job that it is about, or "" for all jobs of the daemon. `seq` counts the
  // daemon's events.
  std::vector<std::pair<std::string, Event>> events;
};

// A worker's part in a job, as the controller sends it; see registry.v1.Assignment.
enum class AssignmentPhase {
  kRun = 1,
  kHold = 2,  // Leave, and hand over what others can go on with.
  kStop = 3,  // Leave; nobody goes on with what is not finished.
};
struct DaemonAssignment {
  std::string job;
  int64_t incarnation = 0;    // The trainer group's for a trainer, else the daemon's own.
  std::vector<Worker> peers;  // Who may call this daemon for the job; see Callers().
  AssignmentPhase phase = AssignmentPhase::kRun;
  bool checkpoint = false;  // Write a checkpoint before leaving (kStop of a trainer).
  // Addresses of the queue, and of the daemons that serve weights: trainers in order of rank, then
  // rollouts.
  std::vector<std::string> queues, weights;
  uint32_t rank = 0, world = 0;  // Of a trainer: its rank, and the number of ranks.
  std::string rendezvous;        // Of a trainer: the address of rank 0.
  // Of a rollout: the addresses of those that score answers of evaluations.
  std::vector<std::string> rewards;
  bool operator==(const DaemonAssignment&) const = default;
};
// What one daemon is told: its assignments, and how much of its reports is stored.
struct DesiredState {
  uint64_t generation = 0;  // Rises with each change of `assignments`.
  std::vector<DaemonAssignment> assignments;
  std::map<std::string, StepMark> steps_stored;  // By job id; see Daemon::steps_stored.
  uint64_t events_stored = 0;
};

// A SetJob that is due, and the queue's answer.
struct SetJobCall {
  std::string job, queue, address;
  // Of the queue process that was registered when the call was made.
  int64_t queue_incarnation = 0;
  uint64_t revision = 0;
  QueuePhase phase = QueuePhase::kOpen;
  std::vector<Worker> workers;  // See Callers().
  // The trainer group of the trainers in `workers`, or the last one if there are none.
  int64_t trainer_incarnation = 0;
};
struct SetJobAnswer {
  bool restored = false;
  Ledger ledger;
};
// A Release of everything that a lost worker holds at the queue.
struct ReleaseCall {
  std::string job, queue, address, worker;
  int64_t incarnation = 0;
};

// The effects of the calls since the last Take(). The transaction (compares and ops) must be stored
// before anything else here is acted on.
struct Outbox {
  std::vector<meta::Compare> compares;
  std::vector<meta::Op> ops;
  std::vector<SetJobCall> set_jobs;
  std::vector<ReleaseCall> releases;
  std::set<std::string> daemons;  // Daemons whose DesiredState has changed.
  std::set<std::string> jobs;     // Jobs that have something new for watchers.
  // Stalled jobs: their daemons are to be asked what they wait for; the answer goes to
  // OnDiagnosis().
  std::vector<std::string> diagnose;
};

// The controller's logic: the jobs with their states and ends, the fleet, and who works for which
// job. A state machine without threads, clocks or I/O: each call carries its time, and its effects
// are collected in the outbox, which Take() hands out.
//
// Not thread-safe. Returned pointers and references stay valid until the next call that is not
// const.
class Controller {
 public:
  // Makes a controller from the records of the store, which is read here and never again.
  // DATA_LOSS: a record cannot be read; the message names it.
  static absl::StatusOr<std::unique_ptr<Controller>> Load(meta::Store* store, Instant now);

  // Makes a job. It is a repeat, which changes nothing, if the request is the same, or if name and
  // hash are those of a job that still lives. A job in a final state gives up its name.
  // ALREADY_EXISTS CONFLICT: a job with this name lives and has another hash, or is not the
  // caller's; `current` of the error is its id.
  // RESOURCE_EXHAUSTED QUOTA: the owner has `max_jobs` jobs that have not ended.
  // INVALID_ARGUMENT: the name is not a valid job name.
  absl::StatusOr<SubmitOutput> Submit(Instant now, const SubmitInput& input);
  // Sets how many daemons a submitter's jobs may have. Without it there is no limit.
  void SetQuotas(std::function<DaemonQuota(const std::string& submitter)> quota_of) {
    quota_of_ = std::move(quota_of);
  }
  // These act on the job of this id or name. Each returns whether the job was in the wanted state,
  // or on the way to it, already.
  // FAILED_PRECONDITION NOT_YET: the job's state contradicts the verb; the hint says what would
  // work.
  // NOT_FOUND JOB: there is no such job.
  //
  // Cancels a job. `at_once` leaves out the last checkpoint; it also hurries a cancel that is under
  // way.
  absl::StatusOr<bool> Cancel(Instant now, const std::string& job, bool at_once);

  // Pauses a job: the step under way ends, the trainer writes a checkpoint, and all daemons leave.
  // Its queue keeps what is sampled and scored.
  absl::StatusOr<bool> Pause(Instant now, const std::string& job);
  // Lets a paused job wait for daemons again.
  absl::StatusOr<bool> Resume(Instant now, const std::string& job);
  // Lets a FAILED or CANCELLED job wait for daemons again, to go on from its last checkpoint. Its
  // limits.wall and limits.restarts_per_hour count anew. A call is keyed by the incarnation.
  // ALREADY_EXISTS CONFLICT: a later job has taken the name, and lives.
  // RESOURCE_EXHAUSTED QUOTA: as for Submit().
  // UNAVAILABLE NOT_FREED: the queue is just freeing the job's data.
  absl::StatusOr<bool> Retry(Instant now, const RetryInput& input);
  // Gives a job that waits, runs or is paused a changed spec, and what follows from it. `changes`
  // says for people what is new.
  absl::StatusOr<bool> SetSpec(Instant now, const std::string& job, std::string spec, Needs needs,
                               const std::string& changes);
  // Removes an ended job and its records, whose keys below jobs/ID/ the caller lists.
  // UNAVAILABLE NOT_FREED: as for Retry().
  absl::Status Delete(const std::string& job, const std::vector<std::string>& keys);

  // These do what Fleet's calls of the same names do, and apply the effects on the jobs.
  absl::StatusOr<RegisterOutput> Register(Instant now, const RegisterInput& input);
  absl::Status Heartbeat(Instant now, const HeartbeatInput& input);
  void StreamClosed(Instant now, const std::string& daemon, uint64_t stream);

  // Turns draining of a daemon on or off. A drained daemon hands over its work as far as others can
  // go on with it, and gets no new work. A queue keeps its jobs and gets no further one.
  // NOT_FOUND DAEMON: there is no such daemon.
  absl::Status Drain(Instant now, const std::string& daemon, bool on);

  // The answer to a call of Outbox::set_jobs.
  void OnSetJobAnswer(Instant now, const SetJobCall& call,
                      const absl::StatusOr<SetJobAnswer>& answer);

  // This process was paused, or waited for its store, for `away` up to now. Call it before anything
  // that has come meanwhile. The time counts neither as silence of daemons nor as a stall of jobs.
  void OnAway(Instant now, absl::Duration away);
  // The store has lost data, and got it back from this process. Every job that has not ended gets
  // an event.
  void OnStoreRebuilt(Instant now);

  // Looks for silent daemons, and forgets those that are lost for good. Call it about four times a
  // second.
  void Tick(Instant now);

  // Computes what follows from the calls so far (states, limits, assignments) and hands it out.
  // When it is stored, call OnCommitted() with the transaction's revision, or with 0 if there was
  // no transaction, before the next Take().
  Outbox Take(Instant now);
  void OnCommitted(int64_t revision);

  // Finds a job. A name means the job that took it last. NOT_FOUND JOB: there is neither such an id
  // nor such a name.
  absl::StatusOr<const Job*> Find(const std::string& id_or_name) const;
  const std::map<std::string, Job>& jobs() const { return jobs_; }  // By id.
  // Ids of the jobs whose end is not over (Stage::kOver).
  const std::set<std::string>& active() const { return active_; }
  const Fleet& fleet() const { return fleet_; }
  // How many daemons the jobs can use, as of the last Take().
  const WantedDaemons& wanted() const { return wanted_; }
  DesiredState DesiredStateOf(const std::string& daemon) const;
  // The address of the daemon's gRPC listener. Empty if it is unknown.
  std::string AddressOf(const std::string& daemon) const;
  // Seconds from the first RUNNING to the end, or to `now` if the job still runs.
  static double Seconds(const Job& job, absl::Time now);
  // What is not ready yet, for people. Empty if everything is.
  std::vector<std::string> ListNotReady(const Job& job) const;
  // What the job waits for, as far as the controller knows. The caller adds the edges that the
  // job's daemons report.
  Waits WaitsOf(Instant now, const Job& job) const;
  // Whether steps advance: the job is RUNNING, and its last step ended less than three median steps
  // (at least 2 s) ago.
  bool StepsAdvance(Instant now, const Job& job) const;
  // Takes the answer to Outbox::diagnose: `text` says what the stalled job waits for. The first
  // answer of a stall becomes an event. The newest one is kept for the message of a job that fails
  // because of the stall.
  void OnDiagnosis(Instant now, const std::string& job, const std::string& text);

 private:
  Controller();

  // lifecycle.cc: the states, limits and ends of jobs.
  void Advance(Instant now, Job& job);
  void AdvanceLive(Instant now, Job& job);
  void AdvanceEnding(Instant now, Job& job);
  void ApplyLimits(Instant now, Job& job);  // Applies the limits and sets the conditions.
  void SetState(Instant now, Job& job, JobState state, std::string code, std::string message);
  void BeginEnd(Instant now, Job& job, JobState target, bool checkpoint, std::string code,
                std::string message);
  // Ends the job, because its trainer reports that there is no further step; `why` gives its
  // reason. A job without a trained step fails.
  void OnTrainerDone(Instant now, Job& job, const std::string& why);
  void Fail(Instant now, Job& job, std::string code, std::string message);
  // Begins a stage of the end, and tells the queue the phase that belongs to it.
  void EnterStage(Instant now, Job& job, Stage stage);
  // Sets the final state and stores the result.
  void Finalize(Instant now, Job& job);
  void FinishPause(Instant now, Job& job);
  void OnQueueBack(Instant now, Job& job, const SetJobCall& call, const SetJobAnswer& answer);
  // Counts a restart; too many within an hour fail the job. Call it after the event that reports
  // the restart.
  void CountRestart(Instant now, Job& job, Role role, const std::string& cause);
  bool HasLeft(const Job& job, const Worker& worker) const;
  bool TrainersReady(const Job& job) const;
  // Whether the queue's present process is there and has accepted a SetJob of this job.
  bool QueueServes(const Job& job) const;
  // Why QueueServes() is false, for people. Empty if it is true, or if no queue is assigned yet.
  std::string WhyQueueDoesNotServe(const Job& job) const;
  // Number of daemons of this role that are ready under the present assignment.
  // What the worker reports under its present assignment, or null.
  const Progress* ProgressOf(const Job& job, const Worker& worker) const;
  int CountReady(const Job& job, Role role) const;
  // What one that is not ready says of itself. Empty: nothing.
  std::string WhyNotReady(const Job& job, Role role) const;

  // waits.cc: what a job waits for.
  //
  // The daemons of a role in a pool. It is valid until a job is staffed.
  struct Supply {
    int obtainable = 0;  // How many are free, or are a job's above its minimum.
    // Of trainers and rollouts: the ids of those that each job has.
    std::vector<std::pair<const Job*, std::vector<absl::string_view>>> held;
  };
  using Supplies = std::map<std::pair<std::string, Role>, Supply>;  // By the pool's name.
  Supplies CountSupplies() const;
  // Says which jobs hold the trainers and rollouts that a waiting job lacks, as in "job digits has
  // trainer-0". May be empty.
  std::string DescribeOtherHolders(const Job& job, const Supplies& supplies) const;
  // Says what would let a waiting job start.
  std::string DescribeStart(const Job& job, const JobStaff& staff, const Supplies& supplies) const;
  std::optional<Edge> FaultOf(Instant now, const std::string& id, Role role) const;
  void AddLeaving(Instant now, const Job& job, Waits& waits) const;
  void AddSilentDaemons(Instant now, const Job& job, Waits& waits) const;

  // staffing.cc: who works for which job, and what the daemons and the queue are told.
  void StaffJobs(Instant now);
  void StaffJob(Instant now, Job& job, const JobStaff& staff);
  // Leaves a waiting job as it is, and says why.
  void KeepWaiting(Instant now, Job& job, const JobStaff& staff, const Supplies& supplies);
  // Takes the workers from the job that were to leave and have left.
  void RemoveLeftWorkers(Instant now, Job& job);
  void OnDaemonLost(Instant now, const Daemon& daemon, int64_t incarnation,
                    const std::string& cause);
  void OnQueueLost(Instant now, Job& job, const Daemon& daemon, const std::string& cause);
  void OnDaemonBack(Instant now, const Daemon& daemon);
  void RefreshDesiredStates();
  void CollectSetJobs(Instant now);
  // Whether one of several ranks of the trainer is to leave the job.
  bool TrainerLeaves(const Job& job) const;
  DaemonAssignment AssignmentOf(const Job& job, const Worker& worker) const;
  // The job's workers, each with the incarnation under which it calls: trainers with the trainer
  // group's.
  std::vector<Worker> Callers(const Job& job) const;

  // verbs.cc: what people do to a job after its Submit.
  void EndPause(Instant now, Job& job);
  // OK if the queue has freed the data of the ended job.
  absl::Status CheckFreed(const Job& job, absl::string_view verb) const;

  // controller.cc: what comes in, and the store.
  absl::Status CheckQuota(const std::string& owner, std::optional<uint32_t> max_jobs) const;
  absl::Status LoadJob(meta::Store* store, Instant now, const std::string& id);
  void ApplyHeartbeat(Instant now, Daemon& daemon, const HeartbeatInput& input);
  void ApplyProgress(Instant now, Job& job, const Worker& worker, const Progress& progress);
  void ApplyStepReport(Instant now, Job& job, const std::string& daemon, const StepReport& step);
  // Records the job's present trainer group.
  void AddTrainerGroup(Job& job);
  // Raises an event for each spell without signal and each collapse, once.
  void WatchLearning(Instant now, Job& job, const StepSignal& step);
  // A trainer group begins with step k. Drops the reports of earlier groups about that step and
  // later ones, which are trained again.
  void BeginGroup(Job& job, TrainerGroup& group, int64_t k);
  // Steps before the newest were dropped or added, step k first.
  void OnStepsRewritten(Job& job, int64_t k);
  // The same for the late reports that ApplyStepReport() has added.
  void FinishLateSteps(Job& job);
  // Bounds the reports that are kept of a long run. The first kRewardSteps and the newest
  // kStepsKept all stay. Of the steps between them, each S-th stays, where S is the smallest power
  // of two that leaves at most kStepsKept / 2 of them. The others are added to JobRecord::folded.
  void ThinSteps(Job& job);
  // Stores an event of the job.
  void Emit(Instant now, Job& job, Severity severity, absl::string_view role,
            const std::string& daemon, absl::string_view code, std::string message);
  // Marks the job as changed: its records are stored by the next Take().
  void MarkChanged(Job& job);
  void Save(const Daemon& daemon);
  // Removes the daemons that were lost long ago and work for no job, and their records.
  void ForgetDaemons(Instant now);
  // The daemons that a job names whose end is not over: its workers, and its queue until that has
  // freed the job's data.
  std::set<std::string> ListWorking() const;
  // Adds a put to the transaction, with a compare that fails if another process has changed the
  // key.
  void PutGuarded(std::string key, std::string value);
  void RemoveGuarded(const std::string& key);

  std::map<std::string, Job> jobs_;           // By id.
  std::map<std::string, std::string> names_;  // To ids: the job that took each name last.
  std::set<std::string> active_;              // Jobs whose stage is not kOver.
  int64_t next_order_ = 0;                    // JobRecord::order of the next job.
  std::function<DaemonQuota(const std::string& submitter)> quota_of_;
  Fleet fleet_;
  // By daemon id; steps_stored and events_stored are left empty.
  std::map<std::string, DesiredState> desired_;
  bool staff_due_ = true;  // StaffJobs() is to run in the next Take().
  WantedDaemons wanted_;

  Outbox out_;
  std::set<std::string> unsaved_;             // Ids of the jobs whose records are to be stored.
  std::map<std::string, int64_t> revisions_;  // By key: the revision of its last guarded put.
  // Keys of the guarded puts that are not committed yet. OnCommitted() sets their revisions.
  std::vector<std::string> guarded_;
};

}  // namespace sluice::controller
