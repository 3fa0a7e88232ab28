// One invalid byte in a text must not cost the receiver the whole message.

#include "common/rpc/text.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "sluice/admin/v1/admin.pb.h"
#include "sluice/engine/v1/engine.pb.h"
#include "sluice/env/v1/env.pb.h"
#include "sluice/plugin/v1/plugin.pb.h"
#include "sluice/registry/v1/registry.pb.h"
#include "sluice/rpc/v1/error_details.pb.h"
#include "tests/proto/contracts.h"

namespace sluice {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::MessageFactory;

const std::string kBad = "a\xff\xc3z";
const std::string kMended = "a\xef\xbf\xbd\xef\xbf\xbdz";

void FillText(int depth, Message* message);

// Puts invalid bytes into the field, or into all text fields below it, `depth` levels deep.
void FillField(const FieldDescriptor& field, int depth, Message* message) {
  const google::protobuf::Reflection& reflection = *message->GetReflection();
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
    if (field.is_repeated()) reflection.AddString(message, &field, kBad);
    else reflection.SetString(message, &field, kBad);
  } else if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE && depth > 0) {
    FillText(depth - 1, field.is_repeated() ? reflection.AddMessage(message, &field)
                                            : reflection.MutableMessage(message, &field));
  }
}

void FillText(int depth, Message* message) {
  for (int i = 0; i < message->GetDescriptor()->field_count(); ++i)
    FillField(*message->GetDescriptor()->field(i), depth, message);
}

void AddTypes(const Descriptor& type, std::vector<const Descriptor*>* types) {
  types->push_back(&type);
  for (int i = 0; i < type.nested_type_count(); ++i) AddTypes(*type.nested_type(i), types);
}

std::vector<const Descriptor*> AllTypes() {
  // Naming a type of each file links the file. Files() aborts if a file is not linked.
  (void)admin::v1::DaemonsRequest::descriptor();
  (void)engine::v1::DescribeRequest::descriptor();
  (void)env::v1::DescribeRequest::descriptor();
  (void)plugin::v1::DescribeRequest::descriptor();
  (void)registry::v1::RegisterRequest::descriptor();
  (void)google::rpc::Status::descriptor();

  std::vector<const Descriptor*> types;
  for (const google::protobuf::FileDescriptor* file : contracts::Files()) {
    for (int i = 0; i < file->message_type_count(); ++i) AddTypes(*file->message_type(i), &types);
  }
  return types;
}

TEST(TextTest, EveryStringFieldOfEveryMessageIsMendedSoThatItsReceiverCanReadIt) {
  int fields = 0;
  for (const Descriptor* type : AllTypes()) {
    if (type->options().map_entry()) continue;  // Tested through the map's own field.
    for (int i = 0; i < type->field_count(); ++i) {
      const std::unique_ptr<Message> message(
          MessageFactory::generated_factory()->GetPrototype(type)->New());
      FillField(*type->field(i), 4, message.get());
      const bool bad = !rpc::HasValidText(*message);
      fields += bad;

      rpc::MakeTextValid(message.get());

      EXPECT_TRUE(rpc::HasValidText(*message)) << type->field(i)->full_name();
      const std::unique_ptr<Message> received(message->New());
      EXPECT_TRUE(received->ParseFromString(message->SerializeAsString()))
          << type->field(i)->full_name();
      EXPECT_EQ(received->SerializeAsString().find(kMended) != std::string::npos, bad)
          << type->field(i)->full_name();
    }
  }

  EXPECT_GT(fields, 300);
}

TEST(TextTest, AMessageWithOneBadByteIsReadByNobodyUnlessItIsMended) {
  for (const Descriptor* type : AllTypes()) {
    for (int i = 0; i < type->field_count(); ++i) {
      const FieldDescriptor& field = *type->field(i);
      if (field.type() != FieldDescriptor::TYPE_STRING || type->options().map_entry()) continue;

      const std::unique_ptr<Message> message(
          MessageFactory::generated_factory()->GetPrototype(type)->New());
      FillField(field, 0, message.get());
      const std::unique_ptr<Message> received(message->New());

      EXPECT_FALSE(received->ParseFromString(message->SerializeAsString())) << field.full_name();
      rpc::MakeTextValid(message.get());
      EXPECT_TRUE(received->ParseFromString(message->SerializeAsString())) << field.full_name();
    }
  }
}

TEST(TextTest, BytesFieldsStayAsTheyAre) {
  for (const Descriptor* type : AllTypes()) {
    for (int i = 0; i < type->field_count(); ++i) {
      const FieldDescriptor& field = *type->field(i);
      if (field.type() != FieldDescriptor::TYPE_BYTES || type->options().map_entry()) continue;

      const std::unique_ptr<Message> message(
          MessageFactory::generated_factory()->GetPrototype(type)->New());
      FillField(field, 0, message.get());
      const std::string before = message->SerializeAsString();

      rpc::MakeTextValid(message.get());
      EXPECT_EQ(message->SerializeAsString(), before) << field.full_name();
    }
  }
}

}  // namespace
}  // namespace sluice
