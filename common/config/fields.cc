#include "common/config/fields.h"

#include <google/protobuf/descriptor.h>

#include "absl/strings/str_cat.h"
#include "sluice/rpc/v1/options.pb.h"

namespace sluice::config {
namespace {

using google::protobuf::FieldDescriptor;
using sluice::rpc::v1::FieldRule;

bool IsMessage(const FieldDescriptor& field, const char* name) {
  return field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE &&
         field.message_type()->full_name() == name;
}

}  // namespace

const FieldRule& RuleOf(const FieldDescriptor& field) {
  return field.options().GetExtension(sluice::rpc::v1::field);
}

bool IsDuration(const FieldDescriptor& field) {
  return IsMessage(field, "google.protobuf.Duration");
}

bool IsStruct(const FieldDescriptor& field) { return IsMessage(field, "google.protobuf.Struct"); }

bool IsLeaf(const FieldDescriptor& field) {
  return field.is_map() || field.cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE ||
         IsDuration(field) || IsStruct(field);
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

}  // namespace sluice::config
