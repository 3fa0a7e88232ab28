#include "tests/integration/harness/contract.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/rpc/client.h"
#include "common/rpc/method.h"
#include "common/rpc/stream.h"
#include "google/protobuf/descriptor.h"

namespace sluice::integration {
namespace {

namespace pb = google::protobuf;

bool IsTime(const pb::Descriptor& type) {
  return type.full_name() == "google.protobuf.Duration" ||
         type.full_name() == "google.protobuf.Timestamp";
}

void ClearTimes(pb::Message* message) {
  std::vector<const pb::FieldDescriptor*> fields;
  const pb::Reflection& reflection = *message->GetReflection();
  reflection.ListFields(*message, &fields);
  for (const pb::FieldDescriptor* field : fields) {
    if (field->message_type() == nullptr || field->is_map()) continue;
    if (IsTime(*field->message_type())) {
      reflection.ClearField(message, field);
    } else if (field->is_repeated()) {
      for (int i = 0; i < reflection.FieldSize(*message, field); ++i)
        ClearTimes(reflection.MutableRepeatedMessage(message, field, i));
    } else {
      ClearTimes(reflection.MutableMessage(message, field));
    }
  }
}

// Clears the field at `path`, such as "a.b". If a field on the way is repeated, the rest of the
// path is cleared in each of its elements.
void ClearPath(pb::Message* message, absl::string_view path) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(path, absl::MaxSplits('.', 1));
  const pb::FieldDescriptor* field = message->GetDescriptor()->FindFieldByName(parts.first);
  ASSERT_NE(field, nullptr) << path;
  const pb::Reflection& reflection = *message->GetReflection();
  if (parts.second.empty()) return reflection.ClearField(message, field);
  if (!field->is_repeated())
    return ClearPath(reflection.MutableMessage(message, field), parts.second);
  for (int i = 0; i < reflection.FieldSize(*message, field); ++i)
    ClearPath(reflection.MutableRepeatedMessage(message, field, i), parts.second);
}

}  // namespace

std::string MethodName(const pb::Message& request) {
  return absl::StrReplaceAll(rpc::MethodOf(request.GetDescriptor()).path.substr(1), {{"/", "."}});
}

absl::Status CallOnce(const rpc::Channel& channel, const pb::Message& request) {
  // On a stream, wait for the first message.
  if (rpc::MethodOf(request.GetDescriptor()).deadline == absl::InfiniteDuration()) {
    rpc::ClientStream stream(channel, *request.GetDescriptor());
    rpc::Frame frame;
    if (stream.Write(request) && stream.ReadFrame(&frame)) return absl::OkStatus();
    return stream.Finish();
  }

  const pb::Descriptor* type = rpc::MethodOf(request.GetDescriptor()).response;
  const std::unique_ptr<pb::Message> response(
      pb::MessageFactory::generated_factory()->GetPrototype(type)->New());
  return rpc::Call(channel, request, response.get(),
                   {.deadline = absl::Seconds(5), .give_up = absl::Seconds(5)});
}

std::string Canonical(const pb::Message& message) {
  const std::unique_ptr<pb::Message> copy(message.New());
  copy->CopyFrom(message);
  ClearTimes(copy.get());
  return copy->DebugString();
}

void ExpectRepeat(const pb::Message& first, const pb::Message& second,
                  const std::set<std::string>& not_compared) {
  const std::unique_ptr<pb::Message> a(first.New()), b(second.New());
  a->CopyFrom(first);
  b->CopyFrom(second);

  if (const pb::FieldDescriptor* field = first.GetDescriptor()->FindFieldByName("repeat")) {
    EXPECT_FALSE(first.GetReflection()->GetBool(first, field)) << first.DebugString();
    EXPECT_TRUE(second.GetReflection()->GetBool(second, field)) << second.DebugString();
    b->GetReflection()->ClearField(b.get(), field);
  }

  for (const std::string& path : not_compared) {
    ClearPath(a.get(), path);
    ClearPath(b.get(), path);
  }
  EXPECT_EQ(Canonical(*a), Canonical(*b)) << first.GetDescriptor()->full_name();
}

void ExpectUnimplemented(const rpc::Channel& channel, const pb::Message& request,
                         std::set<std::string>* called) {
  called->insert(MethodName(request));
  const absl::Status status = CallOnce(channel, request);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented)
      << MethodName(request) << ": " << status;
}

std::string ListUncalledMethods(const std::string& service, const std::set<std::string>& called) {
  const pb::ServiceDescriptor* descriptor =
      pb::DescriptorPool::generated_pool()->FindServiceByName(service);
  if (descriptor == nullptr) return absl::StrCat("no service ", service);
  std::string missing;
  for (int i = 0; i < descriptor->method_count(); ++i) {
    if (!called.contains(descriptor->method(i)->full_name()))
      absl::StrAppend(&missing, descriptor->method(i)->name(), " ");
  }
  return missing;
}

}  // namespace sluice::integration
