#pragma once

#include <deque>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "services/controller/callers.h"
#include "services/controller/job_service.h"

namespace sluice::controller {

// One Watch call. It sends the job's status, then the events and steps after the given places, and
// with `follow` each later one as it happens. Steps that a new trainer group trains again are sent
// again. It reads pages of stored events and steps as its client takes them, so a slow client costs
// the memory of one page.
//
// It is used by gRPC's threads and by the loop's thread, and `mu_` protects what both use. At most
// one write is open. The service and the posted work keep it alive until OnDone().
class JobService::Watcher : public grpc::ServerWriteReactor<job::v1::WatchResponse>,
                            public std::enable_shared_from_this<Watcher> {
 public:
  Watcher(JobService* service, Person person, const job::v1::WatchRequest& request)
      : service_(service),
        person_(std::move(person)),
        wanted_(request.job()),
        follow_(request.follow()),
        event_(request.after_event()),
        step_(request.has_after_step() ? request.after_step() : -1) {}

  // Finds the job and sends its status. Call it on the loop's thread.
  void Begin(Controller& core) ABSL_LOCKS_EXCLUDED(mu_);
  // Sends the next message, unless a write is open or there is nothing new. Without `follow` it
  // ends the call when there is nothing more. Call it on the loop's thread.
  void SendNext(Controller& core) ABSL_LOCKS_EXCLUDED(mu_);
  // Sends an empty message if nothing was sent for 10 s, so that the client knows that the
  // connection lives. Call it on the loop's thread.
  void SendKeepalive(absl::Duration now) ABSL_LOCKS_EXCLUDED(mu_);
  // Id of the job; empty before Begin(). Call it on the loop's thread.
  const std::string& job() const { return job_; }

  // Ends the call. From any thread; idempotent.
  void End(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);

  void OnWriteDone(bool ok) override ABSL_LOCKS_EXCLUDED(mu_);
  void OnCancel() override { End(absl::CancelledError("the client left")); }
  void OnDone() override;

 private:
  // Sends the first message of page_, which has one. No write is open.
  void WriteFirst() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Fills page_ from the store. Returns false if there is nothing new.
  bool FillPage(const Job& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  JobService* const service_;
  const Person person_;
  const std::string wanted_;  // Id or name.
  const bool follow_;
  std::string job_;  // Only the loop's thread uses it.

  Mutex mu_;
  std::deque<job::v1::WatchResponse> page_ ABSL_GUARDED_BY(mu_);
  // The message of the open write, which gRPC reads.
  job::v1::WatchResponse open_ ABSL_GUARDED_BY(mu_);
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  // The last event, step and state (Job::changes) that were put on a page.
  uint64_t event_ ABSL_GUARDED_BY(mu_);
  int64_t step_ ABSL_GUARDED_BY(mu_);
  // Number of entries of Job::rewritten_from that were applied to step_.
  size_t rewrites_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t changes_ ABSL_GUARDED_BY(mu_) = 0;
  // Monotonic time of the first SendKeepalive() after the last write; infinite until then.
  absl::Duration quiet_since_ ABSL_GUARDED_BY(mu_) = absl::InfiniteDuration();
};

}  // namespace sluice::controller
