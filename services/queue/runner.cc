#include "services/queue/runner.h"

#include "common/base/failpoint.h"
#include "common/base/status.h"
#include "common/log/log.h"

namespace sluice::queue {
namespace {
#ifdef SLUICE_FAILPOINTS
// Calls that a fault test may want the daemon to die or fail around.
const char* FailpointName(const Input& input) {
  static constexpr const char* kNames[] = {"set_job", "admit",  "put",     "seal",    "drop", "lease_tasks", "renew", "release",
                                           "acquire", "apply",  "advance", "durable", "restore", nullptr, nullptr, nullptr, nullptr, nullptr};
  return kNames[input.index()];
}
#endif
}  // namespace

JobRunner::JobRunner(Options options, Spec spec, std::shared_ptr<const RowSource> rows)
    : options_(std::move(options)),
      arena_(options_.arena != nullptr ? options_.arena : std::make_shared<Arena>()),
      sampling_(spec.sampling),
      job_(options_.job, std::move(spec), std::move(rows)),
      books_(job_) {
  if (options_.books) options_.books(std::make_shared<BookEntry>(BooksOf(job_)));
}

void JobRunner::Apply(Event event, Finished* finished) {
  event.now = options_.clock->Monotonic();
  if (options_.journal) options_.journal(event);
  Effects effects;
  job_.Step(event, &effects);
  if (options_.books) {
    if (std::shared_ptr<const BookEntry> entry = books_.Changed(event, job_); entry != nullptr) options_.books(std::move(entry));
  }
  for (auto& [call, reply] : effects.answers) {
    const auto it = waiting_.find(call);
    if (it == waiting_.end()) continue;
    finished->emplace_back(std::move(it->second), std::move(reply));
    waiting_.erase(it);
  }
  for (const Alarm& alarm : effects.alarms) log::Warning("alarm", {{"job_id", options_.name}, {"code", alarm.code}, {"message", alarm.message}});
  if (effects.watch || !effects.cancel.empty() || !effects.alarms.empty()) {
    WatchUpdate update{.sequence = ++sequence_, .cancel = std::move(effects.cancel), .alarms = std::move(effects.alarms)};
    if (effects.watch) update.state = job_.watch();
    for (const auto& [id, told] : watchers_) told(update);
  }
  const Instant next = job_.NextWake();
  if (next < announced_ && options_.wake) options_.wake(next);
  announced_ = next;
}

void JobRunner::Settle(Finished finished) {
  for (auto& [done, reply] : finished) done(std::move(reply));
}

uint64_t JobRunner::Run(const Caller& caller, Input input, Done done) {
#ifdef SLUICE_FAILPOINTS
  const char* name = FailpointName(input);
  if (name != nullptr) {
    if (absl::Status hit = HitFailpoint(std::string("queue.") + name + ".before"); !hit.ok()) return done(std::move(hit)), 0;
  }
#endif
  Finished finished;
  uint64_t call = 0;
  {
    MutexLock lock(&mu_);
    if (shut_.ok()) {
      call = next_call_++;
      waiting_.emplace(call, std::move(done));
      Apply({.call = call, .caller = caller, .input = std::move(input)}, &finished);
    } else {
      finished.emplace_back(std::move(done), shut_);
    }
  }
#ifdef SLUICE_FAILPOINTS
  if (name != nullptr) (void)HitFailpoint(std::string("queue.") + name + ".after");
#endif
  Settle(std::move(finished));
  return call;
}

void JobRunner::Forget(uint64_t call) {
  Finished finished;
  {
    MutexLock lock(&mu_);
    if (waiting_.erase(call) == 0) return;
    Apply({.call = call, .input = queue::Forget{}}, &finished);
  }
  Settle(std::move(finished));
}

void JobRunner::Tick() {
  Finished finished;
  {
    MutexLock lock(&mu_);
    announced_ = absl::InfiniteDuration();
    Apply({.input = queue::Tick{}}, &finished);
  }
  Settle(std::move(finished));
}

void JobRunner::SetMemoryShare(uint64_t bytes) {
  Finished finished;
  {
    MutexLock lock(&mu_);
    if (!shut_.ok()) return;
    Apply({.input = MemoryShare{bytes}}, &finished);
  }
  Settle(std::move(finished));
}

Instant JobRunner::NextWake() {
  MutexLock lock(&mu_);
  return announced_ = job_.NextWake();
}

void JobRunner::Shut(const absl::Status& why) {
  Finished finished;
  {
    MutexLock lock(&mu_);
    shut_ = why;
    for (auto& [call, done] : waiting_) finished.emplace_back(std::move(done), why);
    waiting_.clear();
  }
  Settle(std::move(finished));
}

uint64_t JobRunner::AddWatcher(std::function<void(const WatchUpdate&)> told) {
  MutexLock lock(&mu_);
  const uint64_t id = ++sequence_;
  told({.sequence = id, .state = job_.watch()});
  watchers_.emplace(id, std::move(told));
  return id;
}

void JobRunner::RemoveWatcher(uint64_t watcher) {
  MutexLock lock(&mu_);
  watchers_.erase(watcher);
}

}  // namespace sluice::queue
