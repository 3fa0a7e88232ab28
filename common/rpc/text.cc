#include "common/rpc/text.h"

#include <google/protobuf/message.h>

#include <string>
#include <vector>

#include "common/base/utf8.h"

namespace sluice::rpc {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

std::vector<const FieldDescriptor*> FieldsOf(const Message& message) {
  std::vector<const FieldDescriptor*> fields;
  message.GetReflection()->ListFields(message, &fields);
  return fields;
}

// Whether all texts of one string field are UTF-8.
bool IsTextValid(const Message& message, const FieldDescriptor* field) {
  const Reflection& reflection = *message.GetReflection();
  std::string scratch;
  if (!field->is_repeated()) return IsUtf8(reflection.GetStringReference(message, field, &scratch));
  for (int i = 0; i < reflection.FieldSize(message, field); ++i) {
    if (!IsUtf8(reflection.GetRepeatedStringReference(message, field, i, &scratch))) return false;
  }
  return true;
}

bool AreMessagesValid(const Message& message, const FieldDescriptor* field) {
  const Reflection& reflection = *message.GetReflection();
  if (!field->is_repeated()) return HasValidText(reflection.GetMessage(message, field));
  for (int i = 0; i < reflection.FieldSize(message, field); ++i) {
    if (!HasValidText(reflection.GetRepeatedMessage(message, field, i))) return false;
  }
  return true;
}

void ReplaceText(Message* message, const FieldDescriptor* field) {
  const Reflection& reflection = *message->GetReflection();
  if (!field->is_repeated())
    return reflection.SetString(message, field, Utf8Lossy(reflection.GetString(*message, field)));
  for (int i = 0; i < reflection.FieldSize(*message, field); ++i) {
    reflection.SetRepeatedString(message, field, i,
                                 Utf8Lossy(reflection.GetRepeatedString(*message, field, i)));
  }
}

void ReplaceInMessages(Message* message, const FieldDescriptor* field) {
  const Reflection& reflection = *message->GetReflection();
  if (!field->is_repeated()) return MakeTextValid(reflection.MutableMessage(message, field));
  for (int i = 0; i < reflection.FieldSize(*message, field); ++i) {
    // A map field is a list of entries here, so its keys are repaired too.
    MakeTextValid(reflection.MutableRepeatedMessage(message, field, i));
  }
}

}  // namespace

bool HasValidText(const Message& message) {
  for (const FieldDescriptor* field : FieldsOf(message)) {
    if (field->type() == FieldDescriptor::TYPE_STRING && !IsTextValid(message, field)) return false;
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE && !AreMessagesValid(message, field))
      return false;
  }
  return true;
}

void MakeTextValid(Message* message) {
  if (HasValidText(*message)) return;
  for (const FieldDescriptor* field : FieldsOf(*message)) {
    if (field->type() == FieldDescriptor::TYPE_STRING) ReplaceText(message, field);
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) ReplaceInMessages(message, field);
  }
}

}  // namespace sluice::rpc
