#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "services/queue/arena.h"
#include "services/queue/books.h"
#include "services/queue/core/job.h"

namespace sluice::queue {

// What a job's watchers are told. Sequence numbers rise; a state of a lower one than was told before is old news.
struct WatchUpdate {
  uint64_t sequence = 0;
  std::optional<WatchState> state;  // Set where it changed.
  std::vector<CancelHint> cancel;
  std::vector<Alarm> alarms;
};

// One job's state machine in its daemon: serialises events, gives them their time, hands each answer to whoever waits for
// it, be it now or when a parked call ends.
//
// Thread-safe; nothing blocks but for the time of one event.
class JobRunner {
 public:
  using Done = std::function<void(Reply)>;

  struct Options {
    Job::Options job;
    std::string name;  // For logs and metrics.
    std::shared_ptr<Arena> arena;  // Of the job's payload; null: a new one.
    Clock* clock = nullptr;                     // Outlives the runner.
    std::function<void(Instant)> wake;          // A Tick is due at this time; called when that time comes nearer. May be empty.
    std::function<void(const Event&)> journal;  // Sees each event before it is applied, under the lock: where a log goes.
    // Told each change of the books, in order and once it is durable, under the lock: it must only take note. First what they
    // are at the start. May be empty.
    std::function<void(std::shared_ptr<const BookEntry>)> books;
  };
  JobRunner(Options options, Spec spec, std::shared_ptr<const RowSource> rows);

  // Applies an event. `done` runs once, outside the lock: before this returns, or, of a parked call, on the thread whose
  // event ends it. Returns the call's number.
  uint64_t Run(const Caller& caller, Input input, Done done) ABSL_LOCKS_EXCLUDED(mu_);
  // The client of a call is gone: `done` may still run if an answer was under way.
  void Forget(uint64_t call) ABSL_LOCKS_EXCLUDED(mu_);
  void Tick() ABSL_LOCKS_EXCLUDED(mu_);
  Instant NextWake() ABSL_LOCKS_EXCLUDED(mu_);
  void SetMemoryShare(uint64_t bytes) ABSL_LOCKS_EXCLUDED(mu_);
  // Ends all parked calls with `why`; later calls get it too.
  void Shut(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);

  // Reads, under the lock: f(job, now).
  template <typename F>
  auto Look(F f) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    return f(static_cast<const Job&>(job_), options_.clock->Monotonic());
  }

  // `told` gets the whole state at once, then what changes, in order, under the lock: it must only take note.
  uint64_t AddWatcher(std::function<void(const WatchUpdate&)> told) ABSL_LOCKS_EXCLUDED(mu_);
  void RemoveWatcher(uint64_t watcher) ABSL_LOCKS_EXCLUDED(mu_);

  const std::string& id() const { return options_.job.id; }
  const std::string& name() const { return options_.name; }
  Arena* arena() const { return arena_.get(); }
  const Sampling& sampling() const { return sampling_; }
  int64_t queue_incarnation() const { return options_.job.queue_incarnation; }

 private:
  using Finished = std::vector<std::pair<Done, Reply>>;
  void Apply(Event event, Finished* finished) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Settle(Finished finished);

  const Options options_;
  const std::shared_ptr<Arena> arena_;
  const Sampling sampling_;
  Mutex mu_;
  Job job_ ABSL_GUARDED_BY(mu_);
  BookWatch books_ ABSL_GUARDED_BY(mu_);
  uint64_t next_call_ ABSL_GUARDED_BY(mu_) = 1;
  absl::flat_hash_map<uint64_t, Done> waiting_ ABSL_GUARDED_BY(mu_);
  uint64_t sequence_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<uint64_t, std::function<void(const WatchUpdate&)>> watchers_ ABSL_GUARDED_BY(mu_);
  Instant announced_ ABSL_GUARDED_BY(mu_) = absl::InfiniteDuration();
  absl::Status shut_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice::queue
