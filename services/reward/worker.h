#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "common/daemon/waits.h"
#include "common/log/throttle.h"
#include "common/queue_client/lease_keeper.h"
#include "common/queue_client/put_stream.h"
#include "common/queue_client/queue_client.h"
#include "common/scoring/scorer.h"
#include "services/reward/metrics.h"

namespace sluice::reward {

// Scores one job's tasks: leases what is ready, reads the answers, puts the verdicts. One call
// leases many tasks, one Get reads all their answers and one message carries all their fields.
//
// Owns one thread, `score`, and those of its queue clients. Thread-safe.
class Worker {
 public:
  struct Options {
    std::string job;       // 32 hex digits.
    std::string job_name;  // For people.
    std::string worker;    // This daemon's id.
    int64_t incarnation = 0;
    uint32_t room = 256;  // Tasks leased at once.
  };
  // `queue`: the channel to the job's queue. `failed`: the work has ended for good, why; from the
  // worker's thread.
  Worker(Options options, std::shared_ptr<rpc::Channel> queue, Scorer scorer,
         const Metrics& metrics, std::function<void(absl::Status why)> failed);
  ~Worker();  // Stop().

  // Gives back what it holds, so that another worker has it at once, and joins. Idempotent.
  void Stop();
  // What the scoring here waits for. The queue tells of the calls parked there.
  std::vector<common::v1::WaitEdge> Explain() const;

 private:
  void Run();
  absl::Status ScoreTasks(const std::vector<queue::v1::Task>& tasks);
  // The text of each task's answer; a task whose answer is gone is left out.
  absl::StatusOr<std::vector<std::string>> ReadMessages(const std::vector<queue::v1::Task>& tasks);
  absl::Status Read(const std::vector<const queue::v1::Task*>& tasks,
                    const std::function<void(const std::vector<QueueClient::Fetched>&)>& take);
  void PutScore(const queue::v1::Task& task, const Score& score);
  void Done(const std::string& lease);  // Renewed and given back no more.

  const Options options_;
  const std::shared_ptr<rpc::Channel> queue_;
  const Scorer scorer_;
  const Metrics metrics_;
  const std::function<void(absl::Status why)> failed_;
  daemon::Waits waits_;
  rpc::Cancel stop_;
  QueueClient client_;
  LeaseKeeper leases_;
  // Of lines about scores that the queue did not take. Outlives `puts_`, whose callbacks use it.
  log::Throttle refused_{absl::Seconds(10)};
  PutStream puts_;

  mutable Mutex mu_;
  // Leases without a verdict that the queue has acknowledged.
  std::set<std::string> held_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

}  // namespace sluice::reward
