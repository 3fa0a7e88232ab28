#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace google::protobuf {
class Descriptor;
}  // namespace google::protobuf

namespace sluice::rpc {

enum class Repeat { kSafe, kKeyed, kNever };

// What the contracts say of a method: its `option (sluice.rpc.v1.method)`.
struct Method {
  std::string path;  // "/sluice.queue.v1.QueueService/Admit"
  std::string name;  // "QueueService.Admit": a label of metrics.
  Repeat repeat = Repeat::kNever;
  absl::Duration deadline = absl::InfiniteDuration();  // Of one try; infinite for streams.
  const google::protobuf::Descriptor* request = nullptr;
  const google::protobuf::Descriptor* response = nullptr;
};

// The method that takes `request`. Every method has its own request message, so the message names
// the call; a type that no method or more than one takes breaks the contracts: aborts. Thread-safe,
// cached.
const Method& MethodOf(const google::protobuf::Descriptor* request);

}  // namespace sluice::rpc
