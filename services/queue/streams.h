#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/rpc/server_stream.h"
#include "services/queue/attach.h"
#include "services/queue/convert.h"
#include "services/queue/jobs.h"
#include "sluice/queue/v1/queue.pb.h"

// The streaming calls.
namespace sluice::queue {

// Put: one message after the other is stored, and acknowledged once it is durable.
class PutStream : public rpc::BidiStream<grpc::ByteBuffer, grpc::ByteBuffer>,
                  public std::enable_shared_from_this<PutStream> {
 public:
  // A client keeps to half of it: what one stream may have unacknowledged, in bytes.
  static constexpr uint64_t kWindowBytes = 128 << 20;

  // Both outlive the stream.
  PutStream(JobTable* jobs, const AttachServer* attached) : jobs_(jobs), attached_(attached) {}

 private:
  void Received(grpc::ByteBuffer& message) override;
  void ReadsDone() override ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Store(const grpc::ByteBuffer& message);
  absl::Status Open(const v1::PutHeader& header);
  // The payload that a message names in the client's buffer.
  absl::Status Resolve(rpc::Frame* frame) const;
  // A message of `bytes` has its answer.
  void Stored(uint64_t seq, uint64_t bytes, const PutBatch& batch, Reply reply)
      ABSL_LOCKS_EXCLUDED(mu_);

  JobTable* const jobs_;
  const AttachServer* const attached_;
  // From the first message on.
  std::shared_ptr<JobRunner> runner_;
  Caller caller_;
  std::shared_ptr<const AttachServer::Session> session_;  // Null: the client sends payload.
  std::unique_ptr<RecordReader> reader_;
  Mutex mu_;
  int storing_ ABSL_GUARDED_BY(mu_) = 0;  // Messages without an answer yet.
  uint64_t storing_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  bool reads_done_ ABSL_GUARDED_BY(mu_) = false;
};

// Watch: first the whole state, then what changed; what comes while a message is under way is
// folded into the next.
class WatchStream : public rpc::WriteStream<v1::WatchResponse> {
 public:
  // Subscribes at `runner`; `closed` runs when the call is over.
  static void Follow(const std::shared_ptr<WatchStream>& stream, std::shared_ptr<JobRunner> runner,
                     Caller caller, std::function<void()> closed);
  // An empty message, where nothing else is under way.
  void Beat() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Take(const WatchUpdate& update) ABSL_LOCKS_EXCLUDED(mu_);
  void Flush() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Sent() override;
  void Closed() override;

  std::shared_ptr<JobRunner> runner_;
  Caller caller_;
  uint32_t queue_incarnation_ = 0;
  uint64_t watcher_ = 0;
  std::function<void()> closed_;
  Mutex mu_;
  v1::WatchResponse next_ ABSL_GUARDED_BY(mu_);
  bool news_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace sluice::queue
