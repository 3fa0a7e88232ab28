#pragma once

#include "nlohmann/json_fwd.hpp"

namespace google::protobuf {
class Message;
}

namespace sluice::cli {

// Converts a message to JSON as the CLI prints it. Keys are the proto's field names in their order.
// Every field is present, also zeros and empty lists; an unset message or `optional` is null.
// 64-bit integers are numbers, bytes are hex, enums are their short names (RUNNING), times and
// durations have protobuf's JSON form, a number that is not finite is null, and map keys are
// sorted.
nlohmann::ordered_json ToJson(const google::protobuf::Message& message);

}  // namespace sluice::cli
