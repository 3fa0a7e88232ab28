#pragma once

#include <string>
#include <vector>

namespace google::protobuf {
class FieldDescriptor;
}

// What is said of a key of the job file, wherever it is documented.
namespace sluice::config {

inline constexpr char kNotBuilt[] = "not in this build";

// What values a key may have, and when it may change, as short notes. `choices` is the note of its
// words, or "".
std::vector<std::string> RuleNotes(const google::protobuf::FieldDescriptor& field,
                                   const std::string& choices);

// The text of a key, after a note if this build refuses the key.
std::string DocOf(const google::protobuf::FieldDescriptor& field, const std::string& rule_path);

}  // namespace sluice::config
