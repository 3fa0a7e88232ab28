#pragma once

#include <string>

#include "nlohmann/json_fwd.hpp"

namespace google::protobuf {
class Message;
}

namespace sluice::cli {

// A message as the CLI prints it: the proto's field names in their order, every field, zeros and
// empty lists included; an unset message or `optional` is null; 64-bit integers are numbers, bytes
// are hex; enums by their short names (RUNNING), times and durations in the canonical form, a
// number that is not finite as null; map keys sorted.
nlohmann::ordered_json ToJson(const google::protobuf::Message& message);

// With two spaces of indent and a newline at the end.
std::string ToJsonText(const google::protobuf::Message& message);

}  // namespace sluice::cli
