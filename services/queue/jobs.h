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
#include "services/queue/job_folders.h"
#include "services/queue/row_sources.h"
#include "services/queue/runner.h"

namespace sluice::queue {

// The jobs of one queue daemon. A job begins with its first SetJob, for which a separate thread
// reads its data files, and ends with phase FREED. Jobs of the levels metadata and full are stored
// in DATA_DIR/jobs, and Recover() brings them back. The jobs share the daemon's memory fairly
// (FairShares()).
//
// Thread-safe. Owns two threads: `timer` gives the jobs their ticks and divides the memory; `load`
// reads data files and removes freed jobs.
class JobTable {
 public:
  struct Options {
    Clock* clock = Clock::Real();
    int64_t incarnation = 1;  // Of the daemon; 0 if SetIncarnation() will set it.
    // Owned by this process. If empty, only jobs of level memory are possible.
    std::string data_dir;
    wal::Log::Options log;
    uint64_t memory_bytes = 0;  // Limit of what all jobs may reserve; 0 means DefaultMemory().
    uint64_t snapshot_bytes = 64 << 20;  // See JobRunner::Options.
    // Called when a log has failed for good. If empty, the process logs it and ends at once with
    // exit code 1.
    std::function<void(const absl::Status&)> fatal;
    // Called when a job has begun or was removed, for metrics. May be empty.
    std::function<void(const std::shared_ptr<JobRunner>&)> added;
    std::function<void(const std::shared_ptr<JobRunner>&)> removed;
    // Called on the log's thread after each sync of a log, with the time that it took. May be
    // empty.
    std::function<void(absl::Duration)> synced;
    // Called when a job was brought back from its log, with the time that it took. May be empty.
    std::function<void(absl::Duration)> recovered;
    // Called with each change of a job's ledger; see JobRunner::Options. `incarnation` is that of
    // the queue.
    std::function<void(const std::string& job, uint64_t incarnation,
                       std::shared_ptr<const LedgerEntry> entry)>
        ledger_changed;
    // Called with each alarm of a job, perhaps under the job's lock, so it must not call the job.
    // May be empty.
    std::function<void(const std::string& job, const Alarm& alarm)> alarm;
  };
  explicit JobTable(Options options);
  ~JobTable();  // Calls Stop().

  // Brings back the jobs in the data directory, one after the other. Call it once, before all other
  // calls. The jobs go on when the incarnation is known. If a job cannot be brought back, calls for
  // it give the reason, and its folder stays until it is freed; the other jobs go on. An error is
  // returned only if the directory itself cannot be made or read, or if a folder that a crash left
  // half removed cannot be removed.
  absl::Status Recover() ABSL_LOCKS_EXCLUDED(mu_);

  // Sets the daemon's incarnation, which the controller has given it and which is part of group
  // ids. Until then calls get UNAVAILABLE.
  void SetIncarnation(int64_t incarnation) ABSL_LOCKS_EXCLUDED(mu_);

  // Finds a job.
  // UNAVAILABLE NOT_LISTED: the queue has not heard of the job yet.
  // FAILED_PRECONDITION, DATA_LOSS: the job could not be brought back.
  absl::StatusOr<std::shared_ptr<JobRunner>> Find(const std::string& job) ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<std::shared_ptr<JobRunner>> All() ABSL_LOCKS_EXCLUDED(mu_);

  // Makes a job or passes SetJob on to it. `name` is the job's, for people. `done` may run on any
  // thread.
  // FAILED_PRECONDITION NO_MEMORY: the least that all jobs need is more than the daemon may use.
  // FAILED_PRECONDITION NO_DATA_DIR: the job's level needs a data directory.
  // INVALID_ARGUMENT: the spec is wrong, or its data is (see ReadDataset()).
  void SetJob(const std::string& job, const std::string& name, const Caller& caller,
              queue::SetJob input, JobRunner::Done done) ABSL_LOCKS_EXCLUDED(mu_);

  // Ends all parked calls with UNAVAILABLE and joins the threads. Idempotent.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void LoadJob(const std::string& job, const std::string& name, const Caller& caller,
               queue::SetJob input, JobRunner::Done done);
  void ForwardSetJob(const std::shared_ptr<JobRunner>& runner, const std::string& job,
                     const Caller& caller, queue::SetJob input, JobRunner::Done done);
  void RemoveJob(const std::string& job) ABSL_LOCKS_EXCLUDED(mu_);
  JobRunner::Options RunnerOptions(const std::string& job, const std::string& name,
                                   int64_t incarnation);
  absl::StatusOr<std::shared_ptr<JobRunner>> MakeRunner(const std::string& job,
                                                        const std::string& name, const Spec& spec,
                                                        int64_t incarnation);
  void AddJob(const std::string& job, const std::shared_ptr<JobRunner>& runner)
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status CheckMemory(const Spec& spec) ABSL_LOCKS_EXCLUDED(mu_);
  void Rebalance() ABSL_LOCKS_EXCLUDED(mu_);
  void LoadLoop() ABSL_LOCKS_EXCLUDED(mu_);
  void TimerLoop() ABSL_LOCKS_EXCLUDED(mu_);

  const Options options_;
  const uint64_t memory_bytes_;
  JobFolders folders_;  // Used by Recover(), and by the thread `load`.

  Mutex mu_;
  CondVar load_, timer_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  int64_t incarnation_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, std::shared_ptr<JobRunner>> jobs_ ABSL_GUARDED_BY(mu_);
  // The memory shares that the jobs got last.
  std::map<std::string, uint64_t> shares_ ABSL_GUARDED_BY(mu_);
  struct Recovered {
    StoredJob stored;
    std::shared_ptr<Arena> arena;  // Holds its payload.
  };
  // Recovered jobs that wait for the incarnation.
  std::map<std::string, Recovered> recovered_ ABSL_GUARDED_BY(mu_);
  // Why a job could not be brought back.
  std::map<std::string, absl::Status> refused_ ABSL_GUARDED_BY(mu_);
  std::deque<std::function<void()>> loads_ ABSL_GUARDED_BY(mu_);
  // When the timer must look at the jobs next.
  Instant wake_ ABSL_GUARDED_BY(mu_) = absl::InfiniteDuration();
  std::thread load_thread_, timer_thread_;
};

}  // namespace sluice::queue
