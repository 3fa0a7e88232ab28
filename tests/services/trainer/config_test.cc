#include "services/trainer/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "common/checkpoint/model_dir.h"
#include "common/config/job_file.h"
#include "services/trainer/job_memory.h"
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

TEST(ConfigTest, TheCriticOfAJobFileReachesTheTrainerAndItsMemoryPlan) {
  EXPECT_FALSE(ConfigOf(Assigned({}))->plan.critic);
  const JobConfig plain = *ConfigOf(Assigned({"algorithm.advantage={kind: gae}"}));
  EXPECT_TRUE(plain.plan.critic);
  EXPECT_EQ(plain.settings.critic.lr, 1e-5);
  EXPECT_EQ(plain.settings.critic.max_grad_norm, 1);
  EXPECT_EQ(plain.settings.critic.clip, 0.2);
  EXPECT_EQ(plain.settings.critic.warmup, 0);

  const JobConfig all = *ConfigOf(
      Assigned({"algorithm.advantage={kind: gae, gamma: 0.99, lam: 0.9, lam_value: 1.0, raw: true, "
                "bootstrap_truncated: true, kl: 0.01, kl_target: 0.2, kl_horizon: 5000}",
                "model.reference=initial",
                "trainer.critic={lr: 2e-4, max_grad_norm: 0.5, clip: none, "
                "warmup: 3}"}));
  EXPECT_EQ(all.settings.critic.lr, 2e-4);
  EXPECT_EQ(all.settings.critic.max_grad_norm, 0.5);
  EXPECT_FALSE(all.settings.critic.clip.has_value());
  EXPECT_EQ(all.settings.critic.warmup, 3);
  const AdvantageSpec& advantage = all.settings.algorithm.advantage;
  EXPECT_EQ(advantage.gamma, 0.99);
  EXPECT_EQ(advantage.lam, 0.9);
  EXPECT_EQ(advantage.lam_value, 1.0);
  EXPECT_TRUE(advantage.raw && advantage.bootstrap_truncated);
  EXPECT_EQ(advantage.kl_target, 0.2);
  EXPECT_EQ(advantage.kl_horizon, 5000);
  EXPECT_TRUE(AdaptsRewardKl(all.settings));
  EXPECT_FALSE(AdaptsRewardKl(plain.settings));
  EXPECT_EQ(ConfigOf(Assigned({"algorithm.advantage={kind: gae, lam_alpha: 0.05}"}))
                ->settings.algorithm.advantage.lam_alpha,
            0.05);
}

TEST(ConfigTest, MicroBatchesFitIntoTheMemoryOfTheJobFile) {
  const ModelDir model = *ReadModelDir(SLUICE_SOURCE_DIR "/configs/examples/digits");
  JobConfig config = *ConfigOf(Assigned({"trainer.memory=2GiB"}));
  EXPECT_EQ(config.plan.memory, uint64_t{2} << 30);
  EXPECT_EQ(ConfigOf(Assigned({}))->plan.memory, 0u) << "the machine's";
  EXPECT_EQ(FitIntoMemory(config, model.config, nullptr)->micro_batch_tokens,
            config.settings.micro_batch_tokens);

  MemoryPlanInput half = config.plan;
  half.config = model.config;
  half.micro_batch_tokens /= 2;
  ASSERT_GT(half.micro_batch_tokens, half.longest);
  config.plan.memory = PlanMemory(half).total();
  const absl::StatusOr<Settings> fitted = FitIntoMemory(config, model.config, nullptr);
  ASSERT_TRUE(fitted.ok()) << fitted.status();
  EXPECT_LE(fitted->micro_batch_tokens, half.micro_batch_tokens);
  EXPECT_GT(fitted->micro_batch_tokens, half.micro_batch_tokens * 7 / 8);

  config.plan.memory = 1;
  EXPECT_EQ(FitIntoMemory(config, model.config, nullptr).status().code(),
            absl::StatusCode::kResourceExhausted);
}

// Without a bound from below, micro-batches would get smaller until any plan fits.
TEST(ConfigTest, MicroBatchesOfRowsKeepSomeTokens) {
  const ModelDir model = *ReadModelDir(SLUICE_SOURCE_DIR "/configs/examples/digits");
  for (const char* kind : {"sft", "dpo"}) {
    for (const uint32_t context : {512, 2048}) {
      registry::v1::Assignment assignment = Assigned({"trainer.batching.micro_batch_tokens=1024"});
      assignment.mutable_spec()->set_kind(kind);
      assignment.mutable_spec()->mutable_model()->set_max_context(context);
      if (assignment.spec().kind() == "dpo")
        assignment.mutable_spec()->mutable_model()->set_reference("initial");
      JobConfig config = *ConfigOf(assignment);
      MemoryPlanInput least = config.plan;
      least.config = model.config;
      least.micro_batch_tokens = 256;
      config.plan.memory = PlanMemory(least).total();
      const absl::StatusOr<Settings> fitted = FitIntoMemory(config, model.config, nullptr);
      ASSERT_TRUE(fitted.ok()) << fitted.status();
      EXPECT_LE(fitted->micro_batch_tokens, least.micro_batch_tokens);
      --config.plan.memory;
      EXPECT_EQ(FitIntoMemory(config, model.config, nullptr).status().code(),
                absl::StatusCode::kResourceExhausted);
    }
  }
}

TEST(ConfigTest, TheMemoryOfTheJobFileLimitsTheActivationsThatAreKept) {
  const Settings settings = ConfigOf(Assigned({"trainer.memory=4GiB"}))->settings;
  EXPECT_EQ(settings.most_kept_bytes, MostKeptBytes(uint64_t{4} << 30));
  EXPECT_EQ(settings.most_kept_bytes, int64_t{512} << 20);
  EXPECT_EQ(ConfigOf(Assigned({"trainer.memory=4GiB"}))->plan.most_kept_bytes,
            settings.most_kept_bytes);
  EXPECT_EQ(ConfigOf(Assigned({}))->settings.most_kept_bytes, MostKeptBytes());
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
