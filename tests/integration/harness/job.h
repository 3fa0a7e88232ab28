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

// A job of a cluster, followed over one Watch from its Submit to its end; the watch picks up behind
// what it has seen where a controller comes back. Waits end with an error as soon as the job is
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
  // Waits until `what` of the job's status.
  absl::Status AwaitStatus(const std::function<bool(const job::v1::JobStatus&)>& what,
                           absl::Duration timeout);
  absl::Status AwaitState(job::v1::JobState state, absl::Duration timeout);
  // Waits for the first event with that code.
  absl::Status AwaitEvent(absl::string_view code, absl::Duration timeout);
  // Waits for a final state, with its result.
  absl::StatusOr<job::v1::JobStatus> AwaitEnd(absl::Duration timeout);

  // Steps done by now: the newest report's k + 1.
  int64_t steps() const;
  // Reports in the order they came.
  std::vector<job::v1::StepReport> reports() const;
  std::vector<common::v1::Event> events() const;
  job::v1::JobStatus status() const;

 private:
  Job(Cluster* cluster, std::string id);
  void Read();
  void ReadOnce();
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

// The example job over `steps` small steps of 4 groups, in `cluster`'s folder, with `more` --set's.
absl::StatusOr<std::unique_ptr<Job>> SubmitDigits(Cluster* cluster, int steps,
                                                  std::vector<std::string> more = {});

std::string Text(const job::v1::JobStatus& status);

// OK: the ledger of a job that has ended balances, nothing lives, and the lineage of its last
// checkpoint gives the ledger's hash when the chain is recomputed, names no trajectory twice and as
// many as the ledger counts. `went_behind`: the job went back behind a durable checkpoint, so that
// the ledger also counts what is durable on the branch given up.
absl::Status CheckBooks(const job::v1::JobStatus& status, bool went_behind = false);

}  // namespace sluice::integration
