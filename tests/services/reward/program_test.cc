#include "services/reward/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fcntl.h>
#include <grpcpp/server_builder.h>
#include <unistd.h>

#include <future>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/metrics/metrics.h"
#include "common/rpc/server.h"
#include "common/rpc/server_stream.h"
#include "common/sandbox/sandbox.h"
#include "sluice/registry/v1/registry.grpc.pb.h"
#include "tests/common/plugins/folder.h"
#include "tests/common/plugins/scripted_server.h"

namespace sluice::reward {
namespace {

using registry::v1::HeartbeatRequest;
using registry::v1::HeartbeatResponse;
using testing::HasSubstr;
using testing::Not;

// A controller that assigns what the test says and remembers the newest heartbeat.
class FakeController : public registry::v1::RegistryService::CallbackService {
 public:
  struct Stream : rpc::BidiStream<HeartbeatRequest, HeartbeatResponse> {
    explicit Stream(FakeController* owner) : owner(owner) {}
    void OnMessage(HeartbeatRequest& request) override { Send(owner->Heard(request)); }
    FakeController* const owner;
  };

  grpc::ServerUnaryReactor* Register(grpc::CallbackServerContext* context,
                                     const registry::v1::RegisterRequest*,
                                     registry::v1::RegisterResponse* response) override {
    response->set_incarnation(1);
    response->mutable_beat()->set_nanos(10'000'000);
    auto* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

  grpc::ServerBidiReactor<HeartbeatRequest, HeartbeatResponse>* Heartbeat(
      grpc::CallbackServerContext*) override {
    auto stream = rpc::MakeStream<Stream>(this);
    stream->StartReading();
    return stream.get();
  }

  // Assigns one job whose queue is at `queue`; no job if that is empty. Its rows are in the file
  // `rows`; it has no data source if that is empty. `judge` scores it, if that is given.
  // Or the plug-in server `server` does.
  void Assign(const std::string& queue, const std::string& rows = "", const std::string& judge = "",
              const std::string& server = "") {
    MutexLock lock(&mu_);
    const uint64_t generation = assigned_.generation() + 1;
    assigned_.Clear();
    assigned_.set_generation(generation);
    if (queue.empty()) return;

    registry::v1::Assignment& job = *assigned_.add_jobs();
    job.set_job("0123456789abcdef0123456789abcdef");
    job.set_phase(registry::v1::ASSIGNMENT_PHASE_RUN);
    job.add_queues(queue);
    job.mutable_spec()->set_name("digits");
    if (!rows.empty()) {
      job::v1::DataSource& source = *job.mutable_spec()->mutable_data()->add_train();
      source.set_name("digits");
      source.set_path(rows);
      source.set_prompt("digits");
      source.set_answer("digits");
    }

    job::v1::RewardEntry& reward = *job.mutable_spec()->mutable_reward()->add_rewards();
    reward.set_name("right");
    reward.set_verifier(judge.empty() ? "exact" : "judge");
    if (!judge.empty()) (*reward.mutable_args()->mutable_fields())["judge"].set_string_value(judge);
    if (server.empty()) return;
    reward.set_verifier("plugin");
    (*reward.mutable_args()->mutable_fields())["grpc"].set_string_value(server);
  }

  // Waits for a heartbeat that was sent after the newest assignment was applied.
  HeartbeatRequest AwaitApplied() {
    MutexLock lock(&mu_);
    while (last_.generation() < assigned_.generation()) changed_.Wait(&mu_);
    return last_;
  }
  // Waits until the one job that is assigned is in the phase `phase`.
  void AwaitPhase(const std::string& phase) {
    MutexLock lock(&mu_);
    while (last_.progress_size() != 1 || last_.progress(0).phase() != phase) changed_.Wait(&mu_);
  }

 private:
  HeartbeatResponse Heard(const HeartbeatRequest& request) {
    MutexLock lock(&mu_);
    last_ = request;
    changed_.NotifyAll();
    return assigned_;
  }

  Mutex mu_;
  CondVar changed_;
  HeartbeatResponse assigned_ ABSL_GUARDED_BY(mu_);  // What is assigned.
  HeartbeatRequest last_ ABSL_GUARDED_BY(mu_);       // The newest heartbeat.
};

class RewardProgramTest : public testing::Test {
 protected:
  void SetUp() override {
    grpc::Service* services[] = {&controller_};
    server_ = *rpc::Server::Start({}, services);
    flags_.id = "reward-0";
    flags_.controller = server_->address();
    program_ = *RewardProgram::Make(
        daemon::Host{.flags = &flags_, .metrics = &metrics_, .stop = [](absl::Status) {}});
    ASSERT_EQ(program_->Start("127.0.0.1:1", "127.0.0.1:1"), absl::OkStatus());
  }

  void TearDown() override { program_->Drain(); }

  FakeController controller_;
  std::unique_ptr<rpc::Server> server_;
  daemon::Flags flags_;
  metrics::Registry metrics_;
  std::unique_ptr<RewardProgram> program_;
};

TEST_F(RewardProgramTest, AQueueAddressThatIsNoneFailsTheJobAndNotTheDaemon) {
  controller_.Assign("nowhere");
  const HeartbeatRequest beat = controller_.AwaitApplied();
  ASSERT_EQ(beat.progress_size(), 1);
  EXPECT_EQ(beat.progress(0).phase(), "failed");
  EXPECT_THAT(beat.progress(0).cause(), HasSubstr("'nowhere' is not an address"));

  controller_.Assign("127.0.0.1:1");
  EXPECT_EQ(controller_.AwaitApplied().progress(0).phase(), "scoring");
}

TEST_F(RewardProgramTest, AJobWithAJudgeThatThisDaemonDoesNotHaveFails) {
  controller_.Assign("127.0.0.1:1", "", /*judge=*/"strict");
  const HeartbeatRequest beat = controller_.AwaitApplied();
  EXPECT_EQ(beat.progress(0).phase(), "failed");
  EXPECT_THAT(beat.progress(0).cause(),
              HasSubstr("reward daemon reward-0 has no judge \"strict\"; its judges are: none"));
}

// Its server starts later than the job.
class AbsentPluginServerTest : public RewardProgramTest {
 protected:
  AbsentPluginServerTest() {
    flags_.own_flags["--plugin-servers"] =
        WritePlugin("program/servers.yaml",
                    absl::StrCat("servers: [{name: scripted, address: \"unix:", socket_, "\"}]"));
  }
  ~AbsentPluginServerTest() override {
    if (plugin_ != nullptr) plugin_->Shutdown(absl::ToChronoTime(absl::Now()));
  }
  void StartPlugin() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(absl::StrCat("unix:", socket_), grpc::InsecureServerCredentials());
    builder.RegisterService(&service_);
    plugin_ = builder.BuildAndStart();
  }

  const std::string socket_ = testing_data::TempPath("absent.sock");
  ScriptedServer service_;
  std::unique_ptr<grpc::Server> plugin_;
};

TEST_F(AbsentPluginServerTest, AJobWaitsForItsPluginServerAndSaysSo) {
  controller_.Assign("127.0.0.1:1", "", "", /*server=*/"scripted");
  const HeartbeatRequest beat = controller_.AwaitApplied();
  ASSERT_EQ(beat.progress_size(), 1);
  EXPECT_FALSE(beat.progress(0).ready());
  const std::string why = "plug-in server scripted at unix:" + socket_ + ": it cannot be reached";
  EXPECT_THAT(beat.progress(0).phase(), HasSubstr(why));
  const std::vector<common::v1::WaitEdge> waits = program_->Explain(beat.progress(0).job());
  ASSERT_EQ(waits.size(), 1u);
  EXPECT_THAT(waits[0].cause(), HasSubstr("reward-0 scores nothing: reward right: " + why));
  StartPlugin();
  controller_.AwaitPhase("scoring");
}

TEST_F(AbsentPluginServerTest, AJobThatWaitsForItsPluginServerCanEnd) {
  controller_.Assign("127.0.0.1:1", "", "", /*server=*/"scripted");
  controller_.AwaitApplied();
  controller_.Assign("");
  EXPECT_EQ(controller_.AwaitApplied().progress_size(), 0);
  controller_.Assign("127.0.0.1:1");
  EXPECT_EQ(controller_.AwaitApplied().progress(0).phase(), "scoring");
}

TEST_F(RewardProgramTest, TheGaugesOfAJobEndWhenItLeavesAndItsCountersStay) {
  controller_.Assign("127.0.0.1:1");
  controller_.AwaitApplied();
  EXPECT_THAT(metrics_.Text(), HasSubstr("sluice_reward_tasks{job_id=\"digits\""));
  controller_.Assign("");
  EXPECT_EQ(controller_.AwaitApplied().progress_size(), 0);
  EXPECT_THAT(metrics_.Text(), Not(HasSubstr("sluice_reward_tasks{job_id=\"digits\"")));
  EXPECT_THAT(metrics_.Text(), HasSubstr("sluice_reward_evaluations_total{job_id=\"digits\""));
}

TEST_F(RewardProgramTest, AJobThatIsBeingStartedWhenTheDaemonDrainsIsStoppedToo) {
  // The job's rows come from a pipe, so the job is being started until the pipe is closed.
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const int capacity = fcntl(ends[1], F_GETPIPE_SZ);
  ASSERT_GT(capacity, 0);
  controller_.Assign("127.0.0.1:1", absl::StrCat("/dev/fd/", ends[0]));

  // The write returns once the program reads, because all of it does not fit into the pipe.
  const std::string rows(2 * capacity, '\n');
  ASSERT_EQ(write(ends[1], rows.data(), rows.size()), static_cast<ssize_t>(rows.size()));

  auto drained = std::async(std::launch::async, [this] { program_->Drain(); });
  while (program_->CheckReady().message() != "draining") std::this_thread::yield();
  close(ends[1]);
  drained.get();
  close(ends[0]);

  EXPECT_THAT(metrics_.Text(), Not(HasSubstr("sluice_reward_tasks{job_id=\"digits\"")))
      << "its worker runs";
}

absl::Status StartWith(const std::map<std::string, std::string>& own_flags) {
  daemon::Flags flags;
  flags.own_flags = own_flags;
  metrics::Registry metrics;
  auto program = RewardProgram::Make(
      daemon::Host{.flags = &flags, .metrics = &metrics, .stop = [](absl::Status) {}});
  if (!program.ok()) return program.status();
  const absl::Status started = (*program)->Start("127.0.0.1:1", "127.0.0.1:1");
  const absl::Status ready = (*program)->CheckReady();
  (*program)->Drain();
  return started.ok() ? ready : started;
}

TEST(RewardProgramFlagsTest, WithoutAControllerItMayServeItsSandboxesAlone) {
  if (!sandbox::Launcher::Make({}).ok()) GTEST_SKIP() << "this machine has no sandbox";
  EXPECT_EQ(StartWith({{"--serve-code", "127.0.0.1:0"}}), absl::OkStatus());
  EXPECT_THAT(StartWith({}).message(), HasSubstr("needs a controller"));
}

TEST(RewardProgramFlagsTest, FlagsOfSandboxesThatDoNotGoTogetherAreRefused) {
  const std::pair<std::map<std::string, std::string>, const char*> cases[] = {
      {{{"--serve-code-key", "key"}}, "--serve-code-key is given, but no --serve-code"},
      {{{"--serve-code", "127.0.0.1:0"}, {"--serve-code-cert", "cert"}},
       "--serve-code-cert is given, but no --serve-code-cert-key"},
      {{{"--serve-code", "127.0.0.1:0"}, {"--serve-code-key", "/no/such/file"}},
       "--serve-code-key: "},
      {{{"--serve-code", "0.0.0.0:0"}}, "0.0.0.0:0 is not on loopback"},
      {{{"--serve-code", "0.0.0.0:0"}, {"--unsafe-no-sandbox", "1"}},
       "--unsafe-no-sandbox is for debugging on one machine, but --serve-code is 0.0.0.0:0"},
      {{{"--code-server-key", "key"}}, "--code-server-key is given, but no --code-server"},
      {{{"--code-server", "127.0.0.1:80"}}, "--code-server: url is \"127.0.0.1:80\""},
  };
  for (const auto& [flags, why] : cases) EXPECT_THAT(StartWith(flags).message(), HasSubstr(why));
}

}  // namespace
}  // namespace sluice::reward
