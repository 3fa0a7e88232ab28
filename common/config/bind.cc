#include "common/config/bind.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <google/protobuf/struct.pb.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/config/bind_scalar.h"
#include "common/config/fields.h"
#include "common/config/scalar.h"
#include "sluice/rpc/v1/options.pb.h"

namespace sluice::config {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using sluice::rpc::v1::FieldRule;
using Kind = YamlNode::Kind;

std::vector<std::string> KeysOf(const Descriptor& type) {
  std::vector<std::string> keys;
  for (int i = 0; i < type.field_count(); ++i) keys.push_back(type.field(i)->name());
  return keys;
}

// Returns the path of the first key named `key` below `type`, or "".
std::string FindKey(const Descriptor& type, const std::string& key, const std::string& path) {
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    const std::string here = JoinPath(path, field.name());
    if (field.name() == key) return here;
    if (IsLeaf(field)) continue;
    const std::string found =
        FindKey(*field.message_type(), key, field.is_repeated() ? here + "[]" : here);
    if (!found.empty()) return found;
  }
  return "";
}

std::string DidYouMean(const std::string& nearest) {
  return nearest.empty() ? "" : absl::StrCat(". Did you mean \"", nearest, "\"?");
}

}  // namespace

Binder::Binder(std::string file_dir, std::string set_dir, std::string kind, Problems* problems)
    : file_dir_(std::move(file_dir)),
      set_dir_(std::move(set_dir)),
      kind_(std::move(kind)),
      problems_(problems) {}

void Binder::RecordOrigin(const YamlNode& node, const std::string& path) {
  if (defaults_) origins_[path] = {"default", {0, 0, 0}};
  else
    origins_[path] = {node.place.source > 0 ? "set" : absl::StrCat("file:", node.place.line),
                      node.place};
}

Place Binder::PlaceOf(absl::string_view path) const {
  for (std::string at(path); !at.empty();) {
    const auto found = origins_.find(at);
    if (found != origins_.end() && found->second.place.line > 0) return found->second.place;
    const size_t dot = at.rfind('.');
    at = dot == std::string::npos ? "" : at.substr(0, dot);
  }
  return {0, 1, 1};
}

void Binder::FillDefaults(Message* message, const std::string& path) {
  // All values that are bound inside are defaults, also in nested calls.
  const bool outer = std::exchange(defaults_, true);
  const Descriptor& type = *message->GetDescriptor();
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    const std::string here = JoinPath(path, field.name());
    const FieldRule& rule = RuleOf(field);
    if (!IsLeaf(field) && !field.is_repeated()) {
      if (rule.default_() != "none")
        FillDefaults(message->GetReflection()->MutableMessage(message, &field), here);
    } else if (rule.has_default_()) {
      BindField(ParseYaml(rule.default_(), 0, problems_), message, &field, here);
    }
  }
  defaults_ = outer;
}

void Binder::Bind(const YamlNode& map, Message* message, const std::string& path) {
  if (map.kind != Kind::kMap) {
    problems_->Add(map.place, 5,
                   absl::StrCat(path.empty() ? "a " + kind_ : path, " wants a block of keys, has ",
                                KindName(map)));
    return;
  }
  if (path.empty()) file_type_ = message->GetDescriptor();
  for (const auto& [key, value] : map.map) {
    // The keys of the file are the names of the proto's fields.
    const FieldDescriptor* field = message->GetDescriptor()->FindFieldByName(key.text);
    if (field == nullptr) ReportUnknownKey(key, *message, path);
    else BindField(value, message, field, JoinPath(path, key.text));
  }
}

void Binder::ReportUnknownKey(const YamlNode::Key& key, const Message& message,
                              const std::string& path) {
  const Descriptor& type = *message.GetDescriptor();

  // Suggest a similar key of this block, or else the place of the same key elsewhere in the file.
  std::string hint = DidYouMean(NearestWord(key.text, KeysOf(type)));
  if (hint.empty()) {
    const std::string elsewhere = FindKey(*file_type_, key.text, "");
    if (elsewhere.empty())
      hint = absl::StrCat("; the keys here are ", absl::StrJoin(KeysOf(type), ", "));
    else if (elsewhere == key.text)
      hint = "; it belongs at the top level of the file, without indentation";
    else hint = DidYouMean(elsewhere);
  }

  problems_->Add(key.place, 3,
                 absl::StrCat("unknown key \"", key.text, "\" in ",
                              path.empty() ? "the " + kind_ : path, hint));
}

void Binder::BindField(const YamlNode& node, Message* message, const FieldDescriptor* field,
                       const std::string& path) {
  RecordOrigin(node, path);
  const Reflection& reflection = *message->GetReflection();

  // `auto` or `none`, without quotes, leaves the field unset.
  const std::string word = UnsetWord(*field);
  if (!word.empty() && node.kind == Kind::kScalar && !node.quoted && node.text == word) {
    reflection.ClearField(message, field);
    return;
  }
  if (field->is_map()) return BindStringMap(node, message, field, path);
  if (field->is_repeated()) return BindList(node, message, field, path);
  if (IsStruct(*field)) return BindStruct(node, reflection.MutableMessage(message, field), path);
  if (IsLeaf(*field)) return BindScalar(node, path, BaseDir(node), message, field, problems_);

  // A block: keys that the file leaves out keep their defaults, also if the block is unset by
  // default.
  if (!reflection.HasField(*message, field))
    FillDefaults(reflection.MutableMessage(message, field), path);
  Bind(node, reflection.MutableMessage(message, field), path);
}

void Binder::BindList(const YamlNode& node, Message* message, const FieldDescriptor* field,
                      const std::string& path) {
  message->GetReflection()->ClearField(message, field);
  if (node.kind != Kind::kList) {
    problems_->Add(node.place, 5, absl::StrCat(path, " wants a list, has ", KindName(node)));
    return;
  }
  for (size_t i = 0; i < node.list.size(); ++i) {
    const std::string here = JoinPath(path, absl::StrCat(i));
    if (IsLeaf(*field)) {
      BindScalar(node.list[i], here, BaseDir(node.list[i]), message, field, problems_);
    } else {
      Message* element = message->GetReflection()->AddMessage(message, field);
      RecordOrigin(node.list[i], here);
      FillDefaults(element, here);
      Bind(node.list[i], element, here);
    }
  }
}

void Binder::BindStringMap(const YamlNode& node, Message* message, const FieldDescriptor* field,
                           const std::string& path) {
  message->GetReflection()->ClearField(message, field);
  if (node.kind != Kind::kMap) {
    problems_->Add(node.place, 5,
                   absl::StrCat(path, " wants a block of keys, has ", KindName(node)));
    return;
  }
  const FieldDescriptor* value_field = field->message_type()->map_value();
  for (const auto& [key, value] : node.map) {
    if (value.kind != Kind::kScalar) {
      problems_->Add(value.place, 5,
                     absl::StrCat(path, ".", key.text, " wants a word, has ", KindName(value)));
      continue;
    }
    Message* entry = message->GetReflection()->AddMessage(message, field);
    entry->GetReflection()->SetString(entry, field->message_type()->map_key(), key.text);
    entry->GetReflection()->SetString(entry, value_field, value.text);
  }
}

void Binder::BindStruct(const YamlNode& node, Message* message, const std::string& path) {
  message->Clear();
  if (node.kind != Kind::kMap) {
    problems_->Add(node.place, 5,
                   absl::StrCat(path, " wants a block of keys, has ", KindName(node)));
    return;
  }
  google::protobuf::Value value;
  BindFreeForm(node, &value, problems_);
  message->CopyFrom(value.struct_value());
}

}  // namespace sluice::config
