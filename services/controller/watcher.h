#pragma once

#include <deque>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "services/controller/job_service.h"

namespace sluice::controller {

// One Watch: the job's status, then what happened behind the places given, and with `follow` what
// happens. It reads pages of stored events and steps as its client takes them, so a slow client
// costs one page.
//
// gRPC's threads and the loop's meet in `mu_`; at most one write is open. Kept by its service, and
// by what was posted, until OnDone.
class JobService::Watcher : public grpc::ServerWriteReactor<job::v1::WatchResponse>,
                            public std::enable_shared_from_this<Watcher> {
 public:
  Watcher(JobService* service, const job::v1::WatchRequest& request)
      : service_(service),
        wanted_(request.job()),
        follow_(request.follow()),
        event_(request.after_event()),
        step_(request.has_after_step() ? request.after_step() : -1) {}

  // On the loop's thread.
  void Begin(Controller& core) ABSL_LOCKS_EXCLUDED(mu_);
  // Sends what there is, unless a write is open.
  void Pump(Controller& core) ABSL_LOCKS_EXCLUDED(mu_);
  void Beat(absl::Duration now) ABSL_LOCKS_EXCLUDED(mu_);
  // Id of the job; empty before Begin().
  const std::string& job() const { return job_; }

  // From any thread.
  void End(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);

  void OnWriteDone(bool ok) override ABSL_LOCKS_EXCLUDED(mu_);
  void OnCancel() override { End(absl::CancelledError("the client left")); }
  void OnDone() override;

 private:
  // Fills page_ from the store; false: there is nothing new.
  bool Fill(const Job& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  JobService* const service_;
  const std::string wanted_;  // Id or name.
  const bool follow_;
  std::string job_;  // The loop's thread alone.

  Mutex mu_;
  std::deque<job::v1::WatchResponse> page_ ABSL_GUARDED_BY(mu_);
  job::v1::WatchResponse open_ ABSL_GUARDED_BY(mu_);  // Of the write that is open: gRPC reads it.
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t event_ ABSL_GUARDED_BY(mu_);        // Last one put on a page, as are
  int64_t step_ ABSL_GUARDED_BY(mu_);          // step
  uint64_t changes_ ABSL_GUARDED_BY(mu_) = 0;  // and status.
  absl::Duration quiet_since_ ABSL_GUARDED_BY(mu_) = absl::InfiniteDuration();
};

}  // namespace sluice::controller
