#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"

namespace google::protobuf {
class Message;
}

namespace sluice::config {
class Binder;
class Problems;

// Reads a YAML file of the operator into `message`, whose fields say by their options which keys
// and values there are. Values that the file does not give get their defaults. `check` adds the
// problems of values that do not fit together; it is called if each value by itself is right.
// `kind` is what the file is for messages, such as "policy file".
// INVALID_ARGUMENT BAD_CONFIG: one line for each problem, with its place. Else as ReadFile().
absl::Status ReadOperatorFile(
    const std::string& path, const std::string& kind, google::protobuf::Message* message,
    const std::function<void(const Binder& binder, Problems* problems)>& check);

}  // namespace sluice::config
