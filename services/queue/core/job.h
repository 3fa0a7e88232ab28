#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "services/queue/core/admission.h"
#include "services/queue/core/archive.h"
#include "services/queue/core/batch_line.h"
#include "services/queue/core/callers.h"
#include "services/queue/core/counters.h"
#include "services/queue/core/engines.h"
#include "services/queue/core/event.h"
#include "services/queue/core/failures.h"
#include "services/queue/core/group_table.h"
#include "services/queue/core/leases.h"
#include "services/queue/core/lineage.h"
#include "services/queue/core/parked_calls.h"
#include "services/queue/core/prompts.h"
#include "services/queue/core/reads.h"
#include "services/queue/core/staleness.h"
#include "services/queue/core/task_queue.h"
#include "services/queue/core/types.h"

namespace sluice::queue {

// The state machine of one job: events in, effects out. It holds all that the queue knows of the
// job; payload bytes are shared with whoever reads them. Single-threaded: the owner calls one
// method at a time. No clock, no I/O, no thread; random numbers (lease ids) come from a seed, so
// the same events give the same effects.
//
// The state lies in parts that each keep their own rules: Callers, Engines, GroupTable, TaskQueue,
// BatchLine, ParkedCalls and Failures. Job carries out the calls on them, one file for each call.
//
// In comments and messages K is the number of trained steps, H(k) the hash over all batches below
// step k, B the groups of a step, G the members of a group, T the straggler time, eta max_staleness
// and eta_adm the admission staleness.
class Job {
 public:
  struct Options {
    std::string id;                  // 32 hex digits.
    uint32_t queue_incarnation = 1;  // At first; each Restarted event brings a newer one.
    uint64_t seed = 0;               // Of lease ids.
  };

  // Whether this build can run a job with this spec. If not, INVALID_ARGUMENT names the field, its
  // value and what to do.
  static absl::Status CheckSpec(const Spec& spec);
  // Bytes that a job must be able to reserve to move at all: the worst case of the steps in its
  // admission window and one more.
  static uint64_t NeededBytes(const Spec& spec);

  // `spec` passed CheckSpec; `rows` holds its sources. The first event is SetJob with the same
  // spec.
  Job(Options options, Spec spec, std::shared_ptr<const RowSource> rows);
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  // The one way in which state changes. Answers to this call and to parked calls are appended to
  // `effects`.
  void Step(const Event& event, Effects* effects);
  // When a Tick is due at the latest; infinite: none is.
  Instant NextWake() const;

  // The whole state as bytes. A job that is made with the same options and rows, and loads these
  // bytes, behaves as this one from there on. Payload is shared, not copied.
  Encoded Dump(Payload payload) const;
  // Loads a dump into a job that saw no event yet. DATA_LOSS: the bytes are no dump, and the job is
  // of no use then.
  absl::Status Load(absl::string_view head, std::vector<PayloadRun> payload);

  // Reads. LEASE_LOST: neither `lease` nor another lease of the caller covers a want's owner.
  // `controller`: the caller needs no lease.
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
  // Every broken rule, computed anew from all the parts. Empty: all is well.
  std::vector<std::string> FindViolations() const;
  // Whether the caller may Watch the job. ABORTED FENCED: a newer incarnation of it was listed.
  // UNAVAILABLE: it is not listed.
  absl::Status CheckKnown(const Caller& caller) const { return callers_.CheckKnown(caller); }
  absl::Status CheckWasListed(const Caller& caller) const {
    return callers_.CheckWasListed(caller);
  }

  const std::string& id() const { return options_.id; }
  const Spec& spec() const { return spec_; }
  // Bytes that may be reserved: the quota, or the share of the daemon's memory where that is less.
  uint64_t allowed_bytes() const { return std::min(spec_.quota_bytes, share_bytes_); }
  uint64_t reserved_bytes() const { return groups_.reserved_bytes(); }
  const Ledger& ledger() const { return ledger_; }
  const Counters& counters() const { return counters_; }
  Phase phase() const { return phase_; }
  int64_t version() const { return batches_.version(); }  // K
  uint32_t queue_incarnation() const { return queue_incarnation_; }
  Instant now() const { return now_; }  // Of the last event.
  Space space() const { return space_; }
  const std::map<int64_t, Batch>& batches() const { return batches_.batches(); }
  size_t groups() const { return groups_.size(); }  // In memory.
  uint64_t stored_bytes() const { return groups_.stored_bytes(); }
  // Null: not in memory.
  const Group* group(uint64_t ordinal) const { return groups_.FindOrdinal(ordinal); }

 private:
  friend struct Access;    // dump.cc
  friend class Explainer;  // Reads only.

  // job.cc: handles one event, and then serves the parked calls.
  void Dispatch(const Event& event);
  template <typename T>
  void Finish(uint64_t call, absl::StatusOr<T> answer);
  void Answer(uint64_t call, Reply reply) {
    effects_->answers.emplace_back(call, std::move(reply));
  }
  void OnTick();
  void Park(const Event& event, absl::Duration wait, ParkedCalls::Input input);
  void ServeParked();
  // Answers the call with what it waits for.
  void EndParked(const ParkedCalls::Call& call);

  // job_set_job.cc
  absl::StatusOr<SetJobAnswer> OnSetJob(const SetJob& input);
  void SetWorkers(const std::vector<Worker>& workers);
  void Close();

  // job_renew.cc, job_release.cc
  absl::StatusOr<RenewAnswer> OnRenew(const Caller& caller, const Renew& input);
  absl::StatusOr<ReleaseAnswer> OnRelease(const Caller& caller, const Release& input);
  // Ends a lease whose holder gave it back or is gone. Another worker gets what it covers; if that
  // is a task, only after the time `not_before`.
  void EndLease(const Id16& id, LeaseEnd how, ReleaseReason reason, absl::Duration not_before,
                const std::string& why = "");

  // job_admit.cc
  void OnAdmit(const Event& event, const Admit& input);
  std::optional<Reply> TryAdmit(const Caller& caller, const Admit& input);
  std::optional<Reply> TryAdmitOwn(const Caller& caller, const Admit& input);
  void GrantUnheld(const Caller& caller, const Engines::Engine& engine, uint32_t room,
                   std::vector<queue::Grant>& grants);
  void GrantNew(const Caller& caller, uint32_t room, std::vector<queue::Grant>& grants);
  void GrantMember(const Group& group, uint32_t member, const Caller& caller,
                   std::vector<queue::Grant>& grants);
  const Group& OpenGroup(const RowRef& row, std::optional<Row> own, int64_t step);
  bool HasRoomForGroup() const;
  // The last step all of whose slots may be admitted to. None: no engine counts.
  std::optional<int64_t> WindowEnd() const;
  // The step that the next group is admitted to. None: all slots of the window are taken.
  std::optional<int64_t> FindFreeStep() const;
  // Moves groups that the cut left behind to slots of steps to come.
  void MoveLateSlots();

  // job_put.cc, job_put_result.cc
  PutAnswer OnPut(const Caller& caller, const Put& input);
  absl::Status PutRecord(const Caller& caller, const Record& record, uint64_t* watermark,
                         bool* repeat);
  absl::Status PutPiece(const Caller& caller, const Record& record, const Group& group,
                        uint64_t* watermark, bool* repeat);
  absl::Status PutFields(const Caller& caller, const Record& record, const Group& group,
                         bool* repeat);
  absl::Status PutResult(const Caller& caller, const Record& record, const Group& group,
                         bool* repeat);
  absl::Status CheckRepeatedResult(const Record& record, const Group& group);
  absl::Status CheckResult(const Group& group, const LeaseEntry& entry,
                           const TaskQueue::StagedFields& staged) const;
  void FinishTask(const Group& group, uint32_t member, uint32_t task);
  void FailTask(const Group& group, uint32_t member, uint32_t task, bool use_try,
                absl::Duration not_before, const std::string& cause);
  // LEASE_LOST: the caller does not hold the member, or (no member) any member of the group.
  absl::Status CheckLease(const Caller& caller, const Id16& lease, const TrajectoryRef& ref,
                          const Group& group);
  absl::Status GroupGoneError(const Id16& lease, const TrajectoryRef& ref) const;
  // Counts the conflict and raises an alarm.
  absl::Status ConflictError(const TrajectoryRef& ref, const std::string& what);

  // job_seal.cc, job_drop.cc
  Item SealMember(const Caller& caller, const SealItem& item);
  absl::Status CheckSeal(const Caller& caller, const SealItem& item, const Group& group);
  Item DropWork(const Caller& caller, const DropItem& item);

  // job_groups.cc: how members and groups end.
  // Counts a member out and ends its lease and tasks. The caller decides about its group.
  void EndMember(const Group& group, uint32_t member, const std::string& reason);
  void DropMember(const Group& group, uint32_t member, const std::string& reason);
  void DropGroup(const Group& group, const std::string& reason);
  void DropUnscorable(const Group& group, const std::string& cause, bool row_at_fault);
  // Drops a group whose work was lost through no fault of its prompt, which is drawn again.
  void DropLostGroup(const Group& group);
  // After a member or task of the group ended: drops the group for `reason` if too few members are
  // left. If all of them are scored, it gets its second wave or is completed. With the policy
  // `shrink`, an overdue group first loses the members that are not scored yet, if enough others
  // are.
  void DropOrCompleteGroup(const Group& group, const std::string& reason);
  // The first wave is scored: whether the second one is drawn.
  bool NeedsSecondWave(const Group& group) const;
  void CompleteGroup(const Group& group);
  Row ReadRow(const Group& group) const;
  const std::string& SourceName(const Group& group) const;
  LengthBin& LengthBinOf(const Group& group, const GroupMember& member);

  // job_stragglers.cc
  void HandleStragglers();
  void HandleOverdue(const Group& group);
  void ShrinkGroup(const Group& group);
  void HandleStalled(const Group& group, uint32_t member);

  // job_lease_tasks.cc
  void OnLeaseTasks(const Event& event, const LeaseTasks& input);
  std::optional<Reply> TryLeaseTasks(const Caller& caller, const LeaseTasks& input);
  TaskGrant GrantTask(const Caller& caller, const TaskQueue::Key& key);
  std::vector<uint32_t> FindUnused(const std::vector<uint32_t>& earlier) const;
  void RescoreAbandoned();

  // job_peek.cc
  // What becomes of the letter's prompt, in words.
  std::string FateOf(const TaskQueue::DeadLetter& letter) const;
  std::vector<PeekRow> PeekLineage() const;

  // job_retask.cc
  absl::StatusOr<RetaskAnswer> OnRetask(const Caller& caller, const Retask& input);
  bool RescoreGroup(const Group& group, const std::vector<bool>& tasks);
  void RescoreTask(const Group& group, uint32_t member, uint32_t task);
  uint32_t ReadmitPrompts(const std::vector<GroupId>& groups);

  // job_acquire_batch.cc, job_cut.cc
  void OnAcquireBatch(const Event& event, const AcquireBatch& input);
  std::optional<Reply> TryAcquireBatch(const Caller& caller, const AcquireBatch& input);
  AcquireBatchAnswer HandOutSlice(const Caller& caller, Batch& batch, uint32_t from);
  absl::Status DescribeEnd(int64_t k) const;
  void FillBatch(int64_t k, bool stream);
  void FillWithRows(Batch& batch);
  // Decides for each member whether and how batch k can train it. Members that no batch from k on
  // can train are dropped. None: the whole group was dropped, as too few members were left.
  std::optional<std::vector<Verdict>> JudgeGroup(const Group& group, int64_t k);
  void FreezeGroup(Batch& batch, const Group& group, std::vector<Verdict> verdicts);
  std::vector<double> CollectPool(const Group& group) const;
  bool IsHeldUp(int64_t k) const;
  void CloseBatch(Batch& batch);
  // Drops members and groups that are too old for every batch to come.
  void DropUntrainable();
  // Whether all prompts are drawn and no group is open.
  bool SourcesEnded() const;

  // job_apply.cc, job_advance_version.cc, job_durable.cc
  absl::StatusOr<ApplyAnswer> OnApply(const Caller& caller, const queue::Apply& input);
  absl::Status ApplyBatch(const Caller& caller, const queue::Apply& input);
  absl::Status CheckStaleness(const Batch& batch);
  void CountApplied(const Batch& batch, int sign);
  std::string MakeCursor() const;
  absl::StatusOr<AdvanceVersionAnswer> OnAdvanceVersion(const Caller& caller,
                                                        const AdvanceVersion& input);
  absl::StatusOr<DurableAnswer> OnDurable(const Caller& caller, const Durable& input);
  void MakeDurable(int64_t version);

  // job_restore.cc, job_restart.cc
  absl::StatusOr<RestoreAnswer> OnRestore(const Caller& caller, const Restore& input);
  absl::Status CheckRestored() const;
  absl::Status RestoreLost(const Cursor& cursor);
  void RestoreReplay(int64_t version);
  void RestoreRequeue(int64_t version, const std::string& hash);
  bool LostPayloadFrom(int64_t version) const;
  void UnapplyBatch(Batch& batch);
  void ReturnGroups(const Batch& batch);
  void OnRestarted(const Restarted& input);
  void RemoveLostPayload();

  bool HoldsLeaseOn(const Caller& caller, const Group& group) const;

  // Constant, but for the spec's max_steps.
  const Options options_;
  Spec spec_;

  // What the controller and the daemon said last.
  bool set_ = false;  // A SetJob has come.
  uint64_t revision_ = 0;
  Phase phase_ = Phase::kOpen;
  uint32_t queue_incarnation_;
  Space space_ = Space::kOk;             // On the disk of the log.
  uint64_t share_bytes_ = ~uint64_t{0};  // Of the daemon's memory.

  // The last Restore: the incarnation of the trainers that called it (-1: none did), the answer to
  // it, and the step after the last batch that a replay hands out again (without a replay, the
  // restored version).
  int64_t restored_ = -1;
  RestoreAnswer restore_answer_;
  int64_t replay_end_ = 0;

  // Ledger.
  Ledger ledger_;
  Counters counters_;
  std::map<int64_t, int64_t> staleness_;  // Trained tokens by staleness, along the lineage.

  // The parts, each after those that it uses.
  Prompts prompts_;
  LeaseTable leases_;
  Callers callers_;
  Engines engines_;
  GroupTable groups_;
  TaskQueue tasks_;
  BatchLine batches_;
  Lineage lineage_;
  ParkedCalls parked_;
  AdmissionWindow admission_;
  Failures failures_;

  // Of the event at hand.
  Instant now_;
  Effects* effects_ = nullptr;
};

}  // namespace sluice::queue
