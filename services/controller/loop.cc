#include "services/controller/loop.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/failpoint.h"
#include "common/base/status.h"
#include "common/log/log.h"

namespace sluice::controller {
namespace {
constexpr absl::Duration kTick = absl::Milliseconds(250);
constexpr absl::Duration kStoreRetry = absl::Milliseconds(200);
// Of one transaction. It may contain, or wait for, the writing of everything back to a Redis that
// has lost it. To be killed meanwhile would lose the only complete copy, which is in memory.
constexpr absl::Duration kLongestStore = absl::Minutes(10);
// The loop turns once in kTick at least. After a pause of this length the process was away.
constexpr absl::Duration kAway = absl::Seconds(2);
}  // namespace

Loop::~Loop() { Stop(); }

void Loop::Start(Sinks sinks) {
  sinks_ = std::move(sinks);
  thread_ = std::thread([this] { Run(); });
}

void Loop::Stop() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    posted_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

void Loop::Post(Work work, Then then) {
  MutexLock lock(&mu_);
  if (stopping_) return;
  items_.push_back({std::move(work), std::move(then), CurrentTrace()});
  posted_.NotifyAll();
}

bool Loop::IsStopping() {
  MutexLock lock(&mu_);
  return stopping_;
}

void Loop::Run() {
  absl::Duration next_tick = clock_->Monotonic();
  while (true) {
    watched_.Tick();
    std::deque<Item> items;
    {
      MutexLock lock(&mu_);
      while (items_.empty() && !stopping_) {
        const absl::Duration left = next_tick - clock_->Monotonic();
        if (left <= absl::ZeroDuration()) break;
        posted_.WaitFor(&mu_, left);
      }
      if (stopping_ && items_.empty()) return;
      items.swap(items_);
    }

    const Instant now{clock_->Now(), clock_->Monotonic()};
    NoteAbsence(now);
    const bool tick = now.mono >= next_tick;
    for (const Item& item : items) {
      const TraceScope scope(item.trace);
      item.work(*core_, now);
    }
    if (tick) {
      next_tick = now.mono + kTick;
      core_->Tick(now);
    }

    const Outbox out = core_->Take(now);
    if (!Commit(out)) return;

    // Only what is stored may be sent, so that a restarted controller never contradicts it.
    for (const ReleaseCall& call : out.releases) sinks_.release(call);
    for (const SetJobCall& call : out.set_jobs) sinks_.set_job(*core_, call);
    for (const std::string& daemon : out.daemons) sinks_.daemon_changed(*core_, daemon);
    for (const std::string& job : out.jobs) sinks_.job_changed(*core_, job);
    for (const std::string& job : out.diagnose) sinks_.diagnose(*core_, job);
    for (const Item& item : items) {
      const TraceScope scope(item.trace);
      if (item.then) item.then(*core_);
    }
    if (tick) sinks_.tick(*core_);
  }
}

void Loop::NoteAbsence(Instant now) {
  const absl::Duration away = now.mono - std::exchange(last_turn_, now.mono);
  if (away >= kAway) {
    log::Warning("was_away", {{"seconds", absl::ToDoubleSeconds(away)}});
    core_->OnAway(now, away);
  }
  const int64_t rebuilt = store_->times_rebuilt();
  if (std::exchange(times_rebuilt_, rebuilt) != rebuilt) core_->OnStoreRebuilt(now);
}

bool Loop::Commit(const Outbox& out) {
  int64_t revision = 0;
  if (!out.ops.empty()) {
    SLUICE_FAILPOINT("controller.store.before_commit");
    const bool stored = Persist([&] {
      const absl::Duration began = clock_->Monotonic();
      const absl::StatusOr<int64_t> done = store_->Txn(out.compares, out.ops);
      sinks_.transaction_tried(done.ok() ? "ok" : "error", clock_->Monotonic() - began);
      if (done.ok()) revision = *done;
      return done.status();
    });
    if (!stored) return false;
  }
  core_->OnCommitted(revision);
  if (!out.ops.empty()) SLUICE_FAILPOINT("controller.store.after_commit");
  return Persist([&] { return store_->CheckMayAct(); });
}

bool Loop::Persist(const std::function<absl::Status()>& attempt) {
  while (true) {
    watched_.Begin("stores a transaction", kLongestStore);
    const absl::Status status = attempt();
    watched_.Tick();  // A store that is away is no reason to start the controller anew.
    if (status.ok()) {
      if (away_.exchange(false)) log::Info("store_back");
      return true;
    }

    if (ReasonOf(status) == "LEASE_LOST") {
      sinks_.lost(status);
      return false;
    }
    // A compare failed or a record was refused. Trying again cannot help. If this process went on,
    // it might send orders that contradict those of another controller.
    if (absl::IsAborted(status) || absl::IsInvalidArgument(status)) {
      log::Error(
          "store_lost",
          {{"cause", status},
           {"next", "make sure that only one controller uses this store, then start it again"}});
      SLUICE_CHECK_MSG(false, "another process has changed the job store, or it refuses a record");
    }

    if (!away_.exchange(true))
      log::Error("store_away",
                 {{"cause", status}, {"next", "the controller tries again until it works"}});
    if (IsStopping()) return false;
    absl::SleepFor(kStoreRetry);
  }
}

}  // namespace sluice::controller
