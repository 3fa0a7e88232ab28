#pragma once

#include "absl/status/status.h"
#include "google/protobuf/message.h"

namespace sluice::rpc {

// Checks that this build knows the value of every enum field that is set in `message` and its
// sub-messages.
// INVALID_ARGUMENT UNKNOWN_VALUE: it does not know one, which comes from a newer or a foreign
// client. The message names the path of the field.
absl::Status CheckEnums(const google::protobuf::Message& message);

}  // namespace sluice::rpc
