#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "services/queue/core/job.h"

// What all calls share: who may call, answers kept, leases, waiting, and what time does.
namespace sluice::queue {
namespace {
constexpr size_t kAnswersKept = 64;
constexpr absl::Duration kLongestWait = absl::Seconds(30);

const char* RoleName(WorkerRole role) {
  switch (role) {
    case WorkerRole::kController: return "controller";
    case WorkerRole::kRollout: return "rollout";
    case WorkerRole::kReward: return "reward";
    case WorkerRole::kTrainer: return "trainer";
    case WorkerRole::kNone: break;
  }
  return "worker";
}
}  // namespace

// Callers. ----------------------------------------------------------------------------------------

absl::Status Job::Fence(const Caller& caller, WorkerRole role) {
  int64_t highest = role == WorkerRole::kTrainer ? gang_ : 0;
  if (const auto it = fence_.find(caller.worker); it != fence_.end())
    highest = std::max(highest, it->second);
  if (caller.incarnation >= highest) return absl::OkStatus();
  ++counters_.fenced[RoleName(role)];
  return ErrorWith(absl::StatusCode::kAborted,
                   {.reason = "FENCED",
                    .hint = "a newer incarnation works for the job; stop",
                    .current = absl::StrCat(highest)},
                   absl::StrCat(caller.worker, " calls as incarnation ", caller.incarnation,
                                ", the job's is ", highest));
}

absl::Status Job::Listed(const Caller& caller, WorkerRole role) {
  const auto it = workers_.find(caller.worker);
  if (it == workers_.end() || it->second.incarnation != caller.incarnation) {
    ++counters_.denied[RoleName(role)];
    return ErrorWith(absl::StatusCode::kUnavailable,
                     {.reason = "NOT_LISTED", .retry_after = absl::Milliseconds(100)},
                     absl::StrCat(caller.worker, " (incarnation ", caller.incarnation,
                                  ") is not in the job's list of workers yet"));
  }
  if (role != WorkerRole::kNone && it->second.role != role) {
    ++counters_.denied[RoleName(role)];
    return Error(absl::StatusCode::kPermissionDenied, "WRONG_ROLE",
                 absl::StrCat(caller.worker, " is a ", RoleName(it->second.role),
                              "; the call is for a ", RoleName(role)));
  }
  return absl::OkStatus();
}

absl::Status Job::Admitted(const Caller& caller, WorkerRole role) {
  SLUICE_RETURN_IF_ERROR(Fence(caller, role));
  return Listed(caller, role);
}

absl::Status Job::Known(const Caller& caller) const {
  const auto fence = fence_.find(caller.worker);
  if (fence != fence_.end() && caller.incarnation < fence->second) {
    return ErrorWith(absl::StatusCode::kAborted,
                     {.reason = "FENCED", .current = absl::StrCat(fence->second)},
                     absl::StrCat(caller.worker, " calls as incarnation ", caller.incarnation,
                                  ", the job's is ", fence->second));
  }
  const auto it = workers_.find(caller.worker);
  if (it != workers_.end() && it->second.incarnation == caller.incarnation) return absl::OkStatus();
  return ErrorWith(absl::StatusCode::kUnavailable,
                   {.reason = "NOT_LISTED", .retry_after = absl::Milliseconds(100)},
                   absl::StrCat(caller.worker, " (incarnation ", caller.incarnation,
                                ") is not in the job's list of workers yet"));
}

absl::Status Job::NeedRestored() const {
  if (restored_ >= 0 && restored_ == gang_) return absl::OkStatus();
  return ErrorWith(
      absl::StatusCode::kFailedPrecondition,
      {.reason = "RESTORE_FIRST", .hint = "call Restore with the last checkpoint's cursor"},
      absl::StrCat("the gang of incarnation ", gang_, " has not called Restore"));
}

const Reply* Job::Kept(const Caller& caller, const Id16& request) const {
  const auto it = kept_.find(caller.worker);
  if (it == kept_.end()) return nullptr;
  for (const auto& [id, reply] : it->second) {
    if (id == request) return &reply;
  }
  return nullptr;
}

void Job::Keep(const Caller& caller, const Id16& request, Reply reply) {
  auto& kept = kept_[caller.worker];
  kept.emplace_back(request, std::move(reply));
  if (kept.size() > kAnswersKept) kept.pop_front();
}

// Leases. -----------------------------------------------------------------------------------------

absl::StatusOr<RenewAnswer> Job::OnRenew(const Caller& caller, const Renew& input) {
  const auto listed = workers_.find(caller.worker);
  const WorkerRole role = listed == workers_.end() ? WorkerRole::kNone : listed->second.role;
  SLUICE_RETURN_IF_ERROR(Admitted(caller, role));
  RenewAnswer answer{.ttl = leases_.ttl()};
  if (input.leases.empty()) {
    for (const Id16& id : leases_.HeldBy(caller.worker, caller.incarnation))
      leases_.Renew(id, now_);
  }
  for (const Id16& id : input.leases) {
    const LeaseEntry* entry = leases_.Find(id);
    // All ranks of a gang share a batch's lease.
    const bool mine = entry != nullptr && entry->incarnation == caller.incarnation &&
                      (entry->worker == caller.worker ||
                       (entry->kind == LeaseKind::kBatch && role == WorkerRole::kTrainer));
    if (mine) {
      leases_.Renew(id, now_);
    } else {
      answer.lost.push_back(id);
    }
  }
  if (const auto it = generations_.find(caller.worker); it != generations_.end())
    generation_seen_[it->second] = now_;
  if (role == WorkerRole::kRollout) {
    for (const Loaded& loaded : input.loaded) {
      if (loaded.policy != 0)
        return Error(absl::StatusCode::kInvalidArgument, "BAD_POLICY",
                     absl::StrCat("loaded names policy ", loaded.policy, "; the job has one"));
      engines_[caller.worker].loaded = loaded;
      engines_[caller.worker].incarnation = caller.incarnation;
    }
    if (const auto it = engines_.find(caller.worker); it != engines_.end())
      it->second.renewed = now_;
  }
  return answer;
}

absl::StatusOr<ReleaseAnswer> Job::OnRelease(const Caller& caller, const Release& input) {
  if (input.reason < ReleaseReason::kDrain || input.reason > ReleaseReason::kLost) {
    return Error(absl::StatusCode::kInvalidArgument, "BAD_REASON", "Release needs a reason");
  }
  ReleaseAnswer answer;
  std::vector<Id16> leases;
  if (!input.worker.empty()) {
    if (caller.incarnation != 0)
      return Error(absl::StatusCode::kPermissionDenied, "WRONG_ROLE",
                   "only the controller releases another worker's leases");
    leases = leases_.HeldBy(input.worker, input.incarnation);
    const auto engine = engines_.find(input.worker);
    if (engine != engines_.end() && engine->second.incarnation <= input.incarnation)
      engines_.erase(engine);
  } else {
    SLUICE_RETURN_IF_ERROR(Admitted(caller, WorkerRole::kNone));
    for (const Id16& id : input.leases) {
      const LeaseEntry* entry = leases_.Find(id);
      if (entry != nullptr && entry->worker == caller.worker) leases.push_back(id);
    }
    answer.repeat = leases.empty() && !input.leases.empty();
    if (answer.repeat) ++counters_.repeats["Release"];
  }
  for (const Id16& id : leases) {
    EndLease(id, LeaseEnd::kReleased, input.reason, input.not_before);
    ++answer.released;
  }
  return answer;
}

void Job::EndLease(const Id16& id, LeaseEnd how, ReleaseReason reason, absl::Duration not_before) {
  if (leases_.Find(id) == nullptr) return;  // Ended along with one before it.
  const LeaseEntry entry = *leases_.Find(id);
  leases_.End(id, how);
  if (entry.kind == LeaseKind::kBatch) {
    batches_.at(entry.batch).lease.reset();
    return;
  }
  Group& group = *groups_.at(entry.group);
  if (entry.kind == LeaseKind::kTask) {
    const bool use_try = reason == ReleaseReason::kFault || reason == ReleaseReason::kLost;
    FailTask(group, entry.member, entry.task, use_try, not_before,
             absl::StrCat(entry.worker,
                          how == LeaseEnd::kExpired ? " did not answer in time" : " gave it back"));
    return;
  }
  GroupMember& member = group.members[entry.member];
  // The prefix stays; the next attempt goes on behind it. Whole fields belong to the attempt that
  // wrote them.
  RemoveIndexes(group);
  member.lease.reset();
  member.state = MemberState::kReserved;
  member.since = now_;
  ++member.attempt;
  stored_bytes_ -= member.field_bytes;
  member.fields.clear();
  member.field_bytes = 0;
  AddIndexes(group);
}

// Time. -------------------------------------------------------------------------------------------

void Job::OnTick() {
  for (const Id16& id : leases_.Expired(now_)) {
    if (leases_.Find(id) == nullptr) continue;
    ++counters_.leases_expired[LeaseKindName(leases_.Find(id)->kind)];
    EndLease(id, LeaseEnd::kExpired, ReleaseReason::kLost, absl::ZeroDuration());
  }
  while (!delayed_.empty() && delayed_.begin()->first <= now_) {
    const TaskKey key = delayed_.begin()->second;
    delayed_.erase(delayed_.begin());
    InsertReady(key);
  }
  LookAtStragglers();
  LookAtGenerations();
}

Instant Job::NextWake() const {
  Instant next = leases_.NextExpiry();
  if (!delayed_.empty()) next = std::min(next, delayed_.begin()->first);
  if (!overdue_.empty()) next = std::min(next, overdue_.front().first);
  if (!stalling_.empty()) next = std::min(next, stalling_.begin()->first);
  next = std::min(next, NextGenerationCheck());
  for (const Parked& parked : parked_) next = std::min(next, parked.deadline);
  for (const auto& [worker, engine] : engines_) {
    if (engine.renewed + leases_.ttl() > now_)
      next = std::min(next, engine.renewed + leases_.ttl());
  }
  return next;
}

// Waiting calls. ----------------------------------------------------------------------------------

void Job::Park(const Event& event, absl::Duration wait,
               std::variant<Admit, LeaseTasks, AcquireBatch> input) {
  // The same logical call, asked again while it waits, takes its own place; the connection it had
  // is gone.
  const auto same = [&](const Parked& parked) {
    if (parked.caller.worker != event.caller.worker || parked.input.index() != input.index())
      return false;
    if (const auto* admit = std::get_if<Admit>(&input))
      return std::get<Admit>(parked.input).request == admit->request;
    if (const auto* tasks = std::get_if<LeaseTasks>(&input))
      return std::get<LeaseTasks>(parked.input).request == tasks->request;
    return false;
  };
  for (auto it = parked_.begin(); it != parked_.end();) {
    if (same(*it)) EndParked(*it);
    it = same(*it) ? parked_.erase(it) : std::next(it);
  }
  wait = std::clamp(wait, absl::ZeroDuration(), kLongestWait);
  parked_.push_back({.call = event.call,
                     .caller = event.caller,
                     .since = now_,
                     .deadline = now_ + wait,
                     .input = std::move(input)});
}

void Job::Pump() {
  const auto serve = [&](auto try_one) {
    bool served = false;
    for (auto it = parked_.begin(); it != parked_.end();) {
      std::optional<Reply> reply = try_one(*it);
      if (reply) Answer(it->call, *std::move(reply));
      served |= reply.has_value();
      it = reply ? parked_.erase(it) : std::next(it);
    }
    return served;
  };
  // Batches first: a cut may drop groups and so free slots, and makes way for the next batch.
  while (serve([&](const Parked& parked) -> std::optional<Reply> {
    const auto* input = std::get_if<AcquireBatch>(&parked.input);
    return input ? TryAcquire(parked.caller, *input) : std::nullopt;
  })) {
  }
  serve([&](const Parked& parked) -> std::optional<Reply> {
    if (const auto* admit = std::get_if<Admit>(&parked.input))
      return TryAdmit(parked.caller, *admit);
    if (const auto* tasks = std::get_if<LeaseTasks>(&parked.input))
      return TryLeaseTasks(parked.caller, *tasks);
    return std::nullopt;
  });
  for (auto it = parked_.begin(); it != parked_.end();) {
    const bool due = it->deadline <= now_;
    if (due) EndParked(*it);
    it = due ? parked_.erase(it) : std::next(it);
  }
  admission_.Waiting(std::any_of(parked_.begin(), parked_.end(),
                                 [&](const Parked& parked) {
                                   const auto* batch = std::get_if<AcquireBatch>(&parked.input);
                                   return batch != nullptr && batch->k == version_;
                                 }),
                     now_);
}

void Job::EndParked(const Parked& parked) {
  if (std::holds_alternative<Admit>(parked.input)) {
    Answer(parked.call,
           AdmitAnswer{.phase = phase_, .edge = AdmitEdge(parked.caller, parked.since)});
  } else if (std::holds_alternative<LeaseTasks>(parked.input)) {
    Answer(parked.call, LeaseTasksAnswer{.edge = TaskEdge(parked.caller, parked.since)});
  } else {
    const int64_t k = std::get<AcquireBatch>(parked.input).k;
    Answer(parked.call, AcquireBatchAnswer{.edge = BatchEdge(parked.caller, k, parked.since)});
  }
}

}  // namespace sluice::queue
