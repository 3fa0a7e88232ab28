#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "services/queue/core/admission.h"
#include "services/queue/core/archive.h"
#include "services/queue/core/batch.h"
#include "services/queue/core/event.h"
#include "services/queue/core/group.h"
#include "services/queue/core/leases.h"
#include "services/queue/core/prompts.h"
#include "services/queue/core/slots.h"
#include "services/queue/core/staleness.h"
#include "services/queue/core/types.h"

namespace sluice::queue {

// What Get reads of one owner. Without member: the group's prompt. No names: all; to 0: to the end.
struct Want {
  TrajectoryRef owner;
  std::vector<std::string> names;
  uint64_t from = 0, to = 0;
};
struct ReadAnswer {
  // In the order of wants; one per stored piece, one for whole fields.
  std::vector<Record> records;
  std::vector<Want> missing;
};

// What Watch tells first, and again when it changed.
struct WatchState {
  uint32_t queue_incarnation = 0;
  int64_t trainer = 0, version = 0, end = 0;
  Phase phase = Phase::kOpen;
  std::vector<Loaded> published;
};

struct StatsAnswer {
  Ledger ledger;
  std::map<std::string, uint64_t> groups, slots, bytes;
  int64_t version = 0, lowest = -1;  // lowest -1: no live engine.
  double admission_staleness = 0;
  std::map<std::string, uint32_t> waiting;
  std::map<std::string, int64_t> staleness;
  std::map<std::string, double> length_ratio;  // By source and by source/octile of length.
  std::map<std::string, double> acceptance;    // Trained over sealed members, likewise.
  // What admission_staleness rests on; what to do if max_staleness is too small.
  std::string advice;
};

enum class PeekWhat { kGroups = 1, kTasks, kBatches, kPrompts, kViolations };
struct PeekRow {
  Node node;
  std::string state, worker;
  absl::Duration age;
  std::string json;
};

// The bias meter: what was sealed against what of it was trained.
struct LengthBin {
  int64_t sealed = 0, sealed_tokens = 0, trained = 0, trained_tokens = 0;

  LengthBin& operator+=(const LengthBin& other) {
    sealed += other.sealed, sealed_tokens += other.sealed_tokens, trained += other.trained,
        trained_tokens += other.trained_tokens;
    return *this;
  }
  // Trained over sealed members; there are sealed ones.
  double acceptance() const { return static_cast<double>(trained) / static_cast<double>(sealed); }
  // Mean length of the trained over that of the sealed; unset: nothing to compare yet.
  std::optional<double> ratio() const {
    if (trained == 0 || sealed_tokens == 0) return std::nullopt;
    return static_cast<double>(trained_tokens) / static_cast<double>(trained) /
           (static_cast<double>(sealed_tokens) / static_cast<double>(sealed));
  }
};

// Counts for people and metrics; no decision reads them.
struct Counters {
  std::map<std::string, int64_t> fenced;          // Calls, by role.
  std::map<std::string, int64_t> denied;          // Calls of workers not listed, by role.
  std::map<std::string, int64_t> repeats;         // Calls, by name.
  std::map<std::string, int64_t> leases_expired;  // By kind.
  std::map<std::string, int64_t> violations;      // By rule.
  std::map<std::string, int64_t> filtered;        // Groups: all_zero, all_one, other.
  // Trainable tokens that no batch got, by reason; masked ones too.
  std::map<std::string, int64_t> tokens_dropped;
  // Trajectories by staleness: gained until sealed, since, in all.
  std::map<int64_t, int64_t> in_flight, in_queue, at_cut;
  // By source and length, in eighths of the longest answer allowed: members, and the tokens they
  // sampled (masked ones too).
  std::map<std::string, std::array<LengthBin, 8>> lengths;
  int64_t quarantined = 0, reissued = 0, stalled = 0, rescored = 0, shrunk = 0;
  std::map<std::string, int64_t> alarms;  // By code, those that were not told too.
};

// The state machine of one job: events in, effects out. It holds all that the queue knows of the
// job; payload bytes are shared with whoever reads them. Single-threaded: the owner calls one
// method at a time. No clock, no I/O, no thread; random numbers (lease ids) come from a seed, so
// the same events give the same effects.
class Job {
 public:
  struct Options {
    std::string id;                  // 32 hex digits.
    uint32_t queue_incarnation = 1;  // Until Restarted tells a newer one.
    uint64_t seed = 0;               // Of lease ids.
  };

  // Whether this build can keep what the spec asks for. INVALID_ARGUMENT names the field, value and
  // what to do.
  static absl::Status Check(const Spec& spec);
  // Bytes that a job must be able to reserve to move at all: the worst case of the steps in its
  // admission window and one more.
  static uint64_t NeededBytes(const Spec& spec);

  // `spec` passed Check; `rows` holds its sources. The first event is SetJob with the same spec.
  Job(Options options, Spec spec, std::shared_ptr<const RowSource> rows);

  // The one way state changes. Answers to calls, this one's or parked ones', are appended to
  // `effects`.
  void Step(const Event& event, Effects* effects);
  // When a Tick is due at the latest; infinite: none.
  Instant NextWake() const;

  // All that decisions read, as bytes; a job made with the same options and data that loads them
  // behaves as this one from there on. Payload is shared, not copied.
  Encoded Dump(Payload payload) const;
  // Into a job that saw no event yet. DATA_LOSS: not a dump; the job is of no use then.
  absl::Status Load(absl::string_view head, std::vector<PayloadRun> payload);

  // Reads. LEASE_LOST: neither `lease` nor another lease of the caller covers a want's owner.
  // `controller`: needs no lease.
  absl::StatusOr<ReadAnswer> Read(const Caller& caller, bool controller, const Id16& lease,
                                  const std::vector<Want>& wants) const;
  WatchState watch() const;
  StatsAnswer Stats() const;
  // `text`: with the token ids of prompts and answers, which the caller decodes.
  std::vector<PeekRow> Peek(PeekWhat what, const std::string& state, Instant now,
                            bool text = false) const;
  // What waits on what, joined by node: an edge for each parked call and each lease, and those
  // between batch, groups, members and tasks that lead from one to the other, groups in the order
  // of their slots. About kMaxEdges at most.
  std::vector<WaitEdge> Explain(Instant now) const;
  static constexpr size_t kMaxEdges = 8192;
  // The live fsck: every broken rule, recomputed from the parts. Empty: all is well. Looks at
  // everything.
  std::vector<std::string> Violations() const;
  // What Watch asks before it tells anything. ABORTED FENCED; UNAVAILABLE: not listed.
  absl::Status Known(const Caller& caller) const;

  const std::string& id() const { return options_.id; }
  const Spec& spec() const { return spec_; }
  // Bytes that may be reserved: the quota, or the share of the daemon's memory where that is less.
  uint64_t allowed_bytes() const { return std::min(spec_.quota_bytes, share_bytes_); }
  uint64_t reserved_bytes() const { return reserved_bytes_; }
  const Ledger& ledger() const { return ledger_; }
  const Counters& counters() const { return counters_; }
  Phase phase() const { return phase_; }
  int64_t version() const { return version_; }
  uint32_t queue_incarnation() const { return queue_incarnation_; }
  Instant now() const { return now_; }  // Of the last event.
  Space space() const { return space_; }
  const std::map<int64_t, Batch>& batches() const { return batches_; }
  size_t groups() const { return groups_.size(); }  // Resident.
  uint64_t stored_bytes() const { return stored_bytes_; }
  // Null: not resident.
  const Group* group(uint64_t ordinal) const;

 private:
  friend struct Access;  // dump.cc

  struct Engine {
    int64_t incarnation = 0;
    Loaded loaded;
    Instant renewed;
  };
  struct Parked {
    uint64_t call = 0;
    Caller caller;
    Instant since, deadline;
    std::variant<Admit, LeaseTasks, AcquireBatch> input;
  };
  struct DeadLetter {
    TrajectoryRef ref;
    RowRef row;
    std::string task, worker, cause;
    Instant at;
    bool readmitted = false;
  };
  // Groups of a source that were dropped as unscorable since its last one that was scored.
  struct UnscorableRun {
    uint64_t groups = 0;
    uint64_t first = 0;  // The row of the first of them.
    std::string source;  // Its name.
    std::string cause;   // What the reward said of it.

    std::string Describe() const;
  };
  struct TaskKey {  // Ready tasks are served oldest group first.
    uint64_t group = 0;
    uint32_t member = 0, task = 0;
    auto operator<=>(const TaskKey&) const = default;
  };

  using ReadyKey = std::pair<std::string, std::optional<uint32_t>>;  // Pool, reward generation.

  // job.cc, job_calls.cc: jobs, callers, leases, time, waiting.
  void Dispatch(const Event& event);
  template <typename T>
  void Finish(uint64_t call, absl::StatusOr<T> answer);
  void Answer(uint64_t call, Reply reply) {
    effects_->answers.emplace_back(call, std::move(reply));
  }
  absl::Status Fence(const Caller& caller, WorkerRole role);
  absl::Status Listed(const Caller& caller, WorkerRole role);
  absl::Status Admitted(const Caller& caller, WorkerRole role);  // Both.
  absl::Status NeedRestored() const;
  const Reply* Kept(const Caller& caller, const Id16& request) const;
  void Keep(const Caller& caller, const Id16& request, Reply reply);
  absl::StatusOr<SetJobAnswer> OnSetJob(const SetJob& input);
  void SetWorkers(const std::vector<Worker>& workers);
  void Close();
  absl::StatusOr<RenewAnswer> OnRenew(const Caller& caller, const Renew& input);
  absl::StatusOr<ReleaseAnswer> OnRelease(const Caller& caller, const Release& input);
  void EndLease(const Id16& id, LeaseEnd how, ReleaseReason reason, absl::Duration not_before);
  void OnTick();
  void Pump();
  void Park(const Event& event, absl::Duration wait,
            std::variant<Admit, LeaseTasks, AcquireBatch> input);
  void EndParked(const Parked& parked);

  // job_admit.cc: engines, slots, grants.
  void OnAdmit(const Event& event, const Admit& input);
  std::optional<Reply> TryAdmit(const Caller& caller, const Admit& input);
  void GrantUnheld(const Caller& caller, const Engine& engine, uint32_t room,
                   std::vector<queue::Grant>& grants);
  void GrantNew(const Caller& caller, uint32_t room, std::vector<queue::Grant>& grants);
  std::optional<Reply> TryAdmitOwn(const Caller& caller, const Admit& input);
  void Open(Group& group);  // Takes the group's slot and bytes.
  void GrantMember(Group& group, uint32_t member, const Caller& caller,
                   std::vector<queue::Grant>& grants);
  std::optional<int64_t> Lowest() const;  // L
  std::optional<int64_t> NewestLoaded() const;
  // The caller's engine if it may be admitted, else null.
  const Engine* Serving(const Caller& caller) const;
  bool Lives(const Engine& engine) const;  // It renews, and holds a version of the branch.
  bool CountsForL(const Engine& engine) const;
  std::optional<int64_t> FreeStep() const;
  std::optional<int64_t> WindowEnd() const;  // Last step all of whose slots may be admitted to.
  Group& OpenGroup(const RowRef& row, int64_t step, uint32_t size);
  void Reslot();
  void MoveSlot(Group& group, int64_t step);
  void AddIndexes(const Group& group);
  void RemoveIndexes(const Group& group);
  Row RowOf(const Group& group) const;
  const std::string& SourceName(const Group& group) const;

  // job_put.cc: what rollouts write.
  PutAnswer OnPut(const Caller& caller, const Put& input);
  absl::Status PutRecord(const Caller& caller, const Record& record, uint64_t* watermark,
                         bool* repeat);
  absl::Status PutPiece(const Caller& caller, const Record& record, Group& group,
                        uint64_t* watermark, bool* repeat);
  absl::Status PutFields(const Caller& caller, const Record& record, Group& group, bool* repeat);
  absl::Status CheckStamps(const Piece& piece) const;
  size_t Octile(const GroupMember& member) const;
  absl::Status CheckLease(const Caller& caller, const Id16& lease, const TrajectoryRef& ref,
                          const Group& group);
  absl::Status Absent(const Id16& lease, const TrajectoryRef& ref) const;
  absl::Status Conflict(const TrajectoryRef& ref, const std::string& what);
  Item SealOne(const Caller& caller, const SealItem& item);
  Item DropOne(const Caller& caller, const DropItem& item);
  void DropMember(Group& group, uint32_t member, const std::string& reason);
  void DropGroup(Group& group, const std::string& reason);
  void CountUnusable(const RowRef& row, const std::string& reason);
  void Fail(const char* code, absl::Status failure);
  void RaiseAlarm(const char* code, std::string message);
  void FailWithoutPrompts(const std::string& reason, const std::string& hint);
  void NoteQuarantined(const Group& group, const std::string& reason, const std::string& why);
  void CountDropped(Group& group, uint32_t member, const std::string& reason);
  void EndMember(Group& group, uint32_t member, const std::string& reason);
  // After a member left: too few, or complete now.
  void Settle(Group& group, const std::string& reason);
  void Complete(Group& group);
  void Reject(Group& group, const std::string& why);
  void Erase(Group& group);

  // job_stragglers.cc: what time does to groups that are late and members that stand still.
  void LookAtStragglers();
  void Overdue(Group& group);
  void Shrink(Group& group);
  void Stall(Group& group, uint32_t member);
  void Progressed(const Id16& lease);
  void CountStarved(const Group& group, const std::string& reason);

  // job_tasks.cc: tasks of members and groups. `member`: kWholeGroup for a group's.
  void OnLeaseTasks(const Event& event, const LeaseTasks& input);
  std::optional<Reply> TryLeaseTasks(const Caller& caller, const LeaseTasks& input);
  // That a task needs and nothing will write; empty: none.
  std::string MissingField(const GroupMember& member) const;
  static TaskProgress& TaskOf(Group& group, uint32_t member, uint32_t task);
  void StartTasks(Group& group, uint32_t member);
  void ResetTask(uint32_t task, Granularity granularity, TaskProgress& progress);
  void QueueTask(Group& group, uint32_t member, uint32_t task, absl::Duration not_before);
  ReadyKey ReadyKeyOf(const TaskKey& key) const;
  void InsertReady(const TaskKey& key);
  void EraseReady(const TaskKey& key, const TaskProgress& task);
  void Pin(Group& group, std::optional<uint32_t> generation);
  TaskGrant GrantTask(const Caller& caller, const TaskKey& key);
  void ReadyTasks(Group& group, uint32_t member);
  void ReadyGroupTasks(Group& group);
  void EndTask(Group& group, uint32_t member, uint32_t task);
  void EndTasks(Group& group, uint32_t member);
  Instant AbandonedAt(uint32_t generation) const;
  void LookAtGenerations();
  Instant NextGenerationCheck() const;

  // job_task_results.cc: what rewards write.
  absl::Status RepeatedResult(const Record& record, const Group& group);
  absl::Status CheckResult(const Group& group, const LeaseEntry& entry,
                           const std::vector<std::pair<uint32_t, Field>>& staged) const;
  void Store(Group& group, uint32_t whose, Field field);
  absl::Status PutTask(const Caller& caller, const Record& record, Group& group, bool* repeat);
  void FinishTask(Group& group, uint32_t member, uint32_t task);
  void DropUnscorable(Group& group, const std::string& cause, bool row_at_fault);
  void CountUnscorable(const Group& group, const std::string& cause);
  const UnscorableRun* LongestUnscorable() const;  // Null: each source's last group was scored.
  void FailTask(Group& group, uint32_t member, uint32_t task, bool use_try,
                absl::Duration not_before, const std::string& cause);

  // job_retask.cc: scoring again, drawing again.
  absl::StatusOr<RetaskAnswer> OnRetask(const Caller& caller, const Retask& input);
  // By task: it, and what rests on what it writes.
  std::vector<bool> Affected(const std::string& task) const;
  bool Rescore(Group& group, const std::vector<bool>& tasks);
  void Rescore(Group& group, uint32_t member, uint32_t task);
  uint32_t Readmit(const std::vector<GroupId>& groups);

  // job_cut.cc, job_batch.cc: the cut, handing out, training, versions.
  void OnAcquire(const Event& event, const AcquireBatch& input);
  std::optional<Reply> TryAcquire(const Caller& caller, const AcquireBatch& input);
  void Fill(int64_t k, bool stream);
  void FillRows(Batch& batch);
  // What the cut makes of each member. Members that no batch from k on can train are dropped; none:
  // the whole group was.
  std::optional<std::vector<Verdict>> JudgeGroup(Group& group, int64_t k);
  void Freeze(Batch& batch, Group& group, std::vector<Verdict> verdicts);
  std::vector<double> Pool(const Group& group) const;
  void TakeSlot(Group& group, int64_t k);
  // Straggler policy wait: a group that holds a slot of step k still runs.
  bool HeldUp(int64_t k) const;
  void CloseBatch(Batch& batch);
  void Evict();
  bool SourcesEnded() const;
  absl::Status DescribeEnd(int64_t k) const;
  AcquireBatchAnswer Slice(const Caller& caller, Batch& batch, uint32_t from);
  absl::StatusOr<ApplyAnswer> OnApply(const Caller& caller, const queue::Apply& input);
  absl::StatusOr<AdvanceVersionAnswer> OnAdvance(const Caller& caller, const AdvanceVersion& input);
  absl::StatusOr<DurableAnswer> OnDurable(const Caller& caller, const Durable& input);
  void MakeDurable(int64_t version);
  std::string HashAt(int64_t version) const;
  void CountApplied(const Batch& batch, int sign);

  // job_edges.cc: what a call waits on, `since` when.
  WaitEdge AdmitEdge(const Caller& caller, Instant since) const;
  WaitEdge TaskEdge(const Caller& caller, Instant since) const;
  WaitEdge BatchEdge(const Caller& caller, int64_t k, Instant since) const;
  bool TaskEdge(const std::string& owner, const std::vector<TaskProgress>& tasks,
                const Group& group, WaitEdge& edge) const;
  WaitEdge GroupEdge(const Node& waiter, const Group& group, Instant since) const;

  // job_explain.cc: the edges that Explain joins them by.
  std::string Progress(int64_t k) const;  // "batch 75 has 63 of 64 groups"
  WaitEdge ParkedEdge(const Parked& parked) const;
  void ExplainBatch(int64_t k, Instant now, std::vector<WaitEdge>& edges) const;
  void ExplainGroup(const Group& group, Instant now, std::vector<WaitEdge>& edges) const;
  WaitEdge MemberEdge(const Group& group, uint32_t member, Instant now) const;
  WaitEdge WorkEdge(const Group& group, uint32_t member, uint32_t task, Instant now) const;

  // job_restart.cc: the daemon came back; the disk of its log.
  void OnRestarted(const Restarted& input);
  void LosePayload();
  void LoseGroup(Group& group);
  void OnDiskSpace(const DiskSpace& input);

  // job_restore.cc: cursors and what a new gang does first.
  absl::StatusOr<RestoreAnswer> OnRestore(const Caller& caller, const Restore& input);
  absl::Status RestoreLost(const Cursor& cursor);  // The queue knows nothing of the job but this.
  void RestoreReplay(int64_t version);
  void RestoreRequeue(int64_t version, const std::string& hash);
  void Unapply(Batch& batch);
  void GiveBack(const Batch& batch);  // Its groups compete anew.
  std::string MakeCursor() const;

  bool Holds(const Caller& caller, const Group& group) const;
  Group* Find(const GroupId& id);
  const Group* Find(const GroupId& id) const;

  // Constant.
  const Options options_;
  Spec spec_;  // max_steps alone may change.

  uint32_t queue_incarnation_;
  Space space_ = Space::kOk;  // On the disk of the log.

  // Who.
  bool set_ = false;
  uint64_t revision_ = 0;
  Phase phase_ = Phase::kOpen;
  std::map<std::string, Worker> workers_;  // As listed last.
  std::map<std::string, int64_t> fence_;   // Highest incarnation ever listed, by worker.
  int64_t gang_ = 0;                       // The same of the trainers.
  std::map<std::string, Engine> engines_;
  // Answers by request id, newest last.
  std::map<std::string, std::deque<std::pair<Id16, Reply>>> kept_;
  std::map<std::string, uint32_t> generations_;  // Of each reward worker.
  std::map<uint32_t, Instant> generation_seen_;  // When a worker of it called last.

  // Versions.
  int64_t version_ = 0;    // K
  int64_t next_cut_ = 0;   // The lowest step whose batch is not closed.
  int64_t restored_ = -1;  // Incarnation that called Restore last.
  RestoreAnswer restore_answer_;
  std::optional<PolicyVersion> published_;
  std::map<int64_t, int64_t> reached_;  // Highest K by incarnation.
  Branch branch_;
  int64_t replay_end_ = 0;
  int64_t durable_ = 0;
  std::string durable_hash_ = std::string(32, '\0');  // H(durable_)

  // What is where.
  Prompts prompts_;
  SlotTable slots_;
  LeaseTable leases_;
  uint64_t next_group_ = 0;
  absl::flat_hash_map<uint64_t, std::unique_ptr<Group>> groups_;
  std::set<std::pair<int64_t, uint64_t>> open_;    // Open groups by (slot, ordinal).
  std::set<std::pair<int64_t, uint64_t>> unheld_;  // Those of them with a member nobody holds.
  // By (oldest version, ordinal): the order of the cut.
  std::set<std::pair<int64_t, uint64_t>> accepted_;
  // Resident groups by (source, index).
  std::map<std::pair<uint32_t, uint64_t>, std::set<uint64_t>> by_prompt_;
  // By pool and, once the group has one, its generation.
  std::map<ReadyKey, std::set<TaskKey>> ready_;
  std::set<std::pair<Instant, TaskKey>> delayed_;  // Ready later.
  std::deque<DeadLetter> dead_letters_;            // The last 1000.
  // When which open group has its straggler time behind it.
  std::deque<std::pair<Instant, uint64_t>> overdue_;
  // When to look whether a held member makes progress; may lag.
  std::set<std::pair<Instant, std::pair<uint64_t, uint32_t>>> stalling_;
  AdmissionWindow admission_;
  std::map<int64_t, Batch> batches_;  // Cut or being filled, until durable.
  // Prompts of the last freed batches, should an older checkpoint come back.
  std::map<int64_t, std::vector<RowRef>> freed_rows_;
  uint64_t reserved_bytes_ = 0, stored_bytes_ = 0;
  uint64_t share_bytes_ = ~uint64_t{0};  // Of the daemon's memory.

  // Books.
  Ledger ledger_;
  Counters counters_;
  std::map<int64_t, int64_t> staleness_;  // Trained tokens by staleness, along the lineage.
  uint64_t rejected_in_a_row_ = 0;
  std::map<uint32_t, uint64_t> rejected_of_source_;  // In a row, by source.
  // By source and row: draws in a row that were not trained.
  std::map<std::pair<uint32_t, uint64_t>, uint32_t> starved_;
  // Source and row of each prompt that no rollout could take. None of them is quarantined.
  std::set<std::pair<uint32_t, uint64_t>> unusable_;
  std::map<uint32_t, UnscorableRun> unscorable_;  // By source; absent: its last group was scored.
  absl::Status failure_;                          // Why the job cannot go on; OK while it can.

  // Waiting calls, oldest first.
  std::list<Parked> parked_;

  // Of the event at hand.
  Instant now_;
  Effects* effects_ = nullptr;
};

}  // namespace sluice::queue
