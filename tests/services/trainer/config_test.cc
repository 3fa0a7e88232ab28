#include "services/trainer/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/config/job_file.h"
#include "sluice/job/v1/job.pb.h"
#include "sluice/registry/v1/registry.pb.h"

namespace sluice::trainer {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

registry::v1::Assignment Assigned(const std::vector<std::string>& sets) {
  absl::StatusOr<job::v1::JobSpec> spec =
      LoadJobFile(SLUICE_SOURCE_DIR "/configs/examples/digits.yaml", sets);
  EXPECT_TRUE(spec.ok()) << spec.status();
  registry::v1::Assignment assignment;
  assignment.set_job("0123456789abcdef0123456789abcdef");
  assignment.add_queues("127.0.0.1:1");
  *assignment.mutable_spec() = *std::move(spec);
  return assignment;
}

TEST(ConfigTest, WarmupAndMaxStepsAreStepsWhereverABatchIsTrainedInSeveralUpdates) {
  const JobConfig one = *ConfigOf(Assigned({"trainer.optimizer.warmup=10", "limits.max_steps=40"}));
  EXPECT_EQ(one.settings.optimizer.warmup, 10);
  EXPECT_EQ(one.settings.optimizer.total, 40);

  const JobConfig four = *ConfigOf(Assigned(
      {"trainer.optimizer.warmup=10", "limits.max_steps=40", "trainer.batching.minibatches=4"}));
  EXPECT_EQ(four.settings.optimizer.warmup, 40);
  EXPECT_EQ(four.settings.optimizer.total, 160);
}

TEST(ConfigTest, AScheduleThatFallsToZeroIsRefusedWithoutALastStep) {
  registry::v1::Assignment assignment = Assigned({});
  ASSERT_EQ(assignment.spec().trainer().optimizer().schedule(), "cosine");
  assignment.mutable_spec()->mutable_limits()->clear_max_steps();

  const absl::StatusOr<JobConfig> config = ConfigOf(assignment);
  EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(
      std::string(config.status().message()),
      AllOf(HasSubstr("trainer.optimizer.schedule is cosine"), HasSubstr("limits.max_steps")));

  assignment.mutable_spec()->mutable_trainer()->mutable_optimizer()->set_schedule("constant");
  EXPECT_TRUE(ConfigOf(assignment).ok());
}

}  // namespace
}  // namespace sluice::trainer
