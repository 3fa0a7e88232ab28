#include "common/rpc/method.h"

#include <google/protobuf/descriptor.h>
#include <gtest/gtest.h>

#include "sluice/admin/v1/admin.pb.h"
#include "sluice/engine/v1/engine.pb.h"
#include "sluice/env/v1/env.pb.h"
#include "sluice/job/v1/job.pb.h"
#include "sluice/plugin/v1/plugin.pb.h"
#include "sluice/queue/v1/queue.pb.h"
#include "sluice/registry/v1/registry.pb.h"
#include "sluice/rpc/v1/options.pb.h"
#include "sluice/weights/v1/weights.pb.h"

namespace sluice::rpc {
namespace {

TEST(MethodTest, AMessageNamesItsCallAndTheRule) {
  const Method& admit = MethodOf(queue::v1::AdmitRequest::descriptor());
  EXPECT_EQ(admit.path, "/sluice.queue.v1.QueueService/Admit");
  EXPECT_EQ(admit.name, "QueueService.Admit");
  EXPECT_EQ(admit.repeat, Repeat::kKeyed);
  EXPECT_EQ(admit.deadline, absl::Seconds(35));
  EXPECT_EQ(admit.response, queue::v1::AdmitResponse::descriptor());
}

TEST(MethodTest, OnlyStreamsMayBeWaitedForLongerThanAnHour) {
  EXPECT_EQ(MethodOf(queue::v1::AdmitRequest::descriptor()).max_deadline, absl::Seconds(35));
  EXPECT_EQ(MethodOf(queue::v1::ApplyRequest::descriptor()).max_deadline, absl::Hours(1));
  EXPECT_EQ(MethodOf(queue::v1::WatchRequest::descriptor()).max_deadline, absl::InfiniteDuration());
}

TEST(MethodTest, EveryMethodHasARuleAndARequestOfItsOwn) {
  int methods = 0;
  for (const google::protobuf::FileDescriptor* file :
       {admin::v1::ExplainRequest::descriptor()->file(),
        engine::v1::DescribeRequest::descriptor()->file(),
        env::v1::DescribeRequest::descriptor()->file(),
        job::v1::SubmitRequest::descriptor()->file(),
        plugin::v1::DescribeRequest::descriptor()->file(),
        queue::v1::AdmitRequest::descriptor()->file(),
        registry::v1::RegisterRequest::descriptor()->file(),
        weights::v1::FetchRequest::descriptor()->file()}) {
    for (int s = 0; s < file->service_count(); ++s) {
      for (int m = 0; m < file->service(s)->method_count(); ++m, ++methods) {
        const google::protobuf::MethodDescriptor* descriptor = file->service(s)->method(m);
        const v1::MethodRule& rule = descriptor->options().GetExtension(v1::method);
        SCOPED_TRACE(descriptor->full_name());

        EXPECT_GT(rule.roles_size(), 0);
        EXPECT_NE(rule.repeat(), v1::REPEAT_UNSPECIFIED);
        EXPECT_NE(rule.kind(), v1::KIND_UNSPECIFIED);
        EXPECT_EQ(rule.has_deadline(), rule.kind() != v1::KIND_STREAM);
        EXPECT_EQ(MethodOf(descriptor->input_type()).response, descriptor->output_type());
      }
    }
  }

  EXPECT_GE(methods, 40);
}

}  // namespace
}  // namespace sluice::rpc
