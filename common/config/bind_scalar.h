#pragma once

#include <string>

#include "common/config/problems.h"
#include "common/config/yaml_tree.h"

namespace google::protobuf {
class FieldDescriptor;
class Message;
class Value;
}  // namespace google::protobuf

namespace sluice::config {

// Sets a field, or appends to a repeated field, from one scalar of the job file: a number, a truth
// value, a duration, a size, a word or a path. A relative path is resolved against `base_dir`.
// `path` is that of the value, for messages. A value of the wrong type or unit is reported (0005,
// 0006; job_file.h lists these numbers).
void BindScalar(const YamlNode& node, const std::string& path, const std::string& base_dir,
                google::protobuf::Message* message, const google::protobuf::FieldDescriptor* field,
                Problems* problems);

// Converts a node to a free-form value. Unquoted words that look like a number or a truth value
// become one.
void BindFreeForm(const YamlNode& node, google::protobuf::Value* value, Problems* problems);

}  // namespace sluice::config
