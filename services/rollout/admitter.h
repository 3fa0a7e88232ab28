#pragma once

#include <functional>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "common/daemon/waits.h"
#include "services/rollout/grants.h"

namespace sluice {
class LeaseKeeper;
class QueueClient;
class StepLoop;
namespace rpc {
class Cancel;
}
}  // namespace sluice

namespace sluice::rollout {

class Streamer;

// Asks the queue for work whenever the engine has room for a whole group, and passes the granted
// members to the streamer and the engine.
//
// Thread-safe. Owns one thread, `admit`.
class Admitter {
 public:
  struct Options {
    std::string job_name;     // For logs.
    std::string worker;       // This daemon's id.
    uint32_t group_size = 1;  // Members of a group.
    uint32_t slots = 1;       // Answers that the engine samples at once.
  };
  // All pointers outlive the admitter. `drain` ends its waits. `failed` is called on the `admit`
  // thread, once, if the job can get no more work.
  Admitter(Options options, QueueClient* queue, LeaseKeeper* leases, Streamer* streamer,
           StepLoop* loop, Grants* grants, daemon::Waits* waits, rpc::Cancel* drain,
           std::function<void(absl::Status why)> failed);
  ~Admitter();  // Calls Stop().
  Admitter(const Admitter&) = delete;
  Admitter& operator=(const Admitter&) = delete;

  // Starts the thread. Call it once.
  void Start();
  // Says whether the engine holds weights that the trainer published. The admitter asks for no work
  // while it does not. False after true: they are damaged. Idempotent.
  void SetReady(bool ready) ABSL_LOCKS_EXCLUDED(mu_);
  // Joins the thread. First trigger `drain` and call Streamer::CloseRoom(), because these end the
  // thread's waits. Idempotent.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Run();
  bool AwaitReady() ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status AdmitOnce();

  const Options options_;
  QueueClient* const queue_;
  LeaseKeeper* const leases_;
  Streamer* const streamer_;
  StepLoop* const loop_;
  Grants* const grants_;
  daemon::Waits* const waits_;
  rpc::Cancel* const drain_;
  const std::function<void(absl::Status why)> failed_;

  Mutex mu_;
  CondVar changed_;
  bool ready_ ABSL_GUARDED_BY(mu_) = false, was_ready_ ABSL_GUARDED_BY(mu_) = false;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace sluice::rollout
