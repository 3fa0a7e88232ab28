#include "common/rpc/enums.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace sluice::rpc {
namespace {
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

// Describes the first enum field with an unknown value, by its path and value. Empty if there is
// none.
std::string DescribeUnknownEnum(const Message& message) {
  const Reflection& reflection = *message.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    const bool is_enum = field->cpp_type() == FieldDescriptor::CPPTYPE_ENUM,
               is_message = field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
    if (!is_enum && !is_message) continue;
    const int count = field->is_repeated() ? reflection.FieldSize(message, field) : 1;
    for (int i = 0; i < count; ++i) {
      if (is_message) {
        const std::string within = DescribeUnknownEnum(
            field->is_repeated() ? reflection.GetRepeatedMessage(message, field, i)
                                 : reflection.GetMessage(message, field));
        if (!within.empty()) return absl::StrCat(field->name(), ".", within);
        continue;
      }
      const int value = field->is_repeated() ? reflection.GetRepeatedEnumValue(message, field, i)
                                             : reflection.GetEnumValue(message, field);
      if (field->enum_type()->FindValueByNumber(value) == nullptr)
        return absl::StrCat(field->name(), ": ", value, " is not a value of ",
                            field->enum_type()->name());
    }
  }
  return "";
}
}  // namespace

absl::Status CheckEnums(const Message& message) {
  const std::string unknown = DescribeUnknownEnum(message);
  if (unknown.empty()) return absl::OkStatus();
  return ErrorWith(absl::StatusCode::kInvalidArgument,
                   {.reason = "UNKNOWN_VALUE", .hint = "use clients and daemons of one build"},
                   absl::StrCat(unknown, " in this build"));
}

}  // namespace sluice::rpc
