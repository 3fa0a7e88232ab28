#include "common/config/leaves.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/duration.pb.h>
#include <google/protobuf/message.h>
#include <google/protobuf/struct.pb.h>

#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/config/bind.h"
#include "common/config/fields.h"
#include "common/config/scalar.h"
#include "sluice/rpc/v1/options.pb.h"

namespace sluice::config {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

class Visitor {
 public:
  Visitor(bool unset_blocks, const std::function<void(const Leaf&)>& visit)
      : unset_blocks_(unset_blocks), visit_(visit) {}

  void Visit(const Message& message, const std::string& path, const std::string& rule_path) {
    const Reflection& reflection = *message.GetReflection();
    for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
      const FieldDescriptor& field = *message.GetDescriptor()->field(i);
      const std::string here = JoinPath(path, field.name()),
                        rule_here = JoinPath(rule_path, field.name());
      if (IsLeaf(field) || field.is_repeated()) visit_({here, rule_here, &message, &field});
      if (IsLeaf(field)) continue;

      if (field.is_repeated()) {
        for (int j = 0; j < reflection.FieldSize(message, &field); ++j) {
          Visit(reflection.GetRepeatedMessage(message, &field, j), JoinPath(here, absl::StrCat(j)),
                rule_here);
        }
      } else if (reflection.HasField(message, &field) ||
                 (unset_blocks_ && RuleOf(field).default_() != "none")) {
        Visit(reflection.GetMessage(message, &field), here, rule_here);
      }
    }
  }

 private:
  const bool unset_blocks_;
  const std::function<void(const Leaf&)>& visit_;
};

std::string ValueText(const google::protobuf::Value& value);

std::string MapText(const std::map<std::string, std::string>& texts) {
  return absl::StrCat("{",
                      absl::StrJoin(texts, ", ",
                                    [](std::string* out, const auto& entry) {
                                      absl::StrAppend(out, StringText(entry.first), ": ",
                                                      entry.second);
                                    }),
                      "}");
}

std::string StructText(const google::protobuf::Struct& value) {
  std::map<std::string, std::string> texts;
  for (const auto& [key, child] : value.fields()) texts[key] = ValueText(child);
  return MapText(texts);
}

std::string ValueText(const google::protobuf::Value& value) {
  switch (value.kind_case()) {
    case google::protobuf::Value::kBoolValue: return value.bool_value() ? "true" : "false";
    case google::protobuf::Value::kNumberValue: return NumberText(value.number_value());
    case google::protobuf::Value::kStructValue: return StructText(value.struct_value());
    case google::protobuf::Value::kListValue:
      return absl::StrCat(
          "[",
          absl::StrJoin(value.list_value().values(), ", ",
                        [](std::string* out, const auto& child) { out->append(ValueText(child)); }),
          "]");
    default: return StringText(value.string_value());
  }
}

}  // namespace

void VisitLeaves(const Message& message, bool unset_blocks,
                 const std::function<void(const Leaf&)>& visit) {
  Visitor(unset_blocks, visit).Visit(message, "", "");
}

std::string ScalarText(const Message& message, const FieldDescriptor& field, int index) {
  const Reflection& reflection = *message.GetReflection();
  const bool list = field.is_repeated();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection.GetBool(message, &field) ? "true" : "false";
    case FieldDescriptor::CPPTYPE_INT32: return absl::StrCat(reflection.GetInt32(message, &field));
    case FieldDescriptor::CPPTYPE_INT64: return absl::StrCat(reflection.GetInt64(message, &field));
    case FieldDescriptor::CPPTYPE_UINT32:
      return absl::StrCat(list ? reflection.GetRepeatedUInt32(message, &field, index)
                               : reflection.GetUInt32(message, &field));
    case FieldDescriptor::CPPTYPE_UINT64: {
      const uint64_t value = reflection.GetUInt64(message, &field);
      return RuleOf(field).unit() == "bytes" ? SizeText(value) : absl::StrCat(value);
    }
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return NumberText(list ? reflection.GetRepeatedDouble(message, &field, index)
                             : reflection.GetDouble(message, &field));
    case FieldDescriptor::CPPTYPE_STRING: {
      const std::string value = list ? reflection.GetRepeatedString(message, &field, index)
                                     : reflection.GetString(message, &field);
      // In a field without presence, `auto` is an ordinary value and is printed without quotes.
      return value == RuleOf(field).default_() && !value.empty() && UnsetWord(field).empty()
                 ? value
                 : StringText(value);
    }
    default: break;
  }

  const Message& value = reflection.GetMessage(message, &field);
  if (value.GetDescriptor()->full_name() == "google.protobuf.Struct")
    return StructText(static_cast<const google::protobuf::Struct&>(value));
  const auto& duration = static_cast<const google::protobuf::Duration&>(value);
  return DurationText(absl::Seconds(duration.seconds()) + absl::Nanoseconds(duration.nanos()));
}

std::string LeafText(const Message& message, const FieldDescriptor& field) {
  const Reflection& reflection = *message.GetReflection();
  if (field.is_map()) {
    std::map<std::string, std::string> texts;
    for (int i = 0; i < reflection.FieldSize(message, &field); ++i) {
      const Message& entry = reflection.GetRepeatedMessage(message, &field, i);
      texts[entry.GetReflection()->GetString(entry, field.message_type()->map_key())] =
          StringText(entry.GetReflection()->GetString(entry, field.message_type()->map_value()));
    }
    return MapText(texts);
  }

  if (field.is_repeated()) {
    std::vector<std::string> values;
    for (int i = 0; i < reflection.FieldSize(message, &field); ++i)
      values.push_back(ScalarText(message, field, i));
    return absl::StrCat("[", absl::StrJoin(values, ", "), "]");
  }

  // The free-form field `args` has no word for "unset"; it prints as {}.
  const std::string word = UnsetWord(field);
  if (!word.empty() && !reflection.HasField(message, &field) && field.name() != "args") return word;
  return ScalarText(message, field, 0);
}

void FillDefaults(Message* message) {
  Problems problems({"defaults"});
  Binder("/", "/", "job file", &problems).FillDefaults(message, "");
  SLUICE_CHECK_MSG(problems.empty(), problems.Take()[0].ToString());
}

bool IsSet(const Leaf& leaf) {
  const Reflection& reflection = *leaf.message->GetReflection();
  return leaf.field->is_repeated() ? reflection.FieldSize(*leaf.message, leaf.field) > 0
                                   : reflection.HasField(*leaf.message, leaf.field);
}

std::optional<double> NumberOf(const Leaf& leaf, int index) {
  const FieldDescriptor& field = *leaf.field;
  const Reflection& reflection = *leaf.message->GetReflection();
  const bool list = field.is_repeated();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return list ? reflection.GetRepeatedDouble(*leaf.message, &field, index)
                  : reflection.GetDouble(*leaf.message, &field);
    case FieldDescriptor::CPPTYPE_INT32: return reflection.GetInt32(*leaf.message, &field);
    case FieldDescriptor::CPPTYPE_INT64:
      return static_cast<double>(reflection.GetInt64(*leaf.message, &field));
    case FieldDescriptor::CPPTYPE_UINT32:
      return list ? reflection.GetRepeatedUInt32(*leaf.message, &field, index)
                  : reflection.GetUInt32(*leaf.message, &field);
    case FieldDescriptor::CPPTYPE_UINT64:
      return static_cast<double>(reflection.GetUInt64(*leaf.message, &field));
    default: break;
  }

  if (!IsDuration(field)) return std::nullopt;
  const auto& duration =
      static_cast<const google::protobuf::Duration&>(reflection.GetMessage(*leaf.message, &field));
  return static_cast<double>(duration.seconds()) + 1e-9 * duration.nanos();
}

}  // namespace sluice::config
