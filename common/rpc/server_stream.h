#pragma once

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <cstddef>
#include <deque>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "common/rpc/status.h"

// The server's end of streaming calls, for services of the callback API. Only service.cc files
// include this.
//
// Methods that carry payload are served raw, so that no generated parser sees it: the service
// derives from WithRawCallbackMethod_Put<..> of the generated code, its messages are
// grpc::ByteBuffer, read by DecodeFrame and made by EncodeFrame or ToBuffer. A raw and a plain
// callback method of one name do not stack: list a service's methods one by one instead of deriving
// from CallbackService.
namespace sluice::rpc {

// What both kinds share: answers are queued from any thread and written one after the other. The
// stream owns itself from the moment a service returns it, until the call is over; others hold it
// by shared_ptr, and send into a stream that has ended without harm.
template <typename Reactor, typename Response>
class ServerStream : public Reactor {
 public:
  // False: not queued, the stream has ended or will.
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

  // Ends the call once all that was queued is written. The first call counts.
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

  // Messages queued or being written: a producer that holds this below a limit keeps memory
  // bounded.
  size_t pending() const ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    return outbox_.size();
  }

 protected:
  // One message is written. May Send.
  virtual void Sent() {}
  // The call is over, by whatever side; nothing else is called afterwards.
  virtual void Closed() {}

 private:
  template <typename Stream, typename... Args>
  friend std::shared_ptr<Stream> MakeStream(Args&&... args);

  void OnWriteDone(bool ok) override ABSL_LOCKS_EXCLUDED(mu_) {
    const Response* next = nullptr;
    bool finish = false;
    {
      MutexLock lock(&mu_);
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
      Sent();
    }
  }
  void OnCancel() override { End(absl::CancelledError("the client has left")); }
  void OnDone() override {
    Closed();
    self_.reset();
  }

  std::shared_ptr<void> self_;
  mutable Mutex mu_;
  std::deque<Response> outbox_ ABSL_GUARDED_BY(mu_);  // The front is being written.
  bool ending_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status status_;  // Set once, before Finish.
};

// One request was read; answers flow.
template <typename Response>
using WriteStream = ServerStream<grpc::ServerWriteReactor<Response>, Response>;

// Both directions.
template <typename Request, typename Response>
class BidiStream : public ServerStream<grpc::ServerBidiReactor<Request, Response>, Response> {
 public:
  // Begins to read; call it last, once the stream is ready for messages.
  void StartReading() { this->StartRead(&request_); }

 protected:
  // The next message; the one after it is read when this has returned. Must not block.
  virtual void Received(Request& request) = 0;
  // No more comes from the client.
  virtual void ReadsDone() { this->End(absl::OkStatus()); }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return ReadsDone();
    Received(request_);
    StartReading();
  }

  Request request_;
};

// Makes a stream that lives until its call is over; return stream.get() from the service's method.
template <typename Stream, typename... Args>
std::shared_ptr<Stream> MakeStream(Args&&... args) {
  auto stream = std::make_shared<Stream>(std::forward<Args>(args)...);
  stream->self_ = stream;
  return stream;
}

}  // namespace sluice::rpc
