#include "common/config/bind_scalar.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/duration.pb.h>
#include <google/protobuf/message.h>
#include <google/protobuf/struct.pb.h>

#include <cmath>
#include <filesystem>
#include <limits>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/base/utf8.h"
#include "common/config/fields.h"
#include "common/config/scalar.h"
#include "sluice/rpc/v1/options.pb.h"

namespace sluice::config {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using sluice::rpc::v1::FieldRule;
using Kind = YamlNode::Kind;

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

}  // namespace

void BindScalar(const YamlNode& node, const std::string& path, const std::string& base_dir,
                Message* message, const FieldDescriptor* field, Problems* problems) {
  const FieldRule& rule = RuleOf(*field);
  const Reflection& reflection = *message->GetReflection();
  const auto wrong = [&](absl::string_view wanted) {
    problems->Add(node.place, 5,
                  absl::StrCat(path, " wants ", wanted, ", has ", KindName(node),
                               node.quoted ? " in quotes" : ""));
  };
  const auto set_number = [&](auto value, auto setter, auto adder) {
    if (field->is_repeated()) (reflection.*adder)(message, field, value);
    else (reflection.*setter)(message, field, value);
  };

  const std::string or_word =
      UnsetWord(*field).empty() ? "" : absl::StrCat(" or ", UnsetWord(*field));
  const bool unquoted = node.kind == Kind::kScalar && !node.quoted;

  if (IsDuration(*field)) {
    if (node.kind != Kind::kScalar) return wrong("a duration such as 30s" + or_word);
    const absl::StatusOr<absl::Duration> value = ParseDurationText(node.text);
    if (!value.ok()) {
      problems->Add(node.place, ReasonOf(value.status()) == "UNIT" ? 6 : 5,
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
      if (!unquoted || (node.text != "true" && node.text != "false")) return wrong("true or false");
      reflection.SetBool(message, field, node.text == "true");
      return;
    case FieldDescriptor::CPPTYPE_DOUBLE: {
      double value;
      if (!unquoted || !absl::SimpleAtod(node.text, &value)) return wrong("a number" + or_word);
      return set_number(value, &Reflection::SetDouble, &Reflection::AddDouble);
    }
    case FieldDescriptor::CPPTYPE_INT32: {
      int32_t value;
      if (!unquoted || !ParseInteger(node.text, &value)) return wrong("a whole number" + or_word);
      return set_number(value, &Reflection::SetInt32, &Reflection::AddInt32);
    }
    case FieldDescriptor::CPPTYPE_INT64: {
      int64_t value;
      if (!unquoted || !ParseInteger(node.text, &value)) return wrong("a whole number" + or_word);
      return set_number(value, &Reflection::SetInt64, &Reflection::AddInt64);
    }
    case FieldDescriptor::CPPTYPE_UINT32: {
      uint32_t value;
      if (!unquoted || !ParseInteger(node.text, &value))
        return wrong("a whole number from 0 on" + or_word);
      return set_number(value, &Reflection::SetUInt32, &Reflection::AddUInt32);
    }
    case FieldDescriptor::CPPTYPE_UINT64: {
      uint64_t value = 0;
      if (rule.unit() == "bytes") {
        if (!unquoted) return wrong("a size such as 512MiB");
        const absl::StatusOr<uint64_t> size = ParseSizeText(node.text);
        if (!size.ok()) {
          problems->Add(node.place, ReasonOf(size.status()) == "UNIT" ? 6 : 5,
                        absl::StrCat(path, ": ", size.status().message()));
          return;
        }
        value = *size;
      } else if (!unquoted || !ParseInteger(node.text, &value)) {
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
    value = (std::filesystem::path(base_dir) / value).lexically_normal().string();
    if (value.size() > 1 && value.back() == '/') value.pop_back();
    if (!IsUtf8(value)) {  // The text was checked, so the bad bytes are in base_dir.
      problems->Add(
          node.place, 12,
          absl::StrCat(path, ": ", Utf8Lossy(value), " is not UTF-8; rename that directory"));
      return;
    }
  }

  if (field->is_repeated()) reflection.AddString(message, field, value);
  else reflection.SetString(message, field, value);
}

void BindFreeForm(const YamlNode& node, google::protobuf::Value* value, Problems* problems) {
  switch (node.kind) {
    case Kind::kNull:
      problems->Add(node.place, 5, "a value is missing here; write one, or leave the key out");
      return;
    case Kind::kMap:
      for (const auto& [key, child] : node.map)
        BindFreeForm(child, &(*value->mutable_struct_value()->mutable_fields())[key.text],
                     problems);
      if (node.map.empty()) value->mutable_struct_value();
      return;
    case Kind::kList:
      value->mutable_list_value();
      for (const YamlNode& child : node.list)
        BindFreeForm(child, value->mutable_list_value()->add_values(), problems);
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

}  // namespace sluice::config
