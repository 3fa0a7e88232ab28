#include "common/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sluice/engine/v1/engine.pb.h"
#include "tests/services/rollout/session_fixture.h"

namespace sluice::rollout {
namespace {

using testing::HasSubstr;

constexpr absl::Duration kSoon = absl::Milliseconds(50);

class EngineServiceTest : public SessionTest {
 protected:
  static common::v1::Call CallOf(const std::string& worker, int64_t incarnation, const std::string& job = kJob) {
    common::v1::Call call;
    call.mutable_job()->set_job(job);
    call.mutable_job()->set_worker(worker);
    call.mutable_job()->set_incarnation(incarnation);
    return call;
  }

  // What is not known yet is asked for again, for `give_up`.
  absl::StatusOr<engine::v1::DescribeResponse> Describe(const std::string& job = kJob, absl::Duration give_up = absl::Seconds(30)) {
    engine::v1::DescribeRequest request;
    *request.mutable_call() = CallOf("someone", 0, job);
    engine::v1::DescribeResponse response;
    const absl::Status status = rpc::Call(*Channel(), request, &response, {.give_up = give_up});
    if (!status.ok()) return status;
    return response;
  }
};

TEST_F(EngineServiceTest, DescribeTellsTheModelAndTheVersionThatSamples) {
  ASSERT_NO_FATAL_FAILURE(StartJob(7, false));
  EXPECT_EQ(ReasonOf(Describe(kJob, kSoon).status()), "NOT_LISTED");
  Session* const session = StartSession("rollout-0");
  const auto before = Describe();
  ASSERT_TRUE(before.ok()) << before.status();
  EXPECT_EQ(before->loaded_size(), 0) << "none is published yet";
  Publish(0, kInitSeed);
  TakeBatch(0);
  const auto described = Describe();
  ASSERT_TRUE(described.ok()) << described.status();
  EXPECT_TRUE(described->caps().exact_stamps());
  EXPECT_TRUE(described->caps().deterministic());
  EXPECT_EQ(described->model().size(), 32u);
  EXPECT_EQ(described->layout(), session->layout());
  ASSERT_EQ(described->loaded_size(), 1);
  EXPECT_EQ(rpc::FromProto(described->loaded(0).version()), (PolicyVersion{1, 0}));
  EXPECT_EQ(described->slots(), session->engine().slots());
  EXPECT_EQ(described->max_context(), session->engine().max_context());
  EXPECT_THAT(std::string(Describe("another", kSoon).status().message()), HasSubstr("job 'another'"));
}

}  // namespace
}  // namespace sluice::rollout
