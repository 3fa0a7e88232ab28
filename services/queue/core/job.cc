#include "services/queue/core/job.h"

#include <algorithm>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace sluice::queue {
namespace {
// How many versions an engine may be behind the newest one, and still count.
uint32_t MaxVersionSpan(const Spec& spec) {
  return spec.max_version_span == 0 ? spec.max_staleness : spec.max_version_span;
}

absl::Status DiskFullError() {
  return ErrorWith(absl::StatusCode::kResourceExhausted,
                   {.reason = "DISK_FULL",
                    .catalogue = "SLUICE-QUEUE-0006",
                    .hint = "make room on the disk of the queue's --data-dir",
                    .retry_after = absl::Seconds(1)},
                   "the disk of the queue's log is full; nothing accepted is lost, send the same "
                   "again once there is room");
}
}  // namespace

Job::Job(Options options, Spec spec, std::shared_ptr<const RowSource> rows)
    : options_(std::move(options)),
      spec_(std::move(spec)),
      queue_incarnation_(options_.queue_incarnation),
      prompts_(spec_, std::move(rows)),
      leases_(spec_.lease, options_.seed),
      callers_(&counters_),
      engines_(spec_.lease, MaxVersionSpan(spec_)),
      groups_(spec_),
      tasks_(spec_, &groups_, &leases_),
      admission_(spec_.max_staleness, spec_.admission_staleness, {spec_.min_ess, spec_.max_kl}),
      failures_(spec_, prompts_, &counters_) {
  for (const char* reason : kDropReasons) ledger_.dropped[reason] = 0;
}

void Job::Step(const Event& event, Effects* effects) {
  now_ = event.now;
  effects_ = effects;
  failures_.SetEffects(effects);
  ++ledger_.event;
  Dispatch(event);
  ServeParked();
  effects_ = nullptr;
  failures_.SetEffects(nullptr);
}

template <typename T>
void Job::Finish(uint64_t call, absl::StatusOr<T> answer) {
  if (answer.ok()) {
    Answer(call, *std::move(answer));
  } else {
    Answer(call, answer.status());
  }
}

void Job::Dispatch(const Event& event) {
  const Caller& caller = event.caller;
  std::visit(
      [&](const auto& input) {
        using T = std::decay_t<decltype(input)>;

        // Calls that may wait answer by themselves.
        if constexpr (std::is_same_v<T, Admit>) OnAdmit(event, input);
        if constexpr (std::is_same_v<T, LeaseTasks>) OnLeaseTasks(event, input);
        if constexpr (std::is_same_v<T, AcquireBatch>) OnAcquireBatch(event, input);

        if constexpr (std::is_same_v<T, Put>) {
          const absl::Status fenced = callers_.CheckNotFenced(caller, WorkerRole::kNone);
          if (!fenced.ok()) return Answer(event.call, fenced);
          if (space_ == Space::kFull) return Answer(event.call, DiskFullError());
          Answer(event.call, OnPut(caller, input));
        }
        if constexpr (std::is_same_v<T, Seal> || std::is_same_v<T, Drop>) {
          const absl::Status fenced = callers_.CheckNotFenced(caller, WorkerRole::kRollout);
          if (!fenced.ok()) return Answer(event.call, fenced);
          ItemsAnswer answer{.repeat = !input.items.empty()};
          for (const auto& item : input.items) {
            if constexpr (std::is_same_v<T, Seal>) answer.items.push_back(SealMember(caller, item));
            if constexpr (std::is_same_v<T, Drop>) answer.items.push_back(DropWork(caller, item));
            answer.repeat &= answer.items.back().repeat;
          }
          if (answer.repeat) ++counters_.repeats[std::is_same_v<T, Seal> ? "Seal" : "Drop"];
          Answer(event.call, std::move(answer));
        }

        if constexpr (std::is_same_v<T, SetJob>) Finish(event.call, OnSetJob(input));
        if constexpr (std::is_same_v<T, Renew>) Finish(event.call, OnRenew(caller, input));
        if constexpr (std::is_same_v<T, Release>) Finish(event.call, OnRelease(caller, input));
        if constexpr (std::is_same_v<T, queue::Apply>) Finish(event.call, OnApply(caller, input));
        if constexpr (std::is_same_v<T, AdvanceVersion>)
          Finish(event.call, OnAdvanceVersion(caller, input));
        if constexpr (std::is_same_v<T, Durable>) Finish(event.call, OnDurable(caller, input));
        if constexpr (std::is_same_v<T, Restore>) Finish(event.call, OnRestore(caller, input));
        if constexpr (std::is_same_v<T, Retask>) Finish(event.call, OnRetask(caller, input));

        // The daemon's own events have no answer.
        if constexpr (std::is_same_v<T, Tick>) OnTick();
        if constexpr (std::is_same_v<T, MemoryShare>) share_bytes_ = input.bytes;
        if constexpr (std::is_same_v<T, Restarted>) OnRestarted(input);
        if constexpr (std::is_same_v<T, DiskSpace>) space_ = input.space;
        if constexpr (std::is_same_v<T, CallerGone>) {
          parked_.RemoveIf([&](const ParkedCalls::Call& call) { return call.call == event.call; });
        }
      },
      event.input);
}

// Time. -------------------------------------------------------------------------------------------

void Job::OnTick() {
  for (const Id16& id : leases_.FindExpired(now_)) {
    const LeaseEntry* const lease = leases_.Find(id);
    if (lease == nullptr) continue;  // It ended along with one before it.
    ++counters_.leases_expired[LeaseKindName(lease->kind)];
    EndLease(id, LeaseEnd::kExpired, ReleaseReason::kLost, absl::ZeroDuration());
  }
  tasks_.WakeDelayed(now_);
  HandleStragglers();
  RescoreAbandoned();
}

Instant Job::NextWake() const {
  return std::min({leases_.NextExpiry(), groups_.NextWake(), tasks_.NextWake(now_),
                   parked_.NextDeadline(), engines_.NextExpiry(now_)});
}

// Calls that wait. --------------------------------------------------------------------------------

void Job::Park(const Event& event, absl::Duration wait, ParkedCalls::Input input) {
  // If the same request is parked already, its connection broke and the client sent it again. The
  // new call takes the place of the old one, whose answer nobody reads.
  parked_.RemoveIf([&](const ParkedCalls::Call& call) {
    const bool same = ParkedCalls::IsSameRequest(call, event.caller, input);
    if (same) EndParked(call);
    return same;
  });
  parked_.Add(event.call, event.caller, wait, std::move(input), now_);
}

void Job::ServeParked() {
  const auto answer = [&](const ParkedCalls::Call& call, std::optional<Reply> reply) {
    if (!reply) return false;
    Answer(call.call, *std::move(reply));
    return true;
  };

  // Batches go first: a cut may drop groups, which frees slots for Admit. Repeat as long as a call
  // was answered, because the next batch may be cut now.
  while (parked_.RemoveIf([&](const ParkedCalls::Call& call) {
    const auto* const input = std::get_if<AcquireBatch>(&call.input);
    return input != nullptr && answer(call, TryAcquireBatch(call.caller, *input));
  })) {
  }
  parked_.RemoveIf([&](const ParkedCalls::Call& call) {
    if (const auto* admit = std::get_if<Admit>(&call.input))
      return answer(call, TryAdmit(call.caller, *admit));
    if (const auto* tasks = std::get_if<LeaseTasks>(&call.input))
      return answer(call, TryLeaseTasks(call.caller, *tasks));
    return false;
  });
  parked_.RemoveIf([&](const ParkedCalls::Call& call) {
    const bool due = call.deadline <= now_;
    if (due) EndParked(call);
    return due;
  });
  admission_.SetWaiting(parked_.WaitsForBatch(batches_.version()), now_);
}

}  // namespace sluice::queue
