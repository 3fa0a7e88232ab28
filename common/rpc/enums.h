#pragma once

#include "absl/status/status.h"
#include "google/protobuf/message.h"

namespace sluice::rpc {

// Whether this build knows the value of each enum field that is set, in the message and all within.
// INVALID_ARGUMENT UNKNOWN_VALUE: of one it does not, sent by a newer client or by no client of
// ours; names the field's path.
absl::Status CheckEnums(const google::protobuf::Message& message);

}  // namespace sluice::rpc
