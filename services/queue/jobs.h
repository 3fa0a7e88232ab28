#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "services/queue/runner.h"

namespace sluice::queue {

// The jobs of one queue daemon. A job begins with its first SetJob, whose data files are read on a
// thread of their own, and goes with phase FREED. Jobs of level metadata and full live in
// DATA_DIR/jobs and come back with Recover(). Jobs share the daemon's memory fairly (FairShares).
//
// Thread-safe. Owns two threads: `timer` ticks the jobs and looks after their memory, `load` reads
// data files and removes what is freed.
class JobTable {
 public:
  struct Options {
    Clock* clock = Clock::Real();
    int64_t incarnation = 1;  // Of the daemon; 0: SetIncarnation() will tell.
    std::string data_dir;     // Owned by this process; empty: jobs of level memory alone.
    wal::Log::Options log;
    uint64_t memory_bytes = 0;           // That all jobs may reserve; 0: DefaultMemory().
    uint64_t snapshot_bytes = 64 << 20;  // As of JobRunner.
    // A log failed for good. Unset: says so and ends the process at once, exit code 1.
    std::function<void(const absl::Status&)> fatal;
    // A job began: metrics. May be empty.
    std::function<void(const std::shared_ptr<JobRunner>&)> added;
    std::function<void(const std::shared_ptr<JobRunner>&)> removed;
    // A log was synced, on its thread. May be empty, as the next.
    std::function<void(absl::Duration)> synced;
    std::function<void(absl::Duration)> recovered;  // A job was brought back from its log.
    // Told each change of a job's books: see JobRunner::Options. `incarnation` is that of the
    // queue.
    std::function<void(const std::string& job, uint64_t incarnation,
                       std::shared_ptr<const BookEntry> entry)>
        books;
    // Told each alarm of a job, maybe under the job's lock: it must only take note. May be empty.
    std::function<void(const std::string& job_name, const Alarm& alarm)> alarm;
  };
  explicit JobTable(Options options);
  ~JobTable();  // Shut().

  // Brings back what the data directory holds, one job after the other; once, before any call. They
  // go on when the incarnation is known. A job that cannot be brought back is refused by name, with
  // the reason, and keeps its folder until it is freed; the others go on. An error is one of the
  // directory itself.
  absl::Status Recover() ABSL_LOCKS_EXCLUDED(mu_);

  // Of the daemon, as the controller gave it; part of group ids. Until it is known, calls get
  // UNAVAILABLE.
  void SetIncarnation(int64_t incarnation) ABSL_LOCKS_EXCLUDED(mu_);

  // UNAVAILABLE NOT_LISTED: the job has not been heard of (yet). FAILED_PRECONDITION, DATA_LOSS: it
  // could not be brought back.
  absl::StatusOr<std::shared_ptr<JobRunner>> Find(const std::string& job) ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<std::shared_ptr<JobRunner>> All() ABSL_LOCKS_EXCLUDED(mu_);

  // `name`: of the job, for people. `done` may run on any thread. FAILED_PRECONDITION NO_MEMORY:
  // what the jobs need at the least is more than the daemon may use. FAILED_PRECONDITION
  // NO_DATA_DIR: its level needs a data directory. INVALID_ARGUMENT: the spec, or its data (see
  // ReadJsonl).
  void SetJob(const std::string& job, const std::string& name, const Caller& caller,
              queue::SetJob input, JobRunner::Done done) ABSL_LOCKS_EXCLUDED(mu_);

  // Ends all parked calls with UNAVAILABLE and joins the threads. Idempotent.
  void Shut() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Load(const std::string& job, const std::string& name, const Caller& caller,
            queue::SetJob input, JobRunner::Done done);
  void Forward(const std::shared_ptr<JobRunner>& runner, const std::string& job,
               const Caller& caller, queue::SetJob input, JobRunner::Done done);
  void Remove(const std::string& job) ABSL_LOCKS_EXCLUDED(mu_);
  JobRunner::Options RunnerOptions(const std::string& job, const std::string& name,
                                   int64_t incarnation);
  absl::StatusOr<std::shared_ptr<JobRunner>> Make(const std::string& job, const std::string& name,
                                                  const Spec& spec, int64_t incarnation);
  absl::StatusOr<StoredJob> RecoverOne(const std::string& job, Arena* arena);
  void Add(const std::string& job, const std::shared_ptr<JobRunner>& runner)
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status CheckMemory(const Spec& spec) ABSL_LOCKS_EXCLUDED(mu_);
  void Rebalance() ABSL_LOCKS_EXCLUDED(mu_);
  void LoadLoop() ABSL_LOCKS_EXCLUDED(mu_);
  void TimerLoop() ABSL_LOCKS_EXCLUDED(mu_);

  const Options options_;
  const uint64_t memory_bytes_;
  Mutex mu_;
  CondVar load_, timer_;
  bool shut_ ABSL_GUARDED_BY(mu_) = false;
  int64_t incarnation_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, std::shared_ptr<JobRunner>> jobs_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, uint64_t> shares_ ABSL_GUARDED_BY(mu_);  // As told to the jobs last.
  struct Recovered {
    StoredJob stored;
    std::shared_ptr<Arena> arena;  // Of its payload.
  };
  // They wait for the incarnation.
  std::map<std::string, Recovered> recovered_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, absl::Status> refused_ ABSL_GUARDED_BY(mu_);  // Could not be brought back.
  std::deque<std::function<void()>> loads_ ABSL_GUARDED_BY(mu_);
  Instant wake_ ABSL_GUARDED_BY(mu_) = absl::InfiniteDuration();
  std::thread load_thread_, timer_thread_;
};

}  // namespace sluice::queue
