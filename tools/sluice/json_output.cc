#include "tools/sluice/json_output.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/id.h"
#include "common/base/status.h"

namespace sluice::cli {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using Json = nlohmann::ordered_json;

Json NumberJson(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

// Shortens the value JOB_STATE_RUNNING of enum JobState to RUNNING.
Json EnumName(const google::protobuf::EnumValueDescriptor* value, int number) {
  if (value == nullptr) return number;
  std::string prefix;
  for (const char c : value->type()->name()) {
    if (absl::ascii_isupper(c) && !prefix.empty()) prefix += '_';
    prefix += absl::ascii_toupper(c);
  }
  return std::string(absl::StripPrefix(value->name(), prefix + "_"));
}

// google.protobuf.Timestamp, Duration and Struct have a JSON form of their own.
bool IsWellKnown(const google::protobuf::Descriptor& type) {
  return type.file()->package() == "google.protobuf";
}

Json WellKnownJson(const Message& message) {
  std::string text;
  SLUICE_CHECK(google::protobuf::util::MessageToJsonString(message, &text).ok());
  return Json::parse(text);
}

Json MessageJson(const Message& message) {
  return IsWellKnown(*message.GetDescriptor()) ? WellKnownJson(message) : ToJson(message);
}

// Returns the value of a field; `index` is -1 if the field is not repeated.
Json FieldJson(const Message& message, const FieldDescriptor& field, int index) {
  const google::protobuf::Reflection& r = *message.GetReflection();
  const bool one = index < 0;
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return one ? r.GetBool(message, &field) : r.GetRepeatedBool(message, &field, index);
    case FieldDescriptor::CPPTYPE_INT32:
      return one ? r.GetInt32(message, &field) : r.GetRepeatedInt32(message, &field, index);
    case FieldDescriptor::CPPTYPE_INT64:
      return one ? r.GetInt64(message, &field) : r.GetRepeatedInt64(message, &field, index);
    case FieldDescriptor::CPPTYPE_UINT32:
      return one ? r.GetUInt32(message, &field) : r.GetRepeatedUInt32(message, &field, index);
    case FieldDescriptor::CPPTYPE_UINT64:
      return one ? r.GetUInt64(message, &field) : r.GetRepeatedUInt64(message, &field, index);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return NumberJson(one ? r.GetDouble(message, &field)
                            : r.GetRepeatedDouble(message, &field, index));
    case FieldDescriptor::CPPTYPE_FLOAT:
      return NumberJson(one ? r.GetFloat(message, &field)
                            : r.GetRepeatedFloat(message, &field, index));
    case FieldDescriptor::CPPTYPE_ENUM: {
      const int number =
          one ? r.GetEnumValue(message, &field) : r.GetRepeatedEnumValue(message, &field, index);
      return EnumName(field.enum_type()->FindValueByNumber(number), number);
    }
    case FieldDescriptor::CPPTYPE_STRING: {
      const std::string text =
          one ? r.GetString(message, &field) : r.GetRepeatedString(message, &field, index);
      return field.type() == FieldDescriptor::TYPE_BYTES ? ToHex(text) : text;
    }
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return MessageJson(one ? r.GetMessage(message, &field)
                             : r.GetRepeatedMessage(message, &field, index));
  }
  return nullptr;
}

Json MapJson(const Message& message, const FieldDescriptor& field) {
  const google::protobuf::Reflection& r = *message.GetReflection();
  std::map<std::string, Json> sorted;
  for (int i = 0; i < r.FieldSize(message, &field); ++i) {
    const Message& entry = r.GetRepeatedMessage(message, &field, i);
    const Json key = FieldJson(entry, *field.message_type()->map_key(), -1);
    sorted[key.is_string() ? key.get<std::string>() : key.dump()] =
        FieldJson(entry, *field.message_type()->map_value(), -1);
  }
  Json out = Json::object();
  for (auto& [key, value] : sorted) out[key] = std::move(value);
  return out;
}

}  // namespace

Json ToJson(const Message& message) {
  Json out = Json::object();
  const google::protobuf::Reflection& r = *message.GetReflection();
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor& field = *message.GetDescriptor()->field(i);
    Json& value = out[field.name()];
    if (field.is_map()) {
      value = MapJson(message, field);
    } else if (field.is_repeated()) {
      value = Json::array();
      for (int j = 0; j < r.FieldSize(message, &field); ++j)
        value.push_back(FieldJson(message, field, j));
    } else if (!field.has_presence() || r.HasField(message, &field)) {
      value = FieldJson(message, field, -1);
    }
  }
  return out;
}

}  // namespace sluice::cli
