#pragma once

#include <cstdint>
#include <deque>
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
#include "services/queue/store.h"

namespace sluice::queue {

// What a job's watchers are told. Sequence numbers rise; a state of a lower one than was told
// before is old news.
struct WatchUpdate {
  uint64_t sequence = 0;
  std::optional<WatchState> state;  // Set where it changed.
  std::vector<CancelHint> cancel;
  std::vector<Alarm> alarms;
};

// One job's state machine in its daemon: serialises events, gives them their time, hands each
// answer to whoever waits for it, be it now or when a parked call ends.
//
// With a log (levels metadata and full) each event is appended to it first, and all that the event
// gives out, answers and what watchers and mirrors are told, is held back until the log says that
// it is durable. Then it goes out in the order of the events. Reads (Look) see what is not durable
// yet.
//
// Thread-safe; nothing blocks but for the time of one event. Owns the log's two threads.
class JobRunner {
 public:
  using Done = std::function<void(Reply)>;

  struct Options {
    Job::Options job;
    std::string name;              // For logs and metrics.
    std::shared_ptr<Arena> arena;  // Of the job's payload; null: a new one.
    Clock* clock = nullptr;        // Outlives the runner.
    // A Tick is due at this time of the clock; called when that time comes nearer. May be empty.
    std::function<void(absl::Duration)> wake;
    // A snapshot is taken when the log behind the last one is longer than this, and than twice the
    // payload held.
    uint64_t snapshot_bytes = 64 << 20;
    // The log failed for good: nothing more is answered, the process should end.
    std::function<void(const absl::Status&)> fatal;
    std::function<void(absl::Duration)> synced;  // The log was synced. May be empty.
    // Told each change of the books, in order and once it is durable, under the lock: it must only
    // take note. First what they are at the start. May be empty.
    std::function<void(std::shared_ptr<const BookEntry>)> books;
    // Told each alarm, under the lock: it must only take note. May be empty.
    std::function<void(const Alarm&)> alarm;
  };
  // In memory.
  JobRunner(Options options, Spec spec, std::shared_ptr<const RowSource> rows);
  // With a log; `stored` holds a job, Options::job is not looked at. Of a job that was there
  // before, Restart() is the first event.
  JobRunner(Options options, StoredJob stored);
  ~JobRunner();  // Shut().

  // Applies an event. `done` runs once, outside the lock: before this returns, or, of a parked
  // call, on the thread whose event ends it. Returns the call's number.
  uint64_t Run(const Caller& caller, Input input, Done done) ABSL_LOCKS_EXCLUDED(mu_);
  // The client of a call is gone: `done` may still run if an answer was under way.
  void Forget(uint64_t call) ABSL_LOCKS_EXCLUDED(mu_);
  void Tick() ABSL_LOCKS_EXCLUDED(mu_);
  // By the clock.
  absl::Duration NextWake() ABSL_LOCKS_EXCLUDED(mu_);
  void SetMemoryShare(uint64_t bytes) ABSL_LOCKS_EXCLUDED(mu_);
  // The job was recovered, by a queue of this incarnation.
  void Restart(uint32_t incarnation) ABSL_LOCKS_EXCLUDED(mu_);
  // Ends all parked calls with `why`; later calls get it too. Then syncs the log, snapshots the job
  // so that the next start replays nothing, and closes it. Not from a `done`, which may run on the
  // log's thread. Idempotent.
  void Shut(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);

  // Reads, under the lock: f(job, now).
  template <typename F>
  auto Look(F f) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    return f(static_cast<const Job&>(*job_), JobTime());
  }

  // `told` gets the whole state, at once or when it is durable, then what changes, in order, under
  // the lock: it must only take note.
  uint64_t AddWatcher(std::function<void(const WatchUpdate&)> told) ABSL_LOCKS_EXCLUDED(mu_);
  void RemoveWatcher(uint64_t watcher) ABSL_LOCKS_EXCLUDED(mu_);

  const std::string& id() const { return id_; }
  const std::string& name() const { return options_.name; }
  Arena* arena() const { return arena_.get(); }
  const Sampling& sampling() const { return sampling_; }

 private:
  struct Answer {
    Done done;
    Reply reply;
    const char* call = nullptr;  // For failpoints.
  };
  using Finished = std::vector<Answer>;
  // What an event gives out.
  struct Output {
    wal::Position position = 0;  // Of the event.
    Finished answers;
    std::optional<WatchUpdate> update;
    uint64_t new_watcher = 0;  // The update is for this one, its first.
    std::shared_ptr<const BookEntry> book;
  };

  Instant JobTime() const { return options_.clock->Monotonic() + offset_; }
  // Logs and applies an event, and gives out what it can.
  void Apply(Event event, Finished* finished) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void LogStored(const Event& put, const std::vector<uint32_t>& stored)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Emit(Output output, Finished* finished) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void GiveOut(Output output, Finished* finished) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Release(wal::Position durable) ABSL_LOCKS_EXCLUDED(mu_);
  void MaybeSnapshot() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool TakeSnapshot() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CloseLog(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);
  void SetSpace(wal::Space space) ABSL_LOCKS_EXCLUDED(mu_);
  static void Settle(Finished finished);

  const Options options_;
  const std::string id_;
  const std::shared_ptr<Arena> arena_;
  const JobHeader header_;  // Where there is a log.
  const Sampling sampling_;
  const Payload payload_ = Payload::kKept;  // In the log.
  Mutex mu_;
  CondVar snapshotted_;
  const std::unique_ptr<Job> job_ ABSL_PT_GUARDED_BY(mu_);
  const std::unique_ptr<wal::Log> log_;  // Null: level memory.
  // Of the job's time from the clock's: a job's time stands still while its queue is gone.
  const absl::Duration offset_;
  std::deque<Output> held_ ABSL_GUARDED_BY(mu_);  // Until durable, in order.
  wal::Position appended_ ABSL_GUARDED_BY(mu_) = 0;
  bool snapshotting_ ABSL_GUARDED_BY(mu_) = false;
  // Not before the log is this long: the last try failed.
  uint64_t snapshot_at_ ABSL_GUARDED_BY(mu_) = 0;
  bool closing_ ABSL_GUARDED_BY(mu_) = false;
  BookWatch books_ ABSL_GUARDED_BY(mu_);
  uint64_t next_call_ ABSL_GUARDED_BY(mu_) = 1;
  absl::flat_hash_map<uint64_t, std::pair<Done, const char*>> waiting_ ABSL_GUARDED_BY(mu_);
  uint64_t sequence_ ABSL_GUARDED_BY(mu_) = 0;
  struct Watcher {
    std::function<void(const WatchUpdate&)> told;
    bool begun = false;
  };
  std::map<uint64_t, Watcher> watchers_ ABSL_GUARDED_BY(mu_);
  Instant announced_ ABSL_GUARDED_BY(mu_) = absl::InfiniteDuration();
  absl::Status shut_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice::queue
