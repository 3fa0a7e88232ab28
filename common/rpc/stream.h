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

// The client's end of a streaming call, both directions at once: of plain messages (Heartbeat,
// Watch) or of frames (Put, Get, Fetch). Calls block. One thread may read while another writes;
// TryCancel() may come from any.
//
// A stream that breaks says so by a false Read or Write; Finish() then tells why. Nothing is
// repeated here: what to send again is the caller's to know.
class ClientStream {
 public:
  // Opens the method that takes messages like `request` (rpc/method.h): ClientStream(channel,
  // *PutMessage::descriptor()). `cancel`, which may be null, outlives the stream and ends it.
  ClientStream(const Channel& channel, const google::protobuf::Descriptor& request,
               Cancel* cancel = nullptr, absl::Duration deadline = absl::InfiniteDuration());
  // Cancels what still runs.
  ~ClientStream();
  ClientStream(const ClientStream&) = delete;
  ClientStream& operator=(const ClientStream&) = delete;

  // False: the stream is broken.
  bool Write(const google::protobuf::Message& message);
  // The same with a frame as its message. RESOURCE_EXHAUSTED: too large. UNAVAILABLE: the stream is
  // broken.
  absl::Status WriteFrame(const google::protobuf::MessageLite& header,
                          absl::Span<const PayloadSlice> payload);
  // The same with payload that lies in shared memory.
  absl::Status WriteSharedFrame(const google::protobuf::MessageLite& header,
                                absl::Span<const shm::Slice> shared);
  // No more comes from this side; the answers still do.
  void WritesDone();

  // False: the other side has ended, or the stream is broken, or the message could not be parsed
  // (Finish() tells).
  bool Read(google::protobuf::Message* message);
  bool ReadFrame(Frame* frame);

  // Ends the stream at once: a parked Read returns false.
  void TryCancel();

  // After a false Read (or after TryCancel): OK if the server ended it well, else its error, with
  // the server's ErrorDetail.
  absl::Status Finish();

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::rpc
