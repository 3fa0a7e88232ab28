#pragma once

#include <grpcpp/grpcpp.h>

#include <deque>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "services/queue/jobs.h"
#include "sluice/queue/v1/queue.pb.h"

// The streaming calls, as reactors that end themselves.
namespace sluice::queue {

// Put: one message after the other is read, stored and acknowledged.
class PutReactor : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  explicit PutReactor(JobTable* jobs) : jobs_(jobs) { StartRead(&in_); }
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone() override { delete this; }

 private:
  absl::StatusOr<v1::PutAck> Store();

  JobTable* const jobs_;
  std::shared_ptr<JobRunner> runner_;  // From the first message on.
  Caller caller_;
  grpc::ByteBuffer in_, out_;
};

// Get: frames that were made up front, from shared memory; one write at a time.
class GetReactor : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 public:
  GetReactor(JobTable* jobs, const grpc::ByteBuffer& request);
  void OnWriteDone(bool ok) override;
  void OnDone() override { delete this; }

 private:
  void Next();
  std::deque<grpc::ByteBuffer> frames_;
  grpc::Status end_;
};

// The frames that answer a Get.
absl::StatusOr<std::deque<grpc::ByteBuffer>> ReadFrames(JobTable* jobs, const v1::GetRequest& request);

// Watch: first the whole state, then what changed; what comes while a write is under way is folded into one message.
class WatchReactor : public grpc::ServerWriteReactor<v1::WatchResponse>, public std::enable_shared_from_this<WatchReactor> {
 public:
  static std::shared_ptr<WatchReactor> Make();
  // Subscribes at `runner`; `ended` runs when the stream is over.
  void Follow(std::shared_ptr<JobRunner> runner, Caller caller, std::function<void()> ended);
  void Beat() ABSL_LOCKS_EXCLUDED(mu_);
  void End(grpc::Status status) ABSL_LOCKS_EXCLUDED(mu_);

  void OnWriteDone(bool ok) override;
  void OnCancel() override { End(grpc::Status(grpc::StatusCode::CANCELLED, "the watcher is gone")); }
  void OnDone() override;

 private:
  void Take(const WatchUpdate& update) ABSL_LOCKS_EXCLUDED(mu_);
  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  std::shared_ptr<WatchReactor> self_;  // Until OnDone.
  std::shared_ptr<JobRunner> runner_;
  Caller caller_;
  uint64_t watcher_ = 0;
  int64_t queue_incarnation_ = 0;
  std::function<void()> ended_;
  Mutex mu_;
  v1::WatchResponse current_, pending_ ABSL_GUARDED_BY(mu_);
  bool has_pending_ ABSL_GUARDED_BY(mu_) = false;
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
  grpc::Status final_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice::queue
