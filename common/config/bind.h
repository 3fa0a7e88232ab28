#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/config/problems.h"
#include "common/config/yaml_tree.h"

namespace google::protobuf {
class Descriptor;
class FieldDescriptor;
class Message;
}  // namespace google::protobuf

namespace sluice::config {

// Where a value comes from. Origins maps paths of values to it ("trainer.optimizer.lr",
// "data.train.0.path").
struct Origin {
  std::string word;  // "default", "preset", "file:LINE" or "set".
  Place place;       // Its place in the file or in a --set; line 0 otherwise.
};
using Origins = std::map<std::string, Origin>;

// Copies a YAML tree into a message by reflection. It reports unknown keys and values of the wrong
// type. Whether a value is allowed is checked later, on the message (check.h).
class Binder {
 public:
  // Relative paths in the file (source 0) are resolved against `file_dir`, those in a --set against
  // `set_dir`. `kind` is what the file is for messages, such as "job file".
  Binder(std::string file_dir, std::string set_dir, std::string kind, Problems* problems);

  // Sets every value below `message` to its default.
  void FillDefaults(google::protobuf::Message* message, const std::string& path);
  // Copies the keys and values of `map`, which is the block at `path`.
  void Bind(const YamlNode& map, google::protobuf::Message* message, const std::string& path);

  // Records that the value at `path` comes from the preset.
  void MarkPreset(const std::string& path) { origins_[path] = {"preset", {}}; }

  const Origins& origins() const { return origins_; }
  // Returns the place of the value at `path`. If the value is not in the file, returns the place of
  // the nearest enclosing block that is, else line 1.
  Place PlaceOf(absl::string_view path) const;

 private:
  void BindField(const YamlNode& node, google::protobuf::Message* message,
                 const google::protobuf::FieldDescriptor* field, const std::string& path);
  void BindList(const YamlNode& node, google::protobuf::Message* message,
                const google::protobuf::FieldDescriptor* field, const std::string& path);
  void BindStruct(const YamlNode& node, google::protobuf::Message* message,
                  const std::string& path);
  void BindStringMap(const YamlNode& node, google::protobuf::Message* message,
                     const google::protobuf::FieldDescriptor* field, const std::string& path);
  void ReportUnknownKey(const YamlNode::Key& key, const google::protobuf::Message& message,
                        const std::string& path);
  // The folder against which a relative path at `node` is resolved.
  const std::string& BaseDir(const YamlNode& node) const {
    return node.place.source > 0 ? set_dir_ : file_dir_;
  }
  // Records where the value at `path` comes from.
  void RecordOrigin(const YamlNode& node, const std::string& path);

  const std::string file_dir_;
  const std::string set_dir_;
  const std::string kind_;
  Problems* const problems_;
  const google::protobuf::Descriptor* file_type_ = nullptr;  // Of the whole file.
  Origins origins_;
  bool defaults_ = false;  // The values being bound are defaults.
};

}  // namespace sluice::config
