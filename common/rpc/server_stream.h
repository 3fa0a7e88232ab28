#pragma once

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <cstddef>
#include <deque>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/rpc/status.h"

// The server's end of streaming calls, for services of the callback API. It includes gRPC's
// headers, so only the files that implement a service's streams include it.
//
// Methods that carry a payload are served raw, so that no generated parser copies it. The service
// derives from WithRawCallbackMethod_Put<..> of the generated code. Its messages are
// grpc::ByteBuffer: read them with DecodeFrame(), make them with EncodeFrame() or ToBuffer(). One
// method cannot have both a raw and a plain callback version, so such a service lists its methods
// one by one instead of deriving from CallbackService.
namespace sluice::rpc {

// The common part of WriteStream and BidiStream: answers are queued from any thread and written one
// after the other.
//
// The stream owns itself from the moment a service returns it until the call is over. Others hold
// it by shared_ptr; Send() after the end does no harm.
template <typename Reactor, typename Response>
class ServerStream : public Reactor {
 public:
  // Queues a message. Returns false, and drops the message, if the stream has ended or is ending.
  bool Send(Response message) ABSL_LOCKS_EXCLUDED(mu_) {
    const Response* first = nullptr;
    {
      MutexLock lock(&mu_);
      if (ending_) return false;
      outbox_.push_back(std::move(message));
      if (outbox_.size() == 1) first = &outbox_.front();
    }
    if (first != nullptr) this->StartWrite(first);
    return true;
  }

  // Ends the call once all queued messages are written. Only the first call has an effect.
  void End(absl::Status status) ABSL_LOCKS_EXCLUDED(mu_) {
    {
      MutexLock lock(&mu_);
      if (ending_) return;
      ending_ = true;
      status_ = std::move(status);
      if (!outbox_.empty()) return;
    }
    this->Finish(ToGrpcStatus(status_));
  }

  // Number of messages that are queued or being written. A producer bounds its memory by keeping
  // this below a limit.
  size_t pending() const ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    return outbox_.size();
  }

 protected:
  // Called when one message was written. May call Send().
  virtual void OnSent() {}
  // Called when the call is over, whichever side ended it. No other callback follows.
  virtual void OnClosed() {}

 private:
  template <typename Stream, typename... Args>
  friend std::shared_ptr<Stream> MakeStream(Args&&... args);

  void OnWriteDone(bool ok) override ABSL_LOCKS_EXCLUDED(mu_) {
    const Response* next = nullptr;
    bool finish = false;
    {
      MutexLock lock(&mu_);
      SLUICE_CHECK(!outbox_.empty());
      outbox_.pop_front();
      if (!ok) {
        outbox_.clear();
        if (!ending_) status_ = absl::CancelledError("the client has left");
        ending_ = true;
      }
      if (!outbox_.empty()) next = &outbox_.front();
      finish = outbox_.empty() && ending_;
    }
    if (next != nullptr) this->StartWrite(next);
    if (finish) {
      this->Finish(ToGrpcStatus(status_));
    } else if (ok) {
      OnSent();
    }
  }
  void OnCancel() override { End(absl::CancelledError("the client has left")); }
  void OnDone() override {
    OnClosed();
    self_.reset();
  }

  std::shared_ptr<void> self_;  // Keeps the stream alive until OnDone().
  mutable Mutex mu_;
  std::deque<Response> outbox_ ABSL_GUARDED_BY(mu_);  // The front is being written.
  bool ending_ ABSL_GUARDED_BY(mu_) = false;          // Send() is refused from now on.
  absl::Status status_;                               // Set once, before Finish().
};

// A call with one request and a stream of answers.
template <typename Response>
using WriteStream = ServerStream<grpc::ServerWriteReactor<Response>, Response>;

// A call with streams in both directions.
template <typename Request, typename Response>
class BidiStream : public ServerStream<grpc::ServerBidiReactor<Request, Response>, Response> {
 public:
  // Starts to read. Call it last, when the stream is ready to receive messages.
  void StartReading() { this->StartRead(&request_); }

 protected:
  // Called with each message. The next message is read after this returns. Must not block.
  virtual void OnMessage(Request& request) = 0;
  // Called when the client has sent its last message.
  virtual void OnReadsDone() { this->End(absl::OkStatus()); }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return OnReadsDone();
    OnMessage(request_);
    StartReading();
  }

  Request request_;
};

// Makes a stream that lives until its call is over. The service's method returns stream.get().
template <typename Stream, typename... Args>
std::shared_ptr<Stream> MakeStream(Args&&... args) {
  auto stream = std::make_shared<Stream>(std::forward<Args>(args)...);
  stream->self_ = stream;
  return stream;
}

}  // namespace sluice::rpc
