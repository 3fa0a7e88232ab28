#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace google::protobuf {
class Descriptor;
}  // namespace google::protobuf

namespace sluice::rpc {

// Whether a call may be sent again after a failure: always (the method changes nothing, or a repeat
// changes nothing more), with the same request id (the server recognises the repeat), or never.
enum class Repeat { kSafe, kKeyed, kNever };

// What the proto files say about a method, in its `option (sluice.rpc.v1.method)`.
struct Method {
  std::string path;  // "/sluice.queue.v1.QueueService/Admit"
  std::string name;  // "QueueService.Admit": used as a label of metrics.
  Repeat repeat = Repeat::kNever;
  // For one attempt, and the longest that a caller may give it. Both infinite for streams.
  absl::Duration deadline = absl::InfiniteDuration();
  absl::Duration max_deadline = absl::InfiniteDuration();
  const google::protobuf::Descriptor* request = nullptr;
  const google::protobuf::Descriptor* response = nullptr;
};

// The method that takes `request`. Every method has its own request message, so the message names
// the method. Aborts if no method or more than one takes this type, because that breaks the
// contracts. Results are cached. Thread-safe.
const Method& MethodOf(const google::protobuf::Descriptor* request);

}  // namespace sluice::rpc
