// What people and daemons with certificates may do, on real daemons. denial_matrix_test.cc walks
// all methods.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/base/status.h"
#include "common/config/job_file.h"
#include "common/pki/tls_dir.h"
#include "common/rpc/client.h"
#include "common/rpc/credentials.h"
#include "sluice/queue/v1/queue.pb.h"
#include "tests/integration/harness/cluster.h"
#include "tests/integration/harness/job.h"
#include "tools/sluice/client.h"
#include "tools/sluice/fleet_tls.h"

namespace sluice::integration {
namespace {

TEST(AccessTest, ADaemonSpeaksForItselfAloneAndNotAsTheController) {
  Cluster cluster({.tls = true});
  ASSERT_EQ(cluster.Start(), absl::OkStatus());
  const auto job = SubmitDigits(&cluster, /*steps=*/100000);
  ASSERT_EQ(job.status(), absl::OkStatus());
  ASSERT_EQ((*job)->AwaitStep(1, absl::Minutes(1)), absl::OkStatus());
  const auto rollout = rpc::Credentials::Load(cli::FleetTlsDir(cluster.dir(), "rollout-0"));
  ASSERT_EQ(rollout.status(), absl::OkStatus());
  const auto channel =
      *rpc::Connect(cluster.address("queue-0"), {rpc::Role::kQueue}, {.credentials = *rollout});
  const auto release = [&](const std::string& worker, int64_t incarnation) {
    queue::v1::ReleaseRequest request;
    request.mutable_call()->mutable_job()->set_job((*job)->id());
    request.mutable_call()->mutable_job()->set_worker(worker);
    request.mutable_call()->mutable_job()->set_incarnation(incarnation);
    request.set_worker("trainer-0");
    request.set_incarnation(1);
    request.set_reason(queue::v1::RELEASE_REASON_LOST);
    queue::v1::ReleaseResponse response;
    return ReasonOf(rpc::Call(*channel, request, &response));
  };

  EXPECT_EQ(release("controller-0", 0), "WRONG_ID");
  EXPECT_EQ(release("trainer-0", 1), "WRONG_ID");
  EXPECT_EQ(release("rollout-0", 0), "WRONG_INCARNATION");

  const int64_t steps = (*job)->steps();
  EXPECT_EQ((*job)->AwaitStep(steps + 2, absl::Minutes(1)), absl::OkStatus())
      << "the trainer still has its leases";
}

// A channel to the controller of `cluster` as one of its people.
std::shared_ptr<rpc::Channel> ConnectAs(const Cluster& cluster, const std::string& person) {
  const auto credentials = rpc::Credentials::Load(cli::FleetTlsDir(cluster.dir(), person));
  EXPECT_EQ(credentials.status(), absl::OkStatus()) << person;
  return *rpc::Connect(cluster.address("controller-0"), {rpc::Role::kController},
                       {.credentials = *credentials});
}

JobFile ReadDigits(const Cluster& cluster, const std::string& name,
                   std::vector<std::string> more = {}) {
  more.push_back("name=" + name);
  more.push_back("checkpoint.dir=" + cluster.dir() + "/checkpoints");
  JobFile file = ReadJobFile(SLUICE_SOURCE_DIR "/configs/examples/digits.yaml", {.sets = more});
  EXPECT_EQ(ProblemStatus(file.problems), absl::OkStatus());
  return file;
}

TEST(AccessTest, ASubmitterSeesAndControlsItsOwnJobsAloneWithinItsQuota) {
  const std::string policy = testing::TempDir() + "access_test_policy.yaml";
  ASSERT_EQ(WriteFileAtomic(policy,
                            "caps: {resources.rollout.max: 4}\n"
                            "quotas: [{submitter: alice, jobs: 1}]\n"),
            absl::OkStatus());
  // Jobs need no daemons to be seen or cancelled.
  Cluster cluster({.rollouts = 0,
                   .rewards = 0,
                   .trainers = 0,
                   .env = {{"SLUICE_POLICY", policy}},
                   .tls = true});
  ASSERT_EQ(cluster.Start(), absl::OkStatus());
  const auto alice = ConnectAs(cluster, "alice"), bob = ConnectAs(cluster, "bob"),
             viewer = ConnectAs(cluster, "viewer"),
             operator_ = ConnectAs(cluster, cli::kFleetOperator);
  const auto submitted = cli::Submit(*alice, ReadDigits(cluster, "secret-plan"));
  ASSERT_EQ(submitted.status(), absl::OkStatus());
  EXPECT_EQ(submitted->status().owner(), "alice");

  const auto get = [](const rpc::Channel& channel) {
    return ReasonOf(cli::GetJob(channel, "secret-plan").status());
  };
  const auto list = [](const rpc::Channel& channel) {
    job::v1::ListResponse response;
    EXPECT_EQ(rpc::Call(channel, job::v1::ListRequest(), &response), absl::OkStatus());
    return response.jobs_size();
  };
  EXPECT_EQ(get(*alice), "");
  EXPECT_EQ(get(*viewer), "");
  EXPECT_EQ(get(*operator_), "");
  EXPECT_EQ(get(*bob), "OTHERS_JOB");
  EXPECT_EQ(list(*alice), 1);
  EXPECT_EQ(list(*viewer), 1);
  EXPECT_EQ(list(*bob), 0);

  // Every other call that names a job refuses it too.
  EXPECT_EQ(ReasonOf(cli::CancelJob(*bob, "secret-plan").status()), "OTHERS_JOB");
  EXPECT_EQ(ReasonOf(cli::ReadJob(*bob, "secret-plan", {}).status()), "OTHERS_JOB");
  job::v1::WhyRequest why;
  why.set_job("secret-plan");
  job::v1::WhyResponse chain;
  EXPECT_EQ(ReasonOf(rpc::Call(*bob, why, &chain)), "OTHERS_JOB");
  job::v1::InspectRequest inspect;
  inspect.set_job("secret-plan");
  inspect.mutable_queue_stats();
  job::v1::InspectResponse stats;
  EXPECT_EQ(ReasonOf(rpc::Call(*bob, inspect, &stats)), "OTHERS_JOB");
  inspect.mutable_queue_peek()->set_text(true);
  EXPECT_EQ(ReasonOf(rpc::Call(*viewer, inspect, &stats)), "NO_TEXT");

  // By its id too, and the answer does not tell the name.
  const absl::Status by_id = cli::GetJob(*bob, submitted->job()).status();
  EXPECT_EQ(ReasonOf(by_id), "OTHERS_JOB");
  EXPECT_EQ(by_id.message().find("secret-plan"), std::string::npos) << by_id;

  // A taken name tells nothing of the job that has it, not even to who submits the same file.
  const absl::Status taken = cli::Submit(*bob, ReadDigits(cluster, "secret-plan")).status();
  EXPECT_EQ(ReasonOf(taken), "CONFLICT");
  EXPECT_THAT(std::string(taken.message()),
              testing::EndsWith("a job of another submitter has the name secret-plan"));

  const absl::Status over = cli::Submit(*alice, ReadDigits(cluster, "second")).status();
  EXPECT_EQ(DetailOf(over).catalogue, "SLUICE-CTL-0019") << over;
  EXPECT_THAT(over.message(), testing::HasSubstr("the operator's quota is 1"));
  EXPECT_EQ(cli::Submit(*bob, ReadDigits(cluster, "second")).status(), absl::OkStatus());
  EXPECT_EQ(cli::CancelJob(*alice, "secret-plan").status(), absl::OkStatus());
  EXPECT_EQ(cli::Submit(*alice, ReadDigits(cluster, "third")).status(), absl::OkStatus());

  const absl::Status capped =
      cli::Submit(*operator_, ReadDigits(cluster, "large", {"resources.rollout.max=5"})).status();
  EXPECT_THAT(capped.message(),
              testing::HasSubstr("SLUICE-CONFIG-0018 resources.rollout.max is 5"));

  EXPECT_THAT(cluster.Log("controller-0"),
              testing::AllOf(testing::HasSubstr("\"event\":\"audit\""),
                             testing::HasSubstr("\"reason\":\"OTHERS_JOB\"")));
}

TEST(AccessTest, AJobReadsAndWritesBelowTheOperatorsRootsAlone) {
  const std::string written = testing::TempDir() + "access_test_written";
  ASSERT_EQ(RemoveTree(written), absl::OkStatus());
  ASSERT_EQ(MakeDirs(written), absl::OkStatus());
  Cluster cluster({.env = {{"SLUICE_READ_ROOTS", SLUICE_SOURCE_DIR "/configs"},
                           {"SLUICE_WRITE_ROOTS", written}},
                   .tls = true});
  ASSERT_EQ(cluster.Start(), absl::OkStatus());
  const auto channel = ConnectAs(cluster, cli::kFleetOperator);

  // The CLI has read this file for the person who submits; the daemons must not.
  const std::string key = cli::FleetTlsDir(cluster.dir(), "trainer-0") + "/tls.key";
  for (const auto& [path, value] : std::vector<std::pair<std::string, std::string>>{
           {"data.train.0.path", key},
           {"model.chat_template", key},
           {"model.init.config", cluster.dir()},
           {"checkpoint.dir", cluster.dir() + "/checkpoints"},
           {"checkpoint.dir", SLUICE_SOURCE_DIR "/configs/new"},
           {"checkpoint.dir", written + "/../outside"}}) {
    JobFile file = ReadDigits(cluster, "outside", {});
    file.spec->mutable_checkpoint()->set_dir(written);
    if (path == "data.train.0.path") file.spec->mutable_data()->mutable_train(0)->set_path(value);
    if (path == "model.chat_template") file.spec->mutable_model()->set_chat_template(value);
    if (path == "model.init.config") file.spec->mutable_model()->mutable_init()->set_config(value);
    if (path == "checkpoint.dir") file.spec->mutable_checkpoint()->set_dir(value);
    const absl::Status status = cli::Submit(*channel, file).status();
    EXPECT_THAT(status.message(), testing::HasSubstr("SLUICE-CONFIG-0018 " + path + ": " + value));
    EXPECT_THAT(status.message(), testing::Not(testing::HasSubstr("PRIVATE KEY")));
  }

  const auto job = SubmitDigits(&cluster, /*steps=*/3,
                                {"checkpoint.dir=" + written, "checkpoint.every_steps=1"});
  ASSERT_EQ(job.status(), absl::OkStatus());
  const auto end = (*job)->AwaitEnd(absl::Minutes(1));
  ASSERT_EQ(end.status(), absl::OkStatus());
  EXPECT_EQ(end->state(), job::v1::JOB_STATE_SUCCEEDED) << Text(*end);
  EXPECT_EQ(CheckLedgerBalances(*end), absl::OkStatus());
}

TEST(AccessTest, AJobRunsOverMutualTlsToItsEnd) {
  Cluster cluster({.rollouts = 2, .tls = true});
  ASSERT_EQ(cluster.Start(), absl::OkStatus());

  const auto job = SubmitDigits(&cluster, /*steps=*/5);
  ASSERT_EQ(job.status(), absl::OkStatus());

  const auto end = (*job)->AwaitEnd(absl::Minutes(1));
  ASSERT_EQ(end.status(), absl::OkStatus());
  EXPECT_EQ(end->state(), job::v1::JOB_STATE_SUCCEEDED) << Text(*end);
  EXPECT_EQ(CheckLedgerBalances(*end), absl::OkStatus());
}

}  // namespace
}  // namespace sluice::integration
