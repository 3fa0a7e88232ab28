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

// The call Put: each message is stored in turn, and acknowledged once it is durable.
class PutStream : public rpc::BidiStream<grpc::ByteBuffer, grpc::ByteBuffer>,
                  public std::enable_shared_from_this<PutStream> {
 public:
  // Most bytes of one stream that may be unacknowledged. Sluice's own clients keep far below it
  // (sluice::PutStream::Options::window_bytes).
  static constexpr uint64_t kWindowBytes = 128 << 20;

  // `context` is that of the call. `jobs` and `attached` outlive the stream.
  PutStream(const grpc::ServerContextBase* context, JobTable* jobs, const AttachServer* attached)
      : context_(context), jobs_(jobs), attached_(attached) {}

 private:
  void OnMessage(grpc::ByteBuffer& message) override;
  void OnReadsDone() override ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status StoreMessage(const grpc::ByteBuffer& message);
  absl::Status Open(const v1::PutHeader& header);
  // Finds the payload of a message in the client's shared buffer. INVALID_ARGUMENT BAD_SLICE: it is
  // not there.
  absl::Status ResolveSlices(rpc::Frame* frame) const;
  // Acknowledges message `seq`, which has `bytes`.
  void Acknowledge(uint64_t seq, uint64_t bytes, const PutBatch& batch, Reply reply)
      ABSL_LOCKS_EXCLUDED(mu_);

  const grpc::ServerContextBase* const context_;
  JobTable* const jobs_;
  const AttachServer* const attached_;
  // Set from the first message on.
  std::shared_ptr<JobRunner> runner_;
  Caller caller_;
  std::shared_ptr<const AttachServer::Session> session_;  // Null if the client sends payload.
  std::unique_ptr<RecordReader> reader_;
  Mutex mu_;
  // Number of messages without an answer yet, and their bytes.
  int storing_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t storing_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  bool reads_done_ ABSL_GUARDED_BY(mu_) = false;
};

// The call Watch: the whole state first, then its changes. Changes that come while a message is
// under way are merged into the next one.
class WatchStream : public rpc::WriteStream<v1::WatchResponse> {
 public:
  // Begins to watch `runner`. `closed` runs when the call is over.
  static void Follow(const std::shared_ptr<WatchStream>& stream, std::shared_ptr<JobRunner> runner,
                     Caller caller, std::function<void()> closed);
  // Sends an empty message if no other is under way.
  void SendHeartbeat() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void AddUpdate(const WatchUpdate& update) ABSL_LOCKS_EXCLUDED(mu_);
  void Flush() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnSent() override;
  void OnClosed() override;

  std::shared_ptr<JobRunner> runner_;
  Caller caller_;
  uint32_t queue_incarnation_ = 0;
  uint64_t watcher_ = 0;
  std::function<void()> closed_;
  Mutex mu_;
  // The next message, and whether anything is in it.
  v1::WatchResponse next_ ABSL_GUARDED_BY(mu_);
  bool news_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace sluice::queue
