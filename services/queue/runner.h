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
#include "common/log/job_lines.h"
#include "services/queue/arena.h"
#include "services/queue/core/job.h"
#include "services/queue/ledger_watch.h"
#include "services/queue/store.h"

namespace sluice::queue {

// What a job's watchers get. Sequence numbers rise. A state with a lower number than one that was
// received before is outdated.
struct WatchUpdate {
  uint64_t sequence = 0;
  std::optional<WatchState> state;  // Set if it has changed.
  std::vector<CancelHint> cancel;
  std::vector<Alarm> alarms;
};

// Runs one job's state machine in the daemon: it serialises events, gives them their time, and
// hands each answer to the call that waits for it, at once or when a parked call ends.
//
// With a log (levels metadata and full), each event is first appended to the log. Its outputs
// (answers, and what watchers and mirrors get) are held back until the log reports that the event
// is durable, and then go out in the order of events. Reads (ReadJob()) see events that are not
// durable yet.
//
// Thread-safe. No method except Stop() blocks for longer than one event takes. Owns the log's two
// threads, if there is a log.
class JobRunner {
 public:
  using Done = std::function<void(Reply)>;

  struct Options {
    Job::Options job;
    std::string name;              // For logs and metrics.
    std::shared_ptr<Arena> arena;  // For the job's payload; null makes a new one.
    Clock* clock = nullptr;        // Outlives the runner.
    // Called with the time of the clock at which the next Tick() is due, when that time has become
    // earlier. May be empty.
    std::function<void(absl::Duration)> wake;
    // A snapshot is taken when the log since the last one is longer than this, and also longer than
    // twice the stored payload.
    uint64_t snapshot_bytes = 64 << 20;
    // Called when the log has failed for good. Nothing more is answered, and the process should
    // end.
    std::function<void(const absl::Status&)> fatal;
    // Called after each sync of the log, with its time. May be empty.
    std::function<void(absl::Duration)> synced;
    // Called first with the ledger as it is at the start, then with each change of it, in order,
    // once the change is durable. It runs under the lock, so it must not call the runner. May be
    // empty.
    std::function<void(std::shared_ptr<const LedgerEntry>)> ledger_changed;
    // Called with each alarm, under the lock, so it must not call the runner. May be empty.
    std::function<void(const Alarm&)> alarm;
  };
  // A job in memory.
  JobRunner(Options options, Spec spec, std::shared_ptr<const RowSource> rows);
  // A job with a log. `stored` must have a job; Options::job is ignored. If the job existed before,
  // call Restart() first.
  JobRunner(Options options, StoredJob stored);
  ~JobRunner();  // Calls Stop().

  // Applies an event and returns the call's number. `done` runs once, outside the lock: before this
  // returns, or, for a parked call or one whose event is not durable yet, on another thread.
  uint64_t Run(const Caller& caller, Input input, Done done) ABSL_LOCKS_EXCLUDED(mu_);
  // Whether the caller may call for this job at all. All callers are checked before their requests
  // are looked at. The controller, which alone has no incarnation, is in no list.
  // UNAVAILABLE NOT_LISTED: the controller never listed it.
  absl::Status CheckWasListed(const Caller& caller) ABSL_LOCKS_EXCLUDED(mu_);
  // Tells the job that the client of a call is gone. `done` may still run if an answer was under
  // way.
  void ForgetCall(uint64_t call) ABSL_LOCKS_EXCLUDED(mu_);
  // Lets the job's timers run.
  void Tick() ABSL_LOCKS_EXCLUDED(mu_);
  // When the next Tick() is due, by the clock.
  absl::Duration NextWake() ABSL_LOCKS_EXCLUDED(mu_);
  // Sets how many bytes the job may reserve.
  void SetMemoryShare(uint64_t bytes) ABSL_LOCKS_EXCLUDED(mu_);
  // Tells the job that a queue of this incarnation has recovered it from its log.
  void Restart(uint32_t incarnation) ABSL_LOCKS_EXCLUDED(mu_);
  // Ends all parked calls with `why`, which later calls get too. Then syncs the log, takes a
  // snapshot, so that the next start replays nothing, and closes the log. It must not be called
  // from a `done`, which may run on the log's thread. Idempotent.
  void Stop(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);

  // Reads the job: calls f(job, now) under the lock and returns its result.
  template <typename F>
  auto ReadJob(F f) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    return f(static_cast<const Job&>(*job_), JobTime());
  }

  // Adds a watcher and returns its number. `on_update` gets the whole state, as soon as that is
  // durable, then each change, in order. It runs under the lock, so it must not call the runner.
  uint64_t AddWatcher(std::function<void(const WatchUpdate&)> on_update) ABSL_LOCKS_EXCLUDED(mu_);
  void RemoveWatcher(uint64_t watcher) ABSL_LOCKS_EXCLUDED(mu_);

  const std::string& id() const { return id_; }
  const std::string& name() const { return options_.name; }
  Arena* arena() const { return arena_.get(); }
  const Sampling& sampling() const { return sampling_; }

 private:
  struct Answer {
    Done done;
    Reply reply;
    const char* call = nullptr;  // Name of the call, for failpoints.
  };
  using Finished = std::vector<Answer>;
  // The outputs of an event.
  struct Output {
    wal::Position position = 0;  // Of the event in the log.
    Finished answers;
    std::optional<WatchUpdate> update;
    // If not 0, the update goes to this watcher alone, and is its first one.
    uint64_t new_watcher = 0;
    std::shared_ptr<const LedgerEntry> ledger_entry;
  };

  Instant JobTime() const { return options_.clock->Monotonic() + offset_; }
  // Logs and applies an event, and gives out those outputs that may go out at once.
  void Apply(Event event, Finished* finished) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Logs a Put at level metadata.
  void LogStored(const Event& put, const std::vector<uint32_t>& stored)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Gives out an output at once, or holds it back until it is durable.
  void Emit(Output output, Finished* finished) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Deliver(Output output, Finished* finished) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Gives out the outputs that were held back, up to this position of the log.
  void ReleaseDurable(wal::Position durable) ABSL_LOCKS_EXCLUDED(mu_);
  void MaybeSnapshot() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool TakeSnapshot() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CloseLog(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);
  void SetSpace(wal::Space space) ABSL_LOCKS_EXCLUDED(mu_);
  // Runs the callbacks of finished calls. It is called without the lock.
  static void RunCallbacks(Finished finished);

  const Options options_;
  const std::string id_;
  const log::JobScope lines_;  // Outlives the log's threads, which write some.
  const std::shared_ptr<Arena> arena_;
  const JobHeader header_;  // Set if there is a log.
  const Sampling sampling_;
  const Payload payload_ = Payload::kKept;  // Whether the log has payload.
  Mutex mu_;
  CondVar snapshotted_;
  const std::unique_ptr<Job> job_ ABSL_PT_GUARDED_BY(mu_);
  const std::unique_ptr<wal::Log> log_;  // Null at level memory.
  // Job time minus clock time. They differ because a job's time stands still while its queue is
  // gone.
  const absl::Duration offset_;
  std::deque<Output> held_ ABSL_GUARDED_BY(mu_);  // Outputs that are not durable yet, in order.
  // Position of the last record appended.
  wal::Position appended_ ABSL_GUARDED_BY(mu_) = 0;
  bool snapshotting_ ABSL_GUARDED_BY(mu_) = false;
  // No snapshot before the log is this long, because the last try failed.
  uint64_t snapshot_at_ ABSL_GUARDED_BY(mu_) = 0;
  bool closing_ ABSL_GUARDED_BY(mu_) = false;
  LedgerWatch ledger_watch_ ABSL_GUARDED_BY(mu_);
  uint64_t next_call_ ABSL_GUARDED_BY(mu_) = 1;
  // Calls without an answer: their callback, and their name for failpoints.
  absl::flat_hash_map<uint64_t, std::pair<Done, const char*>> waiting_ ABSL_GUARDED_BY(mu_);
  uint64_t sequence_ ABSL_GUARDED_BY(mu_) = 0;
  struct Watcher {
    std::function<void(const WatchUpdate&)> on_update;
    bool begun = false;
  };
  std::map<uint64_t, Watcher> watchers_ ABSL_GUARDED_BY(mu_);
  // Job time of the next tick as last announced through `wake`.
  Instant announced_ ABSL_GUARDED_BY(mu_) = absl::InfiniteDuration();
  // Why the runner was stopped; OK before.
  absl::Status stop_reason_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice::queue
