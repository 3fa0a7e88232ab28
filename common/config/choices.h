#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace google::protobuf {
class FieldDescriptor;
}

namespace sluice::config {

// A word that a value may have.
struct Choice {
  std::string word;
  std::string doc;  // One line, or "" if the word says it all.
};
// Returns what ChoicesOf() returns, with what each word means.
std::vector<Choice> DocumentedChoicesOf(const google::protobuf::FieldDescriptor& field,
                                        absl::string_view rule_path);

// Returns the words that a value may have, from the rule at its field or from the registry that
// implements them (verifiers, losses, schedules, ..). Empty if any word is allowed or the value is
// not a word. The word that leaves the field unset is not included. `rule_path` is Leaf::rule_path.
std::vector<std::string> ChoicesOf(const google::protobuf::FieldDescriptor& field,
                                   absl::string_view rule_path);

// Returns those of ChoicesOf() that this build does not refuse; empty if it refuses the whole key.
std::vector<std::string> BuiltChoicesOf(const google::protobuf::FieldDescriptor& field,
                                        absl::string_view rule_path);

}  // namespace sluice::config
