#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace google::protobuf {
class FieldDescriptor;
}

namespace sluice::config {

// The words that a value may be: those of the rule at its field, or the names of the registry that
// decides (verifiers, losses, schedules, ..). Empty: any word, or no word at all. The word that
// leaves the field unset is not among them.
std::vector<std::string> ChoicesOf(const google::protobuf::FieldDescriptor& field,
                                   absl::string_view rule_path);

// Those of them that this build does not refuse; none where it refuses the whole key.
std::vector<std::string> BuiltChoicesOf(const google::protobuf::FieldDescriptor& field,
                                        absl::string_view rule_path);

}  // namespace sluice::config
