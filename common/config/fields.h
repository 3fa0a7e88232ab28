#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace google::protobuf {
class FieldDescriptor;
}
namespace sluice::rpc::v1 {
class FieldRule;
}

// What the fields of sluice.job.v1.JobSpec mean as keys of the job file.
namespace sluice::config {

// Returns the rule (default, unit, bounds, ..) of a field.
const sluice::rpc::v1::FieldRule& RuleOf(const google::protobuf::FieldDescriptor& field);
// Whether the field is a value of the job file, rather than a block of further keys.
bool IsLeaf(const google::protobuf::FieldDescriptor& field);
bool IsDuration(const google::protobuf::FieldDescriptor& field);
// Whether the field holds free-form values, such as the args of a verifier.
bool IsStruct(const google::protobuf::FieldDescriptor& field);
// Returns the word that leaves the field unset, `auto` or `none`; "" if there is none.
std::string UnsetWord(const google::protobuf::FieldDescriptor& field);
// Joins two parts of a path: "a.b" and "c" give "a.b.c". An empty `path` is left out.
std::string JoinPath(const std::string& path, absl::string_view key);

}  // namespace sluice::config
