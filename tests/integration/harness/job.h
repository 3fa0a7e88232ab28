#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/rpc/cancel.h"
#include "sluice/job/v1/job.pb.h"
#include "tests/integration/harness/cluster.h"

namespace sluice::integration {

// A job of a cluster, followed over a Watch from its Submit to its end. When a controller comes
// back, the watch continues after what it has seen. A wait ends with an error as soon as the job is
// over without what was waited for.
//
// Thread-safe. Owns the thread that reads the watch.
class Job {
 public:
  // Submits a job file with changes, as `sluice job submit FILE --set ..` does. `cluster` outlives
  // the job. INVALID_ARGUMENT: the job file's problems.
  static absl::StatusOr<std::unique_ptr<Job>> Submit(Cluster* cluster, const std::string& file,
                                                     std::vector<std::string> sets);
  ~Job();

  const std::string& id() const { return id_; }

  // Waits until step k is reported.
  absl::Status AwaitStep(int64_t k, absl::Duration timeout);
  // Waits for the reports of `count` steps that ended after `since`, by the trainer's clock.
  absl::Status AwaitStepsSince(absl::Time since, int64_t count, absl::Duration timeout);
  // Waits until `what` is true of the job's status.
  absl::Status AwaitStatus(const std::function<bool(const job::v1::JobStatus&)>& what,
                           absl::Duration timeout);
  absl::Status AwaitState(job::v1::JobState state, absl::Duration timeout);
  // Waits for the first event with that code.
  absl::Status AwaitEvent(absl::string_view code, absl::Duration timeout);
  // Waits for a final state and returns the status with the result.
  absl::StatusOr<job::v1::JobStatus> AwaitEnd(absl::Duration timeout);

  // Steps done so far: the newest report's k + 1.
  int64_t steps() const;
  // Reports in the order they came.
  std::vector<job::v1::StepReport> reports() const;
  std::vector<common::v1::Event> events() const;
  job::v1::JobStatus status() const;

 private:
  Job(Cluster* cluster, std::string id);
  void FollowWatch();
  void ReadWatch();
  absl::Status Await(const std::function<bool()>& done, absl::string_view what,
                     absl::Duration timeout);

  Cluster* const cluster_;
  const std::string id_;
  rpc::Cancel cancel_;
  mutable Mutex mu_;
  CondVar changed_;
  job::v1::JobStatus status_ ABSL_GUARDED_BY(mu_);
  std::vector<job::v1::StepReport> reports_ ABSL_GUARDED_BY(mu_);
  std::vector<common::v1::Event> events_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

// Submits the example job with `steps` small steps of 4 groups and its checkpoints in the folder of
// `cluster`. `more`: further values as for --set.
absl::StatusOr<std::unique_ptr<Job>> SubmitDigits(Cluster* cluster, int steps,
                                                  std::vector<std::string> more = {});

// The status as text, without the spec.
std::string Text(const job::v1::JobStatus& status);

// OK if the ledger of a job that has ended balances with nothing live, and if the lineage of the
// last checkpoint agrees with it: recomputed, the chain gives the ledger's hash, no trajectory is
// there twice, and there are as many as the ledger counts. `gave_up_durable_steps`: the job went
// back to before a durable checkpoint, so that the ledger also counts what is durable on the branch
// given up.
absl::Status CheckLedgerBalances(const job::v1::JobStatus& status,
                                 bool gave_up_durable_steps = false);

}  // namespace sluice::integration
