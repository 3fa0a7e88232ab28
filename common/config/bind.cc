#include "common/config/bind.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/duration.pb.h>
#include <google/protobuf/message.h>
#include <google/protobuf/struct.pb.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/base/utf8.h"
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

constexpr char kDuration[] = "google.protobuf.Duration";
constexpr char kStruct[] = "google.protobuf.Struct";

bool IsMessage(const FieldDescriptor& field, const char* name) {
  return field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE &&
         field.message_type()->full_name() == name;
}

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
    if (field.is_map() || field.cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE ||
        IsMessage(field, kStruct) || IsMessage(field, kDuration))
      continue;
    const std::string found =
        FindKey(*field.message_type(), key, field.is_repeated() ? here + "[]" : here);
    if (!found.empty()) return found;
  }
  return "";
}

std::string KindName(const YamlNode& node) {
  switch (node.kind) {
    case Kind::kNull: return "nothing";
    case Kind::kMap: return "a block";
    case Kind::kList: return "a list";
    case Kind::kScalar: return absl::StrCat("\"", node.text, "\"");
  }
  return "";
}

std::string DidYouMean(const std::string& nearest) {
  return nearest.empty() ? "" : absl::StrCat(". Did you mean \"", nearest, "\"?");
}

// Parses an integer, written as 1000 or as 1e3. Returns false if the number is not whole or does
// not fit in T.
template <typename T>
bool ParseInteger(const std::string& text, T* value) {
  if (absl::SimpleAtoi(text, value)) return true;
  double number;
  if (!absl::SimpleAtod(text, &number) || number != std::floor(number) || std::abs(number) > 0x1p53)
    return false;
  if (number < static_cast<double>(std::numeric_limits<T>::min()) ||
      number > static_cast<double>(std::numeric_limits<T>::max()))
    return false;
  *value = static_cast<T>(number);
  return true;
}

// Converts a node to a free-form value; unquoted words that look like a number or a truth value
// become one.
void ToValue(const YamlNode& node, google::protobuf::Value* value, Problems* problems) {
  switch (node.kind) {
    case Kind::kNull: problems->Add(node.place, 5, "wants a value, has nothing"); return;
    case Kind::kMap:
      for (const auto& [key, child] : node.map)
        ToValue(child, &(*value->mutable_struct_value()->mutable_fields())[key.text], problems);
      if (node.map.empty()) value->mutable_struct_value();
      return;
    case Kind::kList:
      value->mutable_list_value();
      for (const YamlNode& child : node.list)
        ToValue(child, value->mutable_list_value()->add_values(), problems);
      return;
    case Kind::kScalar:
      double number;
      if (node.quoted) value->set_string_value(node.text);
      else if (node.text == "true" || node.text == "false")
        value->set_bool_value(node.text == "true");
      else if (absl::SimpleAtod(node.text, &number) && std::isfinite(number))
        value->set_number_value(number);
      else value->set_string_value(node.text);
  }
}

}  // namespace

const FieldRule& RuleOf(const FieldDescriptor& field) {
  return field.options().GetExtension(sluice::rpc::v1::field);
}

bool IsLeaf(const FieldDescriptor& field) {
  return field.is_map() || field.cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE ||
         IsMessage(field, kDuration) || IsMessage(field, kStruct);
}

std::string UnsetWord(const FieldDescriptor& field) {
  const FieldRule& rule = RuleOf(field);
  if (!field.has_presence()) return "";
  if (rule.default_() == "auto") return "auto";
  return rule.default_() == "none" || field.has_optional_keyword() ? "none" : "";
}

std::string JoinPath(const std::string& path, absl::string_view key) {
  return path.empty() ? std::string(key) : absl::StrCat(path, ".", key);
}

Binder::Binder(std::string file_dir, std::string set_dir, Problems* problems)
    : file_dir_(std::move(file_dir)), set_dir_(std::move(set_dir)), problems_(problems) {}

void Binder::Note(const YamlNode& node, const std::string& path) {
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
                   absl::StrCat(path.empty() ? "a job file" : path, " wants a block of keys, has ",
                                KindName(map)));
    return;
  }
  for (const auto& [key, value] : map.map) {
    // The keys of the file are the names of the proto's fields.
    const FieldDescriptor* field = message->GetDescriptor()->FindFieldByName(key.text);
    if (field == nullptr) UnknownKey(key, *message, path);
    else BindField(value, message, field, JoinPath(path, key.text));
  }
}

void Binder::UnknownKey(const YamlNode::Key& key, const Message& message, const std::string& path) {
  const Descriptor& type = *message.GetDescriptor();

  // Suggest a similar key of this block, or else the place of the same key elsewhere in the file.
  std::string hint = DidYouMean(NearestWord(key.text, KeysOf(type)));
  if (hint.empty()) {
    const std::string elsewhere =
        FindKey(*google::protobuf::DescriptorPool::generated_pool()->FindMessageTypeByName(
                    "sluice.job.v1.JobSpec"),
                key.text, "");
    if (elsewhere.empty())
      hint = absl::StrCat("; the keys here are ", absl::StrJoin(KeysOf(type), ", "));
    else if (elsewhere == key.text)
      hint = "; it belongs at the top level of the file, without indentation";
    else hint = DidYouMean(elsewhere);
  }

  problems_->Add(key.place, 3,
                 absl::StrCat("unknown key \"", key.text, "\" in ",
                              path.empty() ? "the job file" : path, hint));
}

void Binder::BindField(const YamlNode& node, Message* message, const FieldDescriptor* field,
                       const std::string& path) {
  Note(node, path);
  const Reflection& reflection = *message->GetReflection();

  // `auto` or `none`, without quotes, leaves the field unset.
  const std::string word = UnsetWord(*field);
  if (!word.empty() && node.kind == Kind::kScalar && !node.quoted && node.text == word) {
    reflection.ClearField(message, field);
    return;
  }
  if (field->is_map()) return BindStringMap(node, message, field, path);
  if (field->is_repeated()) return BindList(node, message, field, path);
  if (IsMessage(*field, kStruct))
    return BindStruct(node, reflection.MutableMessage(message, field), path);
  if (IsLeaf(*field)) return BindScalar(node, message, field, path);

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
      BindScalar(node.list[i], message, field, here);
    } else {
      Message* element = message->GetReflection()->AddMessage(message, field);
      Note(node.list[i], here);
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
  ToValue(node, &value, problems_);
  message->CopyFrom(value.struct_value());
}

void Binder::BindScalar(const YamlNode& node, Message* message, const FieldDescriptor* field,
                        const std::string& path) {
  const FieldRule& rule = RuleOf(*field);
  const Reflection& reflection = *message->GetReflection();
  const auto wrong = [&](absl::string_view wanted) {
    problems_->Add(node.place, 5,
                   absl::StrCat(path, " wants ", wanted, ", has ", KindName(node),
                                node.quoted ? " in quotes" : ""));
  };
  const auto set_number = [&](auto value, auto setter, auto adder) {
    if (field->is_repeated()) (reflection.*adder)(message, field, value);
    else (reflection.*setter)(message, field, value);
  };

  const std::string or_word =
      UnsetWord(*field).empty() ? "" : absl::StrCat(" or ", UnsetWord(*field));
  const bool number = node.kind == Kind::kScalar && !node.quoted;

  if (IsMessage(*field, kDuration)) {
    if (node.kind != Kind::kScalar) return wrong("a duration such as 30s" + or_word);
    const absl::StatusOr<absl::Duration> value = ParseDurationText(node.text);
    if (!value.ok()) {
      problems_->Add(node.place, ReasonOf(value.status()) == "UNIT" ? 6 : 5,
                     absl::StrCat(path, ": ", value.status().message()));
      return;
    }
    auto* duration =
        static_cast<google::protobuf::Duration*>(reflection.MutableMessage(message, field));
    duration->set_seconds(absl::ToInt64Seconds(*value));
    duration->set_nanos(static_cast<int32_t>(
        absl::ToInt64Nanoseconds(*value - absl::Seconds(duration->seconds()))));
    return;
  }
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      if (!number || (node.text != "true" && node.text != "false")) return wrong("true or false");
      reflection.SetBool(message, field, node.text == "true");
      return;
    case FieldDescriptor::CPPTYPE_DOUBLE: {
      double value;
      if (!number || !absl::SimpleAtod(node.text, &value)) return wrong("a number" + or_word);
      return set_number(value, &Reflection::SetDouble, &Reflection::AddDouble);
    }
    case FieldDescriptor::CPPTYPE_INT32: {
      int32_t value;
      if (!number || !ParseInteger(node.text, &value)) return wrong("a whole number" + or_word);
      return set_number(value, &Reflection::SetInt32, &Reflection::AddInt32);
    }
    case FieldDescriptor::CPPTYPE_INT64: {
      int64_t value;
      if (!number || !ParseInteger(node.text, &value)) return wrong("a whole number" + or_word);
      return set_number(value, &Reflection::SetInt64, &Reflection::AddInt64);
    }
    case FieldDescriptor::CPPTYPE_UINT32: {
      uint32_t value;
      if (!number || !ParseInteger(node.text, &value))
        return wrong("a whole number from 0 on" + or_word);
      return set_number(value, &Reflection::SetUInt32, &Reflection::AddUInt32);
    }
    case FieldDescriptor::CPPTYPE_UINT64: {
      uint64_t value = 0;
      if (rule.unit() == "bytes") {
        if (!number) return wrong("a size such as 512MiB");
        const absl::StatusOr<uint64_t> size = ParseSizeText(node.text);
        if (!size.ok()) {
          problems_->Add(node.place, ReasonOf(size.status()) == "UNIT" ? 6 : 5,
                         absl::StrCat(path, ": ", size.status().message()));
          return;
        }
        value = *size;
      } else if (!number || !ParseInteger(node.text, &value)) {
        return wrong("a whole number from 0 on" + or_word);
      }
      return set_number(value, &Reflection::SetUInt64, &Reflection::AddUInt64);
    }
    default: break;
  }

  SLUICE_CHECK_MSG(field->cpp_type() == FieldDescriptor::CPPTYPE_STRING, path);
  if (node.kind != Kind::kScalar) return wrong("a word" + or_word);

  // A path, unless the value is one of the field's special words (such as `model`).
  std::string value = node.text;
  if (rule.path() && !absl::c_linear_search(rule.choices(), value)) {
    if (value.empty()) return wrong("a path");
    const std::filesystem::path base = node.place.source > 0 ? set_dir_ : file_dir_;
    value = (base / value).lexically_normal().string();
    if (value.size() > 1 && value.back() == '/') value.pop_back();
    if (!IsUtf8(value)) {  // The text was checked, so the bad bytes are in file_dir_ or set_dir_.
      problems_->Add(
          node.place, 12,
          absl::StrCat(path, ": ", Utf8Lossy(value), " is not UTF-8; rename that directory"));
      return;
    }
  }

  if (field->is_repeated()) reflection.AddString(message, field, value);
  else reflection.SetString(message, field, value);
}

}  // namespace sluice::config
