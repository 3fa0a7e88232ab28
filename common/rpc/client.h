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
  // Deadline of one attempt, which is cut to Method::max_deadline. Zero: the method's own deadline.
  absl::Duration deadline = absl::ZeroDuration();
  // Time limit of the call with all its attempts. Zero: one `deadline` for each address of the
  // channel. InfiniteDuration(): until the call succeeds, fails for good or is cancelled.
  absl::Duration give_up = absl::ZeroDuration();
  Cancel* cancel = nullptr;  // Ends the call and its waits. May be null.
  BackoffOptions backoff;
};

// Makes one unary call and blocks until it is answered. The type of the request names the method
// (rpc/method.h), so a call reads
//   AdmitResponse response;
//   SLUICE_RETURN_IF_ERROR(rpc::Call(*channel, request, &response));
// and needs only the header of the messages, not that of the stubs. Text in the request that is not
// UTF-8 is replaced (rpc/text.h).
//
// If the method is SAFE or KEYED, the call is repeated after UNAVAILABLE, DEADLINE_EXCEEDED, and a
// CANCELLED that the server sends when it shuts down. It waits as `backoff` says, or longer if the
// server's RetryInfo asks for it. Other errors, and all errors of NEVER methods, are returned at
// once. On a channel of ConnectToLeader() the next attempt goes to another controller, if there is
// one, and then soon; an attempt that a standby refuses is repeated for all methods. Errors carry
// the server's ErrorDetail; their message begins with method and address.
//
// Each attempt carries the header `traceparent` of the thread's trace (base/trace.h), or of a fresh
// one if it has none.
// CANCELLED: `cancel` was triggered.
//
// Thread-safe.
absl::Status Call(const Channel& channel, const google::protobuf::Message& request,
                  google::protobuf::Message* response, const CallOptions& options = {});

}  // namespace sluice::rpc
