#include "services/queue/runner.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/failpoint.h"
#include "common/base/status.h"
#include "common/log/log.h"

namespace sluice::queue {
namespace {
// Names of the calls at which a fault test can make the daemon die or fail, by the index of Input.
const char* FailpointName(const Input& input) {
  static constexpr const char* kNames[] = {"set_job",     "admit",   "put",     "seal",    "drop",
                                           "lease_tasks", "renew",   "release", "acquire", "apply",
                                           "advance",     "durable", "restore", nullptr,   nullptr,
                                           nullptr,       nullptr,   nullptr,   "retask"};
  return input.index() < std::size(kNames) ? kNames[input.index()] : nullptr;
}

absl::Status HitCallFailpoint(const char* call, const char* where) {
  if (!kHasFailpoints || call == nullptr) return absl::OkStatus();
  return HitFailpoint(absl::StrCat("queue.", call, ".", where));
}
}  // namespace

JobRunner::JobRunner(Options options, Spec spec, std::shared_ptr<const RowSource> rows)
    : options_(std::move(options)),
      id_(options_.job.id),
      lines_(id_, options_.name),
      arena_(options_.arena != nullptr ? options_.arena : std::make_shared<Arena>()),
      sampling_(spec.sampling),
      job_(std::make_unique<Job>(options_.job, std::move(spec), std::move(rows))),
      ledger_watch_(*job_) {
  if (options_.ledger_changed)
    options_.ledger_changed(std::make_shared<LedgerEntry>(LedgerOf(*job_)));
}

JobRunner::JobRunner(Options options, StoredJob stored)
    : options_(std::move(options)),
      id_(stored.header.job),
      lines_(id_, options_.name),
      arena_(options_.arena != nullptr ? options_.arena : std::make_shared<Arena>()),
      header_(std::move(stored.header)),
      sampling_(stored.job->spec().sampling),
      payload_(stored.job->spec().durability == Durability::kMetadata ? Payload::kLeftOut
                                                                      : Payload::kKept),
      job_(std::move(stored.job)),
      log_(std::move(stored.log)),
      offset_(job_->ledger().event == 0 ? absl::ZeroDuration()
                                        : job_->now() - options_.clock->Monotonic()),
      ledger_watch_(*job_) {
  if (options_.ledger_changed)
    options_.ledger_changed(std::make_shared<LedgerEntry>(LedgerOf(*job_)));
  log_->Start({.on_durable = [this](wal::Position durable) { ReleaseDurable(durable); },
               .on_fatal =
                   [this](const absl::Status& why) {
                     if (options_.fatal) options_.fatal(why);
                   },
               .on_space = [this](wal::Space space) { SetSpace(space); },
               .on_sync = options_.synced});
}

JobRunner::~JobRunner() { Stop(absl::CancelledError("the job is gone")); }

// Events. -----------------------------------------------------------------------------------------

void JobRunner::Apply(Event event, Finished* finished) {
  event.now = JobTime();
  const bool put = std::holds_alternative<Put>(event.input);
  // On a full disk the records are refused in any case, and the log has no room for them.
  if (put && job_->space() == Space::kFull) std::get<Put>(event.input).records.clear();

  // At level metadata a Put is logged after it is applied: a replay could not check the records
  // again without their payload, so only those that were stored are logged.
  const bool log_after = put && payload_ == Payload::kLeftOut;

  if (log_ != nullptr && !log_after) appended_ = log_->Append(EventRecord(event, payload_));
  Effects effects;
  job_->Step(event, &effects);
  if (log_ != nullptr && log_after) LogStored(event, effects.stored);

  Output output{.position = appended_};
  if (options_.ledger_changed) output.ledger_entry = ledger_watch_.FindChange(event, *job_);
  for (auto& [call, reply] : effects.answers) {
    const auto it = waiting_.find(call);
    if (it == waiting_.end()) continue;
    output.answers.push_back({std::move(it->second.first), std::move(reply), it->second.second});
    waiting_.erase(it);
  }

  for (const Alarm& alarm : effects.alarms) {
    log::Write(alarm.is_news ? log::Level::kInfo : log::Level::kWarning,
               alarm.is_news ? "news" : "alarm",
               {{"job_id", options_.name}, {"code", alarm.code}, {"message", alarm.message}});
    if (options_.alarm) options_.alarm(alarm);
  }

  if (effects.watch || !effects.cancel.empty() || !effects.alarms.empty()) {
    output.update = {.sequence = ++sequence_,
                     .cancel = std::move(effects.cancel),
                     .alarms = std::move(effects.alarms)};
    if (effects.watch) output.update->state = job_->watch();
  }

  Emit(std::move(output), finished);

  const Instant next = job_->NextWake();
  if (next < announced_ && options_.wake) options_.wake(next - offset_);
  announced_ = next;
  MaybeSnapshot();
}

// Logs the records of a Put that were stored, without their payload.
void JobRunner::LogStored(const Event& put, const std::vector<uint32_t>& stored) {
  Event reduced{.now = put.now, .call = put.call, .caller = put.caller};
  Put& records = reduced.input.emplace<Put>();
  for (uint32_t place : stored) records.records.push_back(std::get<Put>(put.input).records[place]);
  appended_ = log_->Append(EventRecord(reduced, payload_));
}

void JobRunner::Emit(Output output, Finished* finished) {
  if (output.answers.empty() && !output.update && output.ledger_entry == nullptr) return;
  if (log_ == nullptr) return Deliver(std::move(output), finished);
  held_.push_back(std::move(output));
}

void JobRunner::Deliver(Output output, Finished* finished) {
  if (output.ledger_entry != nullptr) options_.ledger_changed(std::move(output.ledger_entry));
  if (output.new_watcher != 0) {
    const auto it = watchers_.find(output.new_watcher);
    if (it == watchers_.end()) return;  // The watcher has left meanwhile.
    it->second.begun = true;
    it->second.on_update(*output.update);
    return;
  }
  if (output.update) {
    for (const auto& [id, watcher] : watchers_) {
      if (watcher.begun) watcher.on_update(*output.update);
    }
  }
  std::move(output.answers.begin(), output.answers.end(), std::back_inserter(*finished));
}

// Runs on the log's thread.
void JobRunner::ReleaseDurable(wal::Position durable) {
  Finished finished;
  {
    MutexLock lock(&mu_);
    while (!held_.empty() && held_.front().position <= durable) {
      Deliver(std::move(held_.front()), &finished);
      held_.pop_front();
    }
  }
  RunCallbacks(std::move(finished));
}

void JobRunner::RunCallbacks(Finished finished) {
  for (Answer& answer : finished) {
    (void)HitCallFailpoint(answer.call, "after");
    answer.done(std::move(answer.reply));
  }
}

// Snapshots. --------------------------------------------------------------------------------------

void JobRunner::MaybeSnapshot() {
  if (log_ == nullptr || snapshotting_) return;
  const uint64_t since = log_->BytesSinceSnapshot();
  if (since < snapshot_at_ || since <= std::max(options_.snapshot_bytes, 2 * job_->stored_bytes()))
    return;
  TakeSnapshot();
}

bool JobRunner::TakeSnapshot() {
  snapshotting_ =
      log_->Snapshot(Snapshot(header_, job_->Dump(payload_)), [this](const absl::Status& done) {
        MutexLock lock(&mu_);
        snapshotting_ = false;
        snapshot_at_ = done.ok() ? 0 : log_->BytesSinceSnapshot() + options_.snapshot_bytes;
        if (!done.ok())
          log::Warning("snapshot_failed", {{"job_id", options_.name}, {"message", done.message()}});
        snapshotted_.NotifyAll();
      });
  return snapshotting_;
}

void JobRunner::CloseLog(const absl::Status& why) {
  {
    // Do not wait for a disk without room, which may stay full for ever. The log is then closed
    // without a snapshot, and the next start replays more of it.
    MutexLock lock(&mu_);
    const auto wait = [&] {
      while (snapshotting_ && log_->space() != wal::Space::kFull)
        snapshotted_.WaitFor(&mu_, absl::Seconds(1));
    };
    wait();
    if (!snapshotting_ && job_->phase() != Phase::kFreed && log_->BytesSinceSnapshot() > 0 &&
        TakeSnapshot())
      wait();
  }
  log_->Close();
  Finished finished;
  {
    MutexLock lock(&mu_);
    // Outputs are left only if the log failed or the disk is full. It is unknown whether their
    // events are durable.
    for (Output& output : held_) {
      for (Answer& answer : output.answers) finished.push_back({std::move(answer.done), why});
    }
    held_.clear();
  }
  RunCallbacks(std::move(finished));
}

// Calls. ------------------------------------------------------------------------------------------

uint64_t JobRunner::Run(const Caller& caller, Input input, Done done) {
  const char* const name = FailpointName(input);
  if (absl::Status hit = HitCallFailpoint(name, "before"); !hit.ok())
    return done(std::move(hit)), 0;
  Finished finished;
  uint64_t call = 0;
  {
    MutexLock lock(&mu_);
    if (stop_reason_.ok()) {
      call = next_call_++;
      waiting_.emplace(call, std::make_pair(std::move(done), name));
      Apply({.call = call, .caller = caller, .input = std::move(input)}, &finished);
    } else {
      finished.push_back({std::move(done), stop_reason_});
    }
  }
  RunCallbacks(std::move(finished));
  return call;
}

absl::Status JobRunner::CheckWasListed(const Caller& caller) {
  if (caller.incarnation == 0) return absl::OkStatus();
  MutexLock lock(&mu_);
  return job_->CheckWasListed(caller);
}

void JobRunner::ForgetCall(uint64_t call) {
  Finished finished;
  {
    MutexLock lock(&mu_);
    if (waiting_.erase(call) == 0 || !stop_reason_.ok()) return;
    Apply({.call = call, .input = queue::CallerGone{}}, &finished);
  }
  RunCallbacks(std::move(finished));
}

void JobRunner::Tick() {
  Finished finished;
  {
    MutexLock lock(&mu_);
    if (!stop_reason_.ok()) return;
    announced_ = absl::InfiniteDuration();
    Apply({.input = queue::Tick{}}, &finished);
  }
  RunCallbacks(std::move(finished));
}

void JobRunner::SetMemoryShare(uint64_t bytes) {
  Finished finished;
  {
    MutexLock lock(&mu_);
    if (!stop_reason_.ok()) return;
    Apply({.input = MemoryShare{bytes}}, &finished);
  }
  RunCallbacks(std::move(finished));
}

void JobRunner::Restart(uint32_t incarnation) {
  Finished finished;
  {
    MutexLock lock(&mu_);
    if (!stop_reason_.ok()) return;
    Apply({.input = Restarted{incarnation}}, &finished);
  }
  RunCallbacks(std::move(finished));
}

// Runs on the log's thread.
void JobRunner::SetSpace(wal::Space space) {
  static constexpr const char* kNames[] = {"ok", "low", "full"};
  log::Warning("disk_space",
               {{"job_id", options_.name}, {"space", kNames[static_cast<int>(space)]}});
  Finished finished;
  {
    MutexLock lock(&mu_);
    if (!stop_reason_.ok()) return;
    Apply({.input = DiskSpace{static_cast<Space>(space)}}, &finished);
  }
  RunCallbacks(std::move(finished));
}

absl::Duration JobRunner::NextWake() {
  MutexLock lock(&mu_);
  announced_ = job_->NextWake();
  return announced_ - offset_;
}

void JobRunner::Stop(const absl::Status& why) {
  Finished finished;
  bool close = false;
  {
    MutexLock lock(&mu_);
    if (stop_reason_.ok()) stop_reason_ = why;
    close = log_ != nullptr && !closing_;
    closing_ = true;
    for (auto& [call, waiting] : waiting_) finished.push_back({std::move(waiting.first), why});
    waiting_.clear();
  }
  RunCallbacks(std::move(finished));
  if (close) CloseLog(why);
}

// Watching. ---------------------------------------------------------------------------------------

uint64_t JobRunner::AddWatcher(std::function<void(const WatchUpdate&)> on_update) {
  Finished none;
  MutexLock lock(&mu_);
  const uint64_t id = ++sequence_;
  watchers_.emplace(id, Watcher{.on_update = std::move(on_update)});
  Output first{.position = appended_,
               .update = WatchUpdate{.sequence = id, .state = job_->watch()},
               .new_watcher = id};
  if (held_.empty()) {
    Deliver(std::move(first), &none);  // The state is durable already.
  } else {
    held_.push_back(std::move(first));
  }
  return id;
}

void JobRunner::RemoveWatcher(uint64_t watcher) {
  MutexLock lock(&mu_);
  watchers_.erase(watcher);
}

}  // namespace sluice::queue
