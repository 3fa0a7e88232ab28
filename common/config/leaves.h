#pragma once

#include <functional>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace google::protobuf {
class FieldDescriptor;
class Message;
}  // namespace google::protobuf

namespace sluice::config {

// A value of a job's spec, or a list of blocks.
struct Leaf {
  std::string path;       // "reward.rewards.0.verifier"
  std::string rule_path;  // The same without list indexes: "reward.rewards.verifier".
  const google::protobuf::Message* message = nullptr;  // The message that holds the field.
  const google::protobuf::FieldDescriptor* field = nullptr;
};

// Calls `visit` for every value below `message`, and for every list of blocks before the values
// inside. With `unset_blocks`, unset blocks are visited as if they were empty, except those with
// the default `none`; without it, they are skipped.
void VisitLeaves(const google::protobuf::Message& message, bool unset_blocks,
                 const std::function<void(const Leaf&)>& visit);

// Whether the value is given, or the list not empty. A value that is unset means `auto` or `none`.
bool IsSet(const Leaf& leaf);
// Returns the value as a number (for a list, the element at `index`); nullopt if it is not a
// number. Durations are in seconds.
std::optional<double> NumberOf(const Leaf& leaf, int index = 0);

// Returns the value as a job file writes it: "5m", "8GiB", "none", "[0.9, 0.95]".
std::string LeafText(const google::protobuf::Message& message,
                     const google::protobuf::FieldDescriptor& field);
// The same for element `index` of a list of scalars, or for a single value (index 0).
std::string ScalarText(const google::protobuf::Message& message,
                       const google::protobuf::FieldDescriptor& field, int index);

// Sets every value below `message` to its default, as for an empty job file.
void FillDefaults(google::protobuf::Message* message);

}  // namespace sluice::config
