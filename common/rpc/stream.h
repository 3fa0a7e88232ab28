#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/rpc/cancel.h"
#include "common/rpc/channel.h"
#include "common/rpc/payload.h"

namespace google::protobuf {
class Descriptor;
class Message;
}  // namespace google::protobuf

namespace sluice::rpc {

// The client's end of a streaming call in one or both directions: of plain messages (Heartbeat,
// Watch, Evaluate, ..) or of frames (Put, Get, Fetch, Score; payload.h). Calls block. One thread
// may read while another writes; TryCancel() may be called from any thread.
//
// When the stream breaks, Read() or Write() return false, and Finish() then says why. Nothing is
// repeated here, because only the caller knows what must be sent again.
class ClientStream {
 public:
  // Opens the method that takes messages of type `request` (rpc/method.h), as in
  // ClientStream(channel, *PutMessage::descriptor()). Triggering `cancel` ends the stream; it may
  // be null, and outlives the stream. The call carries the trace of the thread that opens it, or a
  // fresh one (base/trace.h).
  ClientStream(const Channel& channel, const google::protobuf::Descriptor& request,
               Cancel* cancel = nullptr, absl::Duration deadline = absl::InfiniteDuration());
  // Cancels the call if Finish() was not called.
  ~ClientStream();
  ClientStream(const ClientStream&) = delete;
  ClientStream& operator=(const ClientStream&) = delete;

  // Returns false if the stream is broken.
  bool Write(const google::protobuf::Message& message);
  // Writes a frame.
  // RESOURCE_EXHAUSTED TOO_LARGE: the frame exceeds a limit of payload.h.
  // UNAVAILABLE: the stream is broken.
  absl::Status WriteFrame(const google::protobuf::MessageLite& header,
                          absl::Span<const PayloadSlice> payload);
  // The same with a payload that lies in shared memory.
  absl::Status WriteSharedFrame(const google::protobuf::MessageLite& header,
                                absl::Span<const shm::Slice> shared);
  // Says that this side has sent its last message. Answers still arrive.
  void WritesDone();

  // Reads the next message. Returns false if the other side has ended the stream, if it is broken,
  // or if the message could not be parsed; Finish() says which.
  bool Read(google::protobuf::Message* message);
  bool ReadFrame(Frame* frame);

  // Ends the stream at once. A Read() that waits returns false.
  void TryCancel();

  // Ends the call; to be called once, after Read() has returned false or after TryCancel(). Returns
  // OK if the server ended the stream normally, else its error with the server's ErrorDetail.
  absl::Status Finish();

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::rpc
