#pragma once

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/rpc/backoff.h"
#include "common/rpc/cancel.h"
#include "common/rpc/channel.h"

namespace google::protobuf {
class Message;
}  // namespace google::protobuf

namespace sluice::rpc {

struct CallOptions {
  absl::Duration deadline = absl::ZeroDuration();  // Of one try; zero: the method's own.
  // Of the call with all its tries; zero: as deadline. InfiniteDuration(): until it succeeds, fails
  // for good or is cancelled.
  absl::Duration give_up = absl::ZeroDuration();
  Cancel* cancel = nullptr;  // Ends the call, its waits included.
  BackoffOptions backoff;
};

// Makes one unary call and blocks for its answer. The request's type names the method
// (rpc/method.h), so a call reads
//   AdmitResponse response;
//   SLUICE_RETURN_IF_ERROR(rpc::Call(*channel, request, &response));
// and needs the messages' header alone, not the stubs'.
//
// UNAVAILABLE and DEADLINE_EXCEEDED of a SAFE or KEYED method are tried again, after the back-off
// or what the server's RetryInfo asks for; NEVER methods and other errors go up at once. Errors
// carry the server's ErrorDetail; their message begins with method and address. CANCELLED:
// `cancel`.
absl::Status Call(const Channel& channel, const google::protobuf::Message& request,
                  google::protobuf::Message* response, const CallOptions& options = {});

}  // namespace sluice::rpc
