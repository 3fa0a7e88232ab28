#include "common/policy/policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/file.h"
#include "common/base/status.h"
#include "common/config/job_file.h"
#include "common/config/leaves.h"
#include "common/testing/data.h"
#include "sluice/job/v1/spec.pb.h"

namespace sluice {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

absl::StatusOr<Policy> Read(const std::string& text) {
  const std::string path = testing_data::TempPath("policy.yaml");
  EXPECT_TRUE(WriteFileAtomic(path, text).ok());
  return ReadPolicy(path);
}

job::v1::JobSpec Spec() {
  job::v1::JobSpec spec;
  config::FillDefaults(&spec);
  return spec;
}

std::vector<std::string> Texts(const std::vector<SpecProblem>& problems) {
  std::vector<std::string> texts;
  for (const SpecProblem& problem : problems) texts.push_back(problem.ToString());
  return texts;
}

TEST(PolicyTest, AnEmptyPolicyAllowsEverything) {
  const Policy policy = *Read("api: sluice/v1\n");
  EXPECT_THAT(CheckCaps(policy, Spec()), IsEmpty());
  EXPECT_EQ(policy.FindQuota("alice"), nullptr);
}

TEST(PolicyTest, AValueAboveItsCapIsRefusedWithBoth) {
  const Policy policy =
      *Read("caps: {resources.rollout.max: 4, queue.keep.quota: 2GiB, limits.start: 5m}\n");
  job::v1::JobSpec spec = Spec();
  spec.mutable_resources()->mutable_rollout()->set_max(4);
  spec.mutable_queue()->mutable_keep()->set_quota(uint64_t{2} << 30);
  spec.mutable_limits()->mutable_start()->set_seconds(300);
  EXPECT_THAT(CheckCaps(policy, spec), IsEmpty());

  spec.mutable_resources()->mutable_rollout()->set_max(5);
  spec.mutable_queue()->mutable_keep()->set_quota((uint64_t{2} << 30) + 1);
  spec.mutable_limits()->mutable_start()->set_seconds(301);
  EXPECT_THAT(Texts(CheckCaps(policy, spec)),
              ElementsAre("SLUICE-CONFIG-0018 limits.start is 301s, but the operator's policy "
                          "allows at most 5m",
                          "SLUICE-CONFIG-0018 queue.keep.quota is 2147483649B, but the operator's "
                          "policy allows at most 2GiB",
                          "SLUICE-CONFIG-0018 resources.rollout.max is 5, but the operator's "
                          "policy allows at most 4"));
}

TEST(PolicyTest, NoneExceedsEveryCapAndAutoExceedsNone) {
  const Policy policy = *Read("caps: {limits.wall: 24h, rollout.engine.max_running: 64}\n");
  EXPECT_THAT(Texts(CheckCaps(policy, Spec())),
              ElementsAre("SLUICE-CONFIG-0018 limits.wall is none, but the operator's policy "
                          "allows at most 24h"));
}

TEST(PolicyTest, ASubmittersOwnQuotaCountsBeforeThatOfEveryone) {
  const Policy policy =
      *Read("quotas:\n- {submitter: alice, jobs: 9}\n- {submitter: \"*\", jobs: 2}\n");
  EXPECT_EQ(policy.FindQuota("alice")->jobs, 9u);
  EXPECT_EQ(policy.FindQuota("bob")->jobs, 2u);
}

TEST(PolicyTest, AQuotaLimitsDaemonsAndPoolsToo) {
  const Policy policy =
      *Read("quotas:\n- {submitter: alice, trainers: 2, rollouts: 8, pools: [default, big]}\n");
  const Policy::Quota& quota = *policy.FindQuota("alice");
  EXPECT_EQ(quota.jobs, std::nullopt);
  EXPECT_EQ(quota.trainers, 2u);
  EXPECT_EQ(quota.rollouts, 8u);
  EXPECT_EQ(quota.pools, (std::vector<std::string>{"default", "big"}));
}

TEST(PolicyTest, ASubmitterMayHaveFoldersJudgesAndServersOfItsOwn) {
  const Policy policy = *Read(
      "quotas:\n- {submitter: alice, read_roots: [/data], write_roots: [/ckpt/alice, /tmp/a], "
      "judges: [strict], plugin_servers: [style]}\n");
  const Policy::Quota& quota = *policy.FindQuota("alice");
  EXPECT_THAT(quota.read_roots, ElementsAre("/data"));
  EXPECT_THAT(quota.write_roots, ElementsAre("/ckpt/alice", "/tmp/a"));
  EXPECT_THAT(quota.judges, ElementsAre("strict"));
  EXPECT_THAT(quota.plugin_servers, ElementsAre("style"));
}

TEST(PolicyTest, TheExampleCanBeReadAndAllowsTheExampleJob) {
  const absl::StatusOr<Policy> policy = ReadPolicy(SLUICE_SOURCE_DIR "/configs/policy.yaml");
  ASSERT_TRUE(policy.ok()) << policy.status();
  const JobFile digits = ReadJobFile(SLUICE_SOURCE_DIR "/configs/examples/digits.yaml");
  EXPECT_THAT(CheckCaps(*policy, *digits.spec), IsEmpty());
}

TEST(PolicyTest, MistakesAreRefusedWithTheirPlace) {
  const std::pair<const char*, const char*> cases[] = {
      {"cap: {}\n",
       "policy.yaml:1:1 SLUICE-CONFIG-0003 unknown key \"cap\" in the policy file. Did "
       "you mean \"caps\"?"},
      {"caps: {resources.rolout.max: 4}\n", "rolout"},
      {"caps: {limits.wall: 24}\n", "unit"},
      {"caps: {limits.wall: none}\n", "only a number, duration or size"},
      {"caps: {name: x}\n", "only a number, duration or size"},
      {"caps: {resources: 3}\n", "resources"},
      {"caps: {data.train.0.weight: 3}\n", "data.train"},
      {"quotas:\n- {jobs: 3}\n", "quotas.0.submitter is missing"},
      {"quotas:\n- {submitter: a, jobs: 0}\n", "quotas.0.jobs is 0, but the minimum is 1"},
      {"quotas:\n- {submitter: a}\n- {submitter: a}\n", "second row for submitter \"a\""},
      {"quotas:\n- {submitter: a, read_roots: [data]}\n",
       "policy.yaml:2:3 SLUICE-CONFIG-0010 quotas.0: \"data\" cannot be a root"},
      {"quotas:\n- {submitter: a, write_roots: [/ckpt/../etc]}\n", "cannot be a root"},
      {"api: sluice/v2\n", "api is \"sluice/v2\""},
      {"a: b: c\n", "SLUICE-CONFIG-0001"},
  };
  for (const auto& [text, message] : cases) {
    const absl::Status status = Read(text).status();
    EXPECT_EQ(ReasonOf(status), "BAD_CONFIG") << text;
    EXPECT_THAT(status.message(), HasSubstr(message)) << text;
  }
}

}  // namespace
}  // namespace sluice
