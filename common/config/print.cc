// A JobSpec as a job file again, with or without the rules' documentation.

#include <google/protobuf/descriptor.h>
#include <google/protobuf/duration.pb.h>
#include <google/protobuf/message.h>
#include <google/protobuf/struct.pb.h>

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/config/bind.h"
#include "common/config/job_file.h"
#include "common/config/scalar.h"
#include "sluice/job/v1/job.pb.h"
#include "sluice/rpc/v1/options.pb.h"

namespace sluice {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using sluice::rpc::v1::FieldRule;

std::string ValueText(const google::protobuf::Value& value);

std::string StructText(const google::protobuf::Struct& value) {
  std::map<std::string, std::string> sorted;
  for (const auto& [key, child] : value.fields()) sorted[key] = ValueText(child);
  return absl::StrCat("{", absl::StrJoin(sorted, ", ", [](std::string* out, const auto& entry) {
    absl::StrAppend(out, config::StringText(entry.first), ": ", entry.second);
  }), "}");
}

std::string ValueText(const google::protobuf::Value& value) {
  switch (value.kind_case()) {
    case google::protobuf::Value::kBoolValue: return value.bool_value() ? "true" : "false";
    case google::protobuf::Value::kNumberValue: return config::NumberText(value.number_value());
    case google::protobuf::Value::kStructValue: return StructText(value.struct_value());
    case google::protobuf::Value::kListValue:
      return absl::StrCat("[", absl::StrJoin(value.list_value().values(), ", ", [](std::string* out, const auto& child) {
        out->append(ValueText(child));
      }), "]");
    default: return config::StringText(value.string_value());
  }
}

std::string ScalarText(const Message& message, const FieldDescriptor& field, int index) {
  const Reflection& reflection = *message.GetReflection();
  const bool list = field.is_repeated();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL: return reflection.GetBool(message, &field) ? "true" : "false";
    case FieldDescriptor::CPPTYPE_INT32: return absl::StrCat(reflection.GetInt32(message, &field));
    case FieldDescriptor::CPPTYPE_INT64: return absl::StrCat(reflection.GetInt64(message, &field));
    case FieldDescriptor::CPPTYPE_UINT32: return absl::StrCat(reflection.GetUInt32(message, &field));
    case FieldDescriptor::CPPTYPE_UINT64: {
      const uint64_t value = reflection.GetUInt64(message, &field);
      return config::RuleOf(field).unit() == "bytes" ? config::SizeText(value) : absl::StrCat(value);
    }
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return config::NumberText(list ? reflection.GetRepeatedDouble(message, &field, index) : reflection.GetDouble(message, &field));
    case FieldDescriptor::CPPTYPE_STRING: {
      const std::string value = list ? reflection.GetRepeatedString(message, &field, index) : reflection.GetString(message, &field);
      // `auto` of a field without presence is a value, and plain.
      return value == config::RuleOf(field).default_() && !value.empty() && config::UnsetWord(field).empty() ? value : config::StringText(value);
    }
    default: break;
  }
  const Message& value = reflection.GetMessage(message, &field);
  if (value.GetDescriptor()->full_name() == "google.protobuf.Struct") return StructText(static_cast<const google::protobuf::Struct&>(value));
  const auto& duration = static_cast<const google::protobuf::Duration&>(value);
  return config::DurationText(absl::Seconds(duration.seconds()) + absl::Nanoseconds(duration.nanos()));
}

std::string LeafText(const Message& message, const FieldDescriptor& field) {
  const Reflection& reflection = *message.GetReflection();
  if (field.is_map()) {
    std::map<std::string, std::string> sorted;
    for (int i = 0; i < reflection.FieldSize(message, &field); ++i) {
      const Message& entry = reflection.GetRepeatedMessage(message, &field, i);
      sorted[entry.GetReflection()->GetString(entry, field.message_type()->map_key())] =
          config::StringText(entry.GetReflection()->GetString(entry, field.message_type()->map_value()));
    }
    return absl::StrCat("{", absl::StrJoin(sorted, ", ", [](std::string* out, const auto& entry) {
      absl::StrAppend(out, config::StringText(entry.first), ": ", entry.second);
    }), "}");
  }
  if (field.is_repeated()) {
    std::vector<std::string> values;
    for (int i = 0; i < reflection.FieldSize(message, &field); ++i) values.push_back(ScalarText(message, field, i));
    return absl::StrCat("[", absl::StrJoin(values, ", "), "]");
  }
  const std::string word = config::UnsetWord(field);
  if (!word.empty() && !reflection.HasField(message, &field) && field.name() != "args") return word;
  return ScalarText(message, field, 0);
}

// "Learning rate. >= 0; live"
std::string RuleText(const FieldDescriptor& field) {
  const FieldRule& rule = config::RuleOf(field);
  std::vector<std::string> notes;
  if (rule.required()) notes.push_back("required");
  if (!rule.unit().empty() && rule.unit() != "s" && rule.unit() != "bytes") notes.push_back(rule.unit());
  const auto bound = [&](double value) {
    if (rule.unit() == "bytes") return config::SizeText(static_cast<uint64_t>(value));
    return rule.unit() == "s" ? config::DurationText(absl::Seconds(value)) : config::NumberText(value);
  };
  if (rule.has_min() && rule.has_max()) notes.push_back(absl::StrCat(bound(rule.min()), " to ", bound(rule.max())));
  else if (rule.has_min() && rule.unit() == "s" && rule.min() == 0) notes.push_back("more than 0s");
  else if (rule.has_min()) notes.push_back(absl::StrCat("from ", bound(rule.min())));
  if (rule.choices_size() > 1) notes.push_back(absl::StrJoin(rule.choices(), " | "));
  if (rule.live()) notes.push_back("live");
  return notes.empty() ? rule.doc() : absl::StrCat(rule.doc(), " (", absl::StrJoin(notes, "; "), ")");
}

class Printer {
 public:
  explicit Printer(bool documented) : documented_(documented) {}

  void Print(const Message& message, int indent, bool in_list = false) {
    for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
      const FieldDescriptor& field = *message.GetDescriptor()->field(i);
      const bool dash = in_list && i == 0;
      const std::string key = absl::StrCat(std::string(dash ? indent - 2 : indent, ' '), dash ? "- " : "", field.name(), ":");
      PrintField(message, field, key, indent);
    }
  }
  std::string Take() { return std::move(out_); }

 private:
  void PrintField(const Message& message, const FieldDescriptor& field, const std::string& key, int indent) {
    const Reflection& reflection = *message.GetReflection();
    if (config::IsLeaf(field)) return Line(absl::StrCat(key, " ", LeafText(message, field)), field);
    if (field.is_repeated()) {
      const int size = reflection.FieldSize(message, &field);
      Line(size == 0 ? key + " []" : key, field);
      for (int i = 0; i < size; ++i) Print(reflection.GetRepeatedMessage(message, &field, i), indent + 4, true);
    } else if (!reflection.HasField(message, &field)) {
      Line(absl::StrCat(key, " none"), field);
    } else {
      Line(key, field);
      Print(reflection.GetMessage(message, &field), indent + 2);
    }
  }
  void Line(const std::string& text, const FieldDescriptor& field) {
    out_ += text;
    if (documented_ && !config::RuleOf(field).doc().empty()) {
      out_.append(std::max<int>(2, 40 - static_cast<int>(text.size())), ' ');
      absl::StrAppend(&out_, "# ", RuleText(field));
    }
    out_ += '\n';
  }

  const bool documented_;
  std::string out_;
};

// Gives required values, and those with neither value nor default, their example.
void FillExamples(Message* message) {
  const Reflection& reflection = *message->GetReflection();
  for (int i = 0; i < message->GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor& field = *message->GetDescriptor()->field(i);
    const FieldRule& rule = config::RuleOf(field);
    if (!rule.example().empty()) {
      reflection.SetString(message, &field, rule.example());
    } else if (field.is_repeated() && !config::IsLeaf(field) && rule.required()) {
      Message* element = reflection.AddMessage(message, &field);
      config::Problems problems({""});
      config::Binder("", "", &problems).FillDefaults(element, "");
      FillExamples(element);
    } else if (!config::IsLeaf(field) && !field.is_repeated() && reflection.HasField(*message, &field)) {
      FillExamples(reflection.MutableMessage(message, &field));
    }
  }
}

}  // namespace

std::string JobFileDefaults() {
  job::v1::JobSpec spec;
  config::Problems problems({"defaults"});
  config::Binder("/", "/", &problems).FillDefaults(&spec, "");
  SLUICE_CHECK_MSG(problems.empty(), problems.Take()[0].ToString());
  FillExamples(&spec);
  Printer printer(true);
  printer.Print(spec, 0);
  return printer.Take();
}

std::string JobFileText(const job::v1::JobSpec& spec) {
  Printer printer(false);
  printer.Print(spec, 0);
  return printer.Take();
}

}  // namespace sluice
