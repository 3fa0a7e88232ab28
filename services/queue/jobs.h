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

// The jobs of one queue daemon. A job begins with its first SetJob, whose data files are read on a thread of their own, and
// goes with phase FREED. Jobs share the daemon's memory fairly (FairShares).
//
// Thread-safe. Owns two threads: `timer` ticks the jobs and looks after their memory, `load` reads data files.
class JobTable {
 public:
  struct Options {
    Clock* clock = Clock::Real();
    int64_t incarnation = 1;  // Of the daemon; 0: SetIncarnation() will tell.
    uint64_t memory_bytes = 0;  // That all jobs may reserve; 0: DefaultMemory().
    std::function<void(const std::shared_ptr<JobRunner>&)> added;  // A job began: metrics. May be empty.
    std::function<void(const std::shared_ptr<JobRunner>&)> removed;
    // Told each change of a job's books: see JobRunner::Options. `incarnation` is that of the queue.
    std::function<void(const std::string& job, uint64_t incarnation, std::shared_ptr<const BookEntry> entry)> books;
  };
  explicit JobTable(Options options);
  ~JobTable();  // Shut().

  // Of the daemon, as the controller gave it; part of group ids. Until it is known, the first SetJob of a job gets UNAVAILABLE.
  void SetIncarnation(int64_t incarnation) ABSL_LOCKS_EXCLUDED(mu_);

  // UNAVAILABLE NOT_LISTED: the job has not been heard of (yet).
  absl::StatusOr<std::shared_ptr<JobRunner>> Find(const std::string& job) ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<std::shared_ptr<JobRunner>> All() ABSL_LOCKS_EXCLUDED(mu_);

  // `name`: of the job, for people. `done` may run on any thread. RESOURCE_EXHAUSTED NO_MEMORY: what the jobs need at the least
  // is more than the daemon may use.
  void SetJob(const std::string& job, const std::string& name, const Caller& caller, queue::SetJob input, JobRunner::Done done) ABSL_LOCKS_EXCLUDED(mu_);

  // Ends all parked calls with UNAVAILABLE and joins the threads. Idempotent.
  void Shut() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Load(const std::string& job, const std::string& name, const Caller& caller, queue::SetJob input, JobRunner::Done done);
  void Forward(const std::shared_ptr<JobRunner>& runner, const std::string& job, const Caller& caller, queue::SetJob input, JobRunner::Done done);
  void Remove(const std::string& job) ABSL_LOCKS_EXCLUDED(mu_);
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
  std::deque<std::function<void()>> loads_ ABSL_GUARDED_BY(mu_);
  Instant wake_ ABSL_GUARDED_BY(mu_) = absl::InfiniteDuration();
  std::thread load_thread_, timer_thread_;
};

}  // namespace sluice::queue
