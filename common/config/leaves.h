#pragma once

#include <functional>
#include <string>

#include "absl/strings/string_view.h"

namespace google::protobuf {
class FieldDescriptor;
class Message;
}  // namespace google::protobuf

namespace sluice::config {

// A field of a job's spec: a value, or a list of blocks.
struct Leaf {
  std::string path;       // "reward.rewards.0.verifier"
  std::string rule_path;  // The same without the places in lists: "reward.rewards.verifier".
  const google::protobuf::Message* message = nullptr;  // That holds it.
  const google::protobuf::FieldDescriptor* field = nullptr;
};

// Calls `visit` for every value below `message`, and for every list of blocks before what it holds.
// Blocks that are unset are visited as empty ones where `unset_blocks`, unless `none` is their
// default.
void VisitLeaves(const google::protobuf::Message& message, bool unset_blocks,
                 const std::function<void(const Leaf&)>& visit);

// The value as a job file has it: "5m", "8GiB", "none", "[0.9, 0.95]".
std::string LeafText(const google::protobuf::Message& message,
                     const google::protobuf::FieldDescriptor& field);
// The same of one value of a list of scalars, or of one that is no list (index 0).
std::string ScalarText(const google::protobuf::Message& message,
                       const google::protobuf::FieldDescriptor& field, int index);

// Gives every value below `message` its default, as a job file that says nothing has them.
void FillDefaults(google::protobuf::Message* message);

}  // namespace sluice::config
