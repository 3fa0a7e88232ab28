#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/config/problems.h"
#include "common/config/yaml_tree.h"

namespace google::protobuf {
class FieldDescriptor;
class Message;
}  // namespace google::protobuf
namespace sluice::rpc::v1 {
class FieldRule;
}

namespace sluice::config {

// Where values come from, by their path ("trainer.optimizer.lr", "data.train.0.path").
struct Origin {
  std::string word;  // default, preset, file:LINE or set.
  Place place;       // In the file or a --set; line 0 for the others.
};
using Origins = std::map<std::string, Origin>;

// Maps a YAML tree onto a message by reflection, and tells what is no key of it, or of another
// type. What the values may be is checked on the message (check.h).
class Binder {
 public:
  // Relative paths of source 0 resolve against `file_dir`, those of others against `set_dir`.
  Binder(std::string file_dir, std::string set_dir, Problems* problems);

  // Gives every value below `message` its default.
  void FillDefaults(google::protobuf::Message* message, const std::string& path);
  void Bind(const YamlNode& map, google::protobuf::Message* message, const std::string& path);

  // Says that the value at `path` is the preset's.
  void MarkPreset(const std::string& path) { origins_[path] = {"preset", {}}; }

  const Origins& origins() const { return origins_; }
  // The place of the value at `path`, else of the nearest block around it that the file has.
  Place PlaceOf(absl::string_view path) const;

 private:
  void BindField(const YamlNode& node, google::protobuf::Message* message,
                 const google::protobuf::FieldDescriptor* field, const std::string& path);
  void BindList(const YamlNode& node, google::protobuf::Message* message,
                const google::protobuf::FieldDescriptor* field, const std::string& path);
  void BindScalar(const YamlNode& node, google::protobuf::Message* message,
                  const google::protobuf::FieldDescriptor* field, const std::string& path);
  void BindStruct(const YamlNode& node, google::protobuf::Message* message,
                  const std::string& path);
  void BindStringMap(const YamlNode& node, google::protobuf::Message* message,
                     const google::protobuf::FieldDescriptor* field, const std::string& path);
  void UnknownKey(const YamlNode::Key& key, const google::protobuf::Message& message,
                  const std::string& path);
  void Note(const YamlNode& node, const std::string& path);

  const std::string file_dir_;
  const std::string set_dir_;
  Problems* const problems_;
  Origins origins_;
  bool defaults_ = false;  // What is being bound are defaults.
};

// The rule at a field of the job file.
const sluice::rpc::v1::FieldRule& RuleOf(const google::protobuf::FieldDescriptor& field);
// Whether the field is a value of the job file rather than a block of further keys.
bool IsLeaf(const google::protobuf::FieldDescriptor& field);
// `auto` or `none`, the word that leaves the field unset; empty if none does.
std::string UnsetWord(const google::protobuf::FieldDescriptor& field);
// "a.b" and "c": "a.b.c".
std::string JoinPath(const std::string& path, absl::string_view key);

}  // namespace sluice::config
