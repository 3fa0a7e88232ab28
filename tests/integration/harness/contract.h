#pragma once

#include <memory>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "common/rpc/channel.h"
#include "google/protobuf/message.h"

// For the tests that call all methods of a service.
namespace sluice::integration {

// The name of a request's method, such as "sluice.queue.v1.QueueService.Admit".
std::string MethodName(const google::protobuf::Message& request);

// Makes one call, or opens a stream and waits for its first message. A unary call that may be
// repeated is repeated for at most 5 s while the daemon is unavailable.
absl::Status CallOnce(const rpc::Channel& channel, const google::protobuf::Message& request);

// The message as text without durations and timestamps, which differ from call to call.
std::string Canonical(const google::protobuf::Message& message);

// A call and its repeat have equal answers. If these have a field `repeat`, it is false, then true.
// `not_compared`: paths of fields that tell what the call itself did.
void ExpectRepeat(const google::protobuf::Message& first, const google::protobuf::Message& second,
                  const std::set<std::string>& not_compared = {});

// Nothing serves the method yet, so it answers UNIMPLEMENTED. Adds the method to `called`.
void ExpectUnimplemented(const rpc::Channel& channel, const google::protobuf::Message& request,
                         std::set<std::string>* called);

// The names of the service's methods that `called` lacks. They are read from the descriptor, so
// that a new method is not forgotten.
std::string ListUncalledMethods(const std::string& service, const std::set<std::string>& called);

}  // namespace sluice::integration
