#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmath>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/base/file.h"
#include "common/checkpoint/init.h"
#include "common/checkpoint/model_dir.h"
#include "common/models/adapter.h"
#include "tests/integration/harness/cluster.h"
#include "tests/integration/harness/job.h"

namespace sluice::integration {
namespace {

// The whole answer to a GET, with its headers.
std::string HttpGet(const std::string& address, const std::string& path) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(address, ':');
  int port = 0;
  EXPECT_TRUE(absl::SimpleAtoi(parts.second, &port)) << address;
  sockaddr_in to{.sin_family = AF_INET,
                 .sin_port = htons(static_cast<uint16_t>(port)),
                 .sin_addr = {htonl(INADDR_LOOPBACK)}};
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  EXPECT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof to), 0) << address;

  const std::string request =
      absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: ", address, "\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(write(fd, request.data(), request.size()), static_cast<ssize_t>(request.size()));

  std::string answer;
  char bytes[4096];
  for (ssize_t n; (n = read(fd, bytes, sizeof bytes)) > 0;)
    answer.append(bytes, static_cast<size_t>(n));
  close(fd);
  return answer;
}

TEST(LoopTest, AJobRunsToItsEndAndItsBooksBalance) {
  Cluster cluster;
  ASSERT_EQ(cluster.Start(), absl::OkStatus());

  const auto job = SubmitDigits(&cluster, /*steps=*/3);
  ASSERT_EQ(job.status(), absl::OkStatus());

  const auto end = (*job)->AwaitEnd(absl::Minutes(1));
  ASSERT_EQ(end.status(), absl::OkStatus());
  EXPECT_EQ(end->state(), job::v1::JOB_STATE_SUCCEEDED) << Text(*end);
  EXPECT_EQ(end->result().steps(), 3);
  EXPECT_EQ(CheckLedgerBalances(*end), absl::OkStatus());
}

TEST(LoopTest, ASupervisedJobLearnsAnswersThatAreTextsAndAnswersThatAreNumbers) {
  Cluster cluster;
  ASSERT_EQ(cluster.Start(), absl::OkStatus());
  const std::string rows = cluster.dir() + "/rows.jsonl", file = cluster.dir() + "/sft.yaml";
  ASSERT_EQ(
      WriteFileAtomic(rows, "{\"q\": \"1234\", \"a\": 4321}\n{\"q\": 5678, \"a\": \"8765\"}\n"),
      absl::OkStatus());
  ASSERT_EQ(
      WriteFileAtomic(
          file, absl::StrCat("name: copy\nkind: sft\n"
                             "model: {init: {config: ",
                             SLUICE_SOURCE_DIR,
                             "/configs/examples/digits, seed: 1}, max_context: 16}\n"
                             "data: {train: [{name: rows, path: ",
                             rows,
                             ", prompt: q, answer: a, format: \"{q}=\"}], order: {max_prompt: 8}}\n"
                             "queue: {groups_per_step: 4}\ntrainer: {optimizer: {lr: 1e-2}}\n"
                             "checkpoint: {dir: ",
                             cluster.dir(), "/checkpoints}\nlimits: {max_steps: 20}\n")),
      absl::OkStatus());

  const auto job = Job::Submit(&cluster, file, {});
  ASSERT_EQ(job.status(), absl::OkStatus());

  const auto end = (*job)->AwaitEnd(absl::Minutes(1));
  ASSERT_EQ(end.status(), absl::OkStatus());
  EXPECT_EQ(end->state(), job::v1::JOB_STATE_SUCCEEDED) << Text(*end);
  EXPECT_EQ(end->result().tokens_trained(), 20 * 4 * 5)
      << "four digits and the end token of each row";

  const std::vector<job::v1::StepReport> reports = (*job)->reports();
  ASSERT_EQ(reports.size(), 20U);
  EXPECT_LT(reports.back().values().at("loss"), reports.front().values().at("loss") / 2);
}

TEST(LoopTest, EachSourceOfAJobHasRewardsOfItsOwn) {
  Cluster cluster;
  ASSERT_EQ(cluster.Start(), absl::OkStatus());
  const std::string digits = SLUICE_SOURCE_DIR "/configs/examples/digits",
                    file = cluster.dir() + "/job.yaml";
  std::string sources, rewards;
  for (const std::string name : {"a", "b"}) {
    absl::StrAppend(&sources, "{name: ", name, ", path: ", digits,
                    "/train.jsonl, prompt: digits, answer: digits, format: \"{digits}=\"},");
    absl::StrAppend(&rewards, "{name: of-", name,
                    ", verifier: text, args: {property: reversed}, when: {data_source: [", name,
                    "]}},");
  }
  ASSERT_EQ(WriteFileAtomic(
                file, absl::StrCat("name: sources\nkind: rl\nmodel: {init: {config: ", digits,
                                   ", seed: 1}, max_context: 16}\ndata: {train: [", sources,
                                   "], order: {max_prompt: 8}}\n"
                                   "rollout: {group: {size: 4, min: 4}, max_response: 7}\n"
                                   "reward: {rewards: [",
                                   rewards,
                                   "]}\nqueue: {groups_per_step: 8}\n"
                                   "checkpoint: {dir: ",
                                   cluster.dir(), "/checkpoints, every_steps: 5, every: none}\n",
                                   "limits: {max_steps: 10, wall: 2m}\n")),
            absl::OkStatus());
  const auto job = Job::Submit(&cluster, file, {});
  ASSERT_EQ(job.status(), absl::OkStatus());
  const auto end = (*job)->AwaitEnd(kLong);
  ASSERT_EQ(end.status(), absl::OkStatus());
  EXPECT_EQ(end->state(), job::v1::JOB_STATE_SUCCEEDED) << Text(*end);
  EXPECT_EQ(CheckLedgerBalances(*end), absl::OkStatus());
  EXPECT_EQ(end->result().ledger().durable(), 10 * 8 * 4) << Text(*end);
}

// Kills the trainer once the job has reported `step`, starts it again, and expects that its
// successor goes on from a checkpoint to the job's end.
void SucceedThoughTheTrainerIsKilledAt(int64_t step, Cluster& cluster, Job& job) {
  ASSERT_EQ(job.AwaitStep(step, kLong), absl::OkStatus());
  ASSERT_EQ(cluster.Kill("trainer-0"), absl::OkStatus());
  ASSERT_EQ(cluster.Start("trainer-0"), absl::OkStatus());
  const auto end = job.AwaitEnd(kLong);
  ASSERT_EQ(end.status(), absl::OkStatus());
  EXPECT_EQ(end->state(), job::v1::JOB_STATE_SUCCEEDED) << Text(*end);
  EXPECT_EQ(CheckLedgerBalances(*end), absl::OkStatus());
}

TEST(LoopTest, AJobOnPairsOfAnswersLearnsWhichOneIsPreferred) {
  Cluster cluster;
  ASSERT_EQ(cluster.Start(), absl::OkStatus());
  const auto job = Job::Submit(
      &cluster, SLUICE_SOURCE_DIR "/configs/examples/dpo.yaml",
      {"limits.max_steps=60", absl::StrCat("checkpoint.dir=", cluster.dir(), "/checkpoints"),
       "checkpoint.every_steps=20"});
  ASSERT_EQ(job.status(), absl::OkStatus());
  ASSERT_NO_FATAL_FAILURE(SucceedThoughTheTrainerIsKilledAt(30, cluster, **job));

  const std::vector<job::v1::StepReport> reports = (*job)->reports();
  const auto& first = reports.front().values();
  const auto& last = reports.back().values();
  EXPECT_NEAR(first.at("loss"), std::log(2), 1e-6) << "the policy begins as its reference";
  EXPECT_LT(last.at("loss"), 0.2);
  EXPECT_GT(last.at("dpo_accuracy"), 0.95);
  EXPECT_GT(last.at("dpo_margin"), 1);
}

TEST(LoopTest, AJobLearnsFromATeacherWithoutRewardsAndGoesOnAfterItsTrainerIsGone) {
  Cluster cluster;
  ASSERT_EQ(cluster.Start(), absl::OkStatus());
  // A random teacher that is far from uniform.
  const ModelDir digits = *ReadModelDir(SLUICE_SOURCE_DIR "/configs/examples/digits");
  ModelConfig wide = digits.config;
  wide.initializer_range = 0.2;
  const std::string teacher = cluster.dir() + "/teacher";
  ASSERT_EQ(WriteModelDir(teacher, digits, *InitWeights(wide, 5)), absl::OkStatus());

  for (const char* kind : {"sampled", "full"}) {
    SCOPED_TRACE(kind);
    const auto job =
        Job::Submit(&cluster, SLUICE_SOURCE_DIR "/configs/examples/distill.yaml",
                    {absl::StrCat("name=", kind), absl::StrCat("model.teacher.path=", teacher),
                     absl::StrCat("algorithm.distill.kind=", kind), "trainer.optimizer.lr=3e-3",
                     "limits.max_steps=80", "checkpoint.every_steps=20",
                     absl::StrCat("checkpoint.dir=", cluster.dir(), "/checkpoints")});
    ASSERT_EQ(job.status(), absl::OkStatus());
    ASSERT_NO_FATAL_FAILURE(SucceedThoughTheTrainerIsKilledAt(30, cluster, **job));
    const std::vector<job::v1::StepReport> reports = (*job)->reports();
    EXPECT_LT(reports.back().values().at("teacher_kl"),
              0.7 * reports.front().values().at("teacher_kl"));
    EXPECT_EQ(reports.back().values().at("reward_count"), 0);
    EXPECT_FALSE(reports.back().values().contains("reward_mean"));
  }
}

TEST(LoopTest, AJobWithFactorsOfLowRankSurvivesItsTrainerAndExportsAnAdapter) {
  Cluster cluster;
  ASSERT_EQ(cluster.Start(), absl::OkStatus());
  const auto job = SubmitDigits(
      &cluster, /*steps=*/40,
      {"trainer.lora={rank: 4, alpha: 8}", "model.reference=initial", "algorithm.loss.kl=0.01"});
  ASSERT_EQ(job.status(), absl::OkStatus());
  ASSERT_NO_FATAL_FAILURE(SucceedThoughTheTrainerIsKilledAt(15, cluster, **job));

  const std::string out = cluster.dir() + "/adapter";
  ASSERT_EQ(cluster.Sluice({"job", "export", "digits", "-o", out, "--adapter"})->exit, 0);
  const auto config = ReadModelDir(SLUICE_SOURCE_DIR "/configs/examples/digits")->config;
  const auto adapter = Adapter::Read(out, config);
  ASSERT_TRUE(adapter.ok()) << adapter.status();
  EXPECT_EQ((*adapter)->rank(), 4);
  EXPECT_EQ((*adapter)->scale(), 2);
}

TEST(LoopTest, AJobWithACriticSurvivesItsTrainerAndExportsThePolicyAlone) {
  Cluster cluster;
  ASSERT_EQ(cluster.Start(), absl::OkStatus());
  const auto job = Job::Submit(
      &cluster, SLUICE_SOURCE_DIR "/configs/examples/ppo.yaml",
      {"limits={max_steps: 40, wall: none}",
       absl::StrCat("checkpoint.dir=", cluster.dir(), "/checkpoints"), "checkpoint.every_steps=10",
       "algorithm.advantage={kl_target: 0.01, kl_horizon: 1000}"});
  ASSERT_EQ(job.status(), absl::OkStatus());
  ASSERT_NO_FATAL_FAILURE(SucceedThoughTheTrainerIsKilledAt(15, cluster, **job));

  const std::vector<job::v1::StepReport> reports = (*job)->reports();
  const auto& last = reports.back().values();
  EXPECT_EQ(last.count("explained_variance"), 1U);
  EXPECT_EQ(last.at("value_lr"), 1e-3);
  EXPECT_NE(last.at("reward_kl_coef"), 0.001) << "it is held at a target";

  const std::string checkpoint = (*job)->status().result().checkpoint();
  EXPECT_TRUE(PathExists(checkpoint + "/critic.safetensors"));
  EXPECT_EQ(cluster.Sluice({"ckpt", "verify", checkpoint})->exit, 0);
  const std::string out = cluster.dir() + "/policy";
  ASSERT_EQ(cluster.Sluice({"job", "export", "digits-ppo", "-o", out})->exit, 0);
  EXPECT_TRUE(PathExists(out + "/model.safetensors"));
  EXPECT_FALSE(PathExists(out + "/critic.safetensors"));
}

TEST(LoopTest, EveryDaemonAnswersItsMonitorsAndMeasuresItsWork) {
  Cluster cluster;
  ASSERT_EQ(cluster.Start(), absl::OkStatus());
  const auto job = SubmitDigits(&cluster, /*steps=*/100000);
  ASSERT_EQ(job.status(), absl::OkStatus());
  ASSERT_EQ((*job)->AwaitStep(3, absl::Minutes(1)), absl::OkStatus());

  for (const std::string& id : cluster.ids()) {
    EXPECT_TRUE(absl::StrContains(HttpGet(cluster.ops(id), "/livez"), " 200 ")) << id;
    EXPECT_TRUE(absl::StrContains(HttpGet(cluster.ops(id), "/readyz"), " 200 ")) << id;
    const std::string role = id.substr(0, id.find('-'));
    EXPECT_TRUE(absl::StrContains(HttpGet(cluster.ops(id), "/metrics"),
                                  absl::StrCat("\nsluice_", role, "_")))
        << id;
  }
}

TEST(LoopTest, AJobsGaugesLeaveItsWorkersWithItAndItsNameMayBeTakenAgain) {
  Cluster cluster;
  ASSERT_EQ(cluster.Start(), absl::OkStatus());
  const auto first = SubmitDigits(&cluster, /*steps=*/2);
  ASSERT_EQ(first.status(), absl::OkStatus());
  ASSERT_EQ((*first)->AwaitEnd(absl::Minutes(1)).status(), absl::OkStatus());

  const std::pair<const char*, const char*> gauges[] = {
      {"trainer-0", "sluice_trainer_policy_version{job_id=\"digits\""},
      {"rollout-0", "sluice_rollout_requests{job_id=\"digits\""},
      {"reward-0", "sluice_reward_tasks{job_id=\"digits\""}};
  for (const auto& [id, gauge] : gauges) {
    // The controller may tell the workers a little after the job's end.
    const absl::Time deadline = absl::Now() + absl::Minutes(1);
    while (absl::StrContains(HttpGet(cluster.ops(id), "/metrics"), gauge) && absl::Now() < deadline)
      std::this_thread::yield();
    EXPECT_LT(absl::Now(), deadline) << id;
  }

  const auto second = SubmitDigits(&cluster, /*steps=*/3);
  ASSERT_EQ(second.status(), absl::OkStatus());
  EXPECT_NE((*second)->id(), (*first)->id());

  const auto end = (*second)->AwaitEnd(absl::Minutes(1));
  ASSERT_EQ(end.status(), absl::OkStatus());
  EXPECT_EQ(end->state(), job::v1::JOB_STATE_SUCCEEDED) << Text(*end);
  EXPECT_EQ(end->result().steps(), 3)
      << "the second job must not go on from a checkpoint of the first";
  EXPECT_EQ(CheckLedgerBalances(*end), absl::OkStatus());

  const auto list = cluster.Sluice({"job", "list"});
  ASSERT_EQ(list.status(), absl::OkStatus());
  EXPECT_TRUE(absl::StrContains(list->out, (*first)->id()) &&
              absl::StrContains(list->out, (*second)->id()))
      << list->out;

  const auto named = cluster.Sluice({"job", "describe", "digits"}),
             old = cluster.Sluice({"job", "describe", (*first)->id()});
  EXPECT_TRUE(absl::StrContains(named->out, (*second)->id())) << named->out;
  EXPECT_TRUE(absl::StrContains(old->out, (*first)->id())) << old->out;
}

TEST(LoopTest, OfTwoWaitingJobsTheOneWithTheHigherPriorityStartsFirst) {
  Cluster cluster;  // There is one trainer, so that one job runs at a time.
  ASSERT_EQ(cluster.Start(), absl::OkStatus());
  const auto first = SubmitDigits(&cluster, /*steps=*/100000);
  ASSERT_EQ(first.status(), absl::OkStatus());
  ASSERT_EQ((*first)->AwaitStep(0, absl::Minutes(1)), absl::OkStatus());

  const auto earlier = SubmitDigits(&cluster, /*steps=*/3, {"name=earlier"});
  ASSERT_EQ(earlier.status(), absl::OkStatus());

  const auto urgent = SubmitDigits(&cluster, /*steps=*/100000, {"name=urgent", "run.priority=5"});
  ASSERT_EQ(urgent.status(), absl::OkStatus());
  ASSERT_EQ(cluster.Sluice({"job", "cancel", (*first)->id()})->exit, 0);

  ASSERT_EQ((*urgent)->AwaitStep(0, absl::Minutes(1)), absl::OkStatus());
  EXPECT_EQ((*earlier)->status().state(), job::v1::JOB_STATE_WAITING);

  ASSERT_EQ(cluster.Sluice({"job", "cancel", (*urgent)->id()})->exit, 0);
  const auto end = (*earlier)->AwaitEnd(absl::Minutes(1));
  ASSERT_EQ(end.status(), absl::OkStatus());
  EXPECT_EQ(end->state(), job::v1::JOB_STATE_SUCCEEDED) << Text(*end);
}

}  // namespace
}  // namespace sluice::integration
