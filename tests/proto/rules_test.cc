#include <gtest/gtest.h>

#include <string>

#include "google/protobuf/descriptor.h"
#include "sluice/rpc/v1/options.pb.h"
#include "tests/proto/contracts.h"

namespace sluice {
namespace {

namespace pb = google::protobuf;

bool IsStream(const pb::MethodDescriptor& method) {
  return method.client_streaming() || method.server_streaming();
}

bool HasMessage(const pb::Descriptor& type, const std::string& name, const std::string& message) {
  const pb::FieldDescriptor* field = type.FindFieldByName(name);
  return field != nullptr && field->message_type() != nullptr &&
         field->message_type()->full_name() == message;
}

// Runs once for each method of the contracts.
class MethodTest : public testing::TestWithParam<const pb::MethodDescriptor*> {
 protected:
  const pb::MethodDescriptor& method() const { return *GetParam(); }
  const rpc::v1::MethodRule& rule() const {
    return method().options().GetExtension(rpc::v1::method);
  }
};

TEST_P(MethodTest, HasARuleThatSaysWhoMayCallAndWhatARepeatDoes) {
  EXPECT_GT(rule().roles_size(), 0);
  for (const int role : rule().roles()) EXPECT_NE(role, rpc::v1::ROLE_UNSPECIFIED);
  EXPECT_NE(rule().repeat(), rpc::v1::REPEAT_UNSPECIFIED);
  EXPECT_NE(rule().kind(), rpc::v1::KIND_UNSPECIFIED);
}

TEST_P(MethodTest, IsAStreamOrHasTheDeadlineOfItsKind) {
  EXPECT_EQ(rule().kind() == rpc::v1::KIND_STREAM, IsStream(method()));
  EXPECT_EQ(rule().has_deadline(), !IsStream(method()));

  switch (rule().kind()) {
    case rpc::v1::KIND_UNARY: EXPECT_EQ(rule().deadline().seconds(), 5); break;
    case rpc::v1::KIND_LONG: EXPECT_EQ(rule().deadline().seconds(), 60); break;
    // A call waits for at most 30 s, and 5 s are added for its answer.
    case rpc::v1::KIND_PARKED: EXPECT_EQ(rule().deadline().seconds(), 35); break;
    default: break;
  }
}

TEST_P(MethodTest, ParkedAnswersSayWhatIsMissing) {
  if (rule().kind() != rpc::v1::KIND_PARKED) return;
  EXPECT_TRUE(HasMessage(*method().input_type(), "wait", "google.protobuf.Duration"));
  EXPECT_TRUE(HasMessage(*method().output_type(), "edge", "sluice.common.v1.WaitEdge"));
}

TEST_P(MethodTest, KeyedAnswersSayWhetherTheyAreRepeats) {
  if (rule().repeat() != rpc::v1::REPEAT_KEYED) return;
  const pb::FieldDescriptor* repeat = method().output_type()->FindFieldByName("repeat");
  ASSERT_NE(repeat, nullptr);
  EXPECT_EQ(repeat->type(), pb::FieldDescriptor::TYPE_BOOL);
  EXPECT_EQ(repeat->number(), 1);
}

TEST_P(MethodTest, IsAuditedIfAPersonChangesSomethingOnceByIt) {
  bool people = false;
  for (const int role : rule().roles())
    people |= role == rpc::v1::ROLE_SUBMITTER || role == rpc::v1::ROLE_OPERATOR;
  if (!people || rule().repeat() != rpc::v1::REPEAT_KEYED) return;
  EXPECT_TRUE(rule().audited());
}

TEST_P(MethodTest, HasItsOwnRequestMessage) {
  for (const pb::MethodDescriptor* other : contracts::Methods()) {
    if (other == &method()) continue;
    EXPECT_NE(other->input_type(), method().input_type()) << other->full_name();
  }
}

INSTANTIATE_TEST_SUITE_P(Contracts, MethodTest, testing::ValuesIn(contracts::Methods()),
                         [](const auto& info) {
                           return std::string(info.param->service()->name()) + "_" +
                                  std::string(info.param->name());
                         });

TEST(EnumTest, ZeroIsUnspecified) {
  for (const pb::FileDescriptor* file : contracts::Files()) {
    for (int i = 0; i < file->enum_type_count(); ++i) {
      const pb::EnumValueDescriptor* zero = file->enum_type(i)->FindValueByNumber(0);
      ASSERT_NE(zero, nullptr) << file->enum_type(i)->full_name();
      EXPECT_TRUE(std::string(zero->name()).ends_with("_UNSPECIFIED")) << zero->full_name();
    }
  }
}

}  // namespace
}  // namespace sluice
