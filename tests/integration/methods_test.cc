#include <gtest/gtest.h>

#include <set>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/file.h"
#include "common/base/id.h"
#include "common/base/status.h"
#include "common/config/job_file.h"
#include "common/queue_client/queue_client.h"
#include "common/rpc/client.h"
#include "common/rpc/stream.h"
#include "sluice/admin/v1/admin.pb.h"
#include "sluice/collective/v1/collective.pb.h"
#include "sluice/engine/v1/engine.pb.h"
#include "sluice/job/v1/job.pb.h"
#include "sluice/registry/v1/registry.pb.h"
#include "sluice/weights/v1/weights.pb.h"
#include "tests/integration/harness/cluster.h"
#include "tests/integration/harness/contract.h"
#include "tests/integration/harness/job.h"

// Every method of the running daemons, except the queue's (queue_methods_test.cc), while a job
// runs.
namespace sluice::integration {
namespace {

class MethodsTest : public testing::Test {
 protected:
  // rollout-0 has been started twice, so it has the incarnation 2, and a lower one exists.
  void SetUp() override {
    ASSERT_EQ(cluster_.Start(), absl::OkStatus());
    ASSERT_EQ(AwaitRegistered("rollout-0", 1), absl::OkStatus());
    ASSERT_EQ(cluster_.Kill("rollout-0"), absl::OkStatus());
    ASSERT_EQ(cluster_.Start("rollout-0"), absl::OkStatus());
    auto job = SubmitDigits(&cluster_, 100000);
    ASSERT_EQ(job.status(), absl::OkStatus());
    job_ = *std::move(job);
    ASSERT_EQ(job_->AwaitStep(1, kLong), absl::OkStatus());
  }

  // Asks the controller until the daemon is registered with this incarnation. Each answer takes a
  // round trip, so that no pause is needed.
  absl::Status AwaitRegistered(const std::string& id, int64_t incarnation) {
    for (const absl::Time deadline = absl::Now() + kLong; absl::Now() < deadline;) {
      if (IncarnationOf(id) == incarnation) return absl::OkStatus();
    }
    return absl::DeadlineExceededError(absl::StrCat(id, " did not register"));
  }

  int64_t IncarnationOf(const std::string& id) {
    admin::v1::DaemonsResponse daemons;
    EXPECT_EQ(rpc::Call(cluster_.controller(), admin::v1::DaemonsRequest(), &daemons),
              absl::OkStatus());
    for (const admin::v1::Daemon& daemon : daemons.daemons()) {
      if (daemon.daemon() == id) return daemon.incarnation();
    }
    return 0;
  }

  void SetCall(const std::string& worker, int64_t incarnation, common::v1::Call* call) {
    call->mutable_job()->set_job(job_->id());
    call->mutable_job()->set_worker(worker);
    call->mutable_job()->set_incarnation(incarnation);
  }

  // Makes a call twice, which must succeed each time. Returns the second answer.
  template <typename Response, typename Request>
  Response CallTwice(const rpc::Channel& channel, const Request& request) {
    called_.insert(MethodName(request));
    Response response;
    for (int time = 0; time < 2; ++time) {
      EXPECT_EQ(rpc::Call(channel, request, &response), absl::OkStatus())
          << MethodName(request) << " " << request.DebugString();
    }
    return response;
  }

  // A method for rollouts: rollout-0 may call it, and its former incarnation is fenced.
  template <typename Request>
  void CallFencedAndTwice(const rpc::Channel& channel, Request request) {
    called_.insert(MethodName(request));
    SetCall("rollout-0", 1, request.mutable_call());
    EXPECT_EQ(ReasonOf(CallOnce(channel, request)), "FENCED") << MethodName(request);
    SetCall("rollout-0", 2, request.mutable_call());
    for (int time = 0; time < 2; ++time)
      EXPECT_EQ(CallOnce(channel, request), absl::OkStatus()) << MethodName(request);
  }

  // Opens a stream and reads its first message with `read`. `reason`: why it must fail instead;
  // empty: it must not fail.
  template <typename Read>
  void OpenStream(const rpc::Channel& channel, const google::protobuf::Message& request,
                  const std::string& reason, Read read) {
    called_.insert(MethodName(request));
    rpc::ClientStream stream(channel, *request.GetDescriptor());
    ASSERT_TRUE(stream.Write(request));
    stream.WritesDone();

    const bool got = read(stream);
    EXPECT_EQ(got, reason.empty()) << MethodName(request);
    if (got) return;
    EXPECT_EQ(ReasonOf(stream.Finish()), reason) << MethodName(request);
  }

  Cluster cluster_;
  std::unique_ptr<Job> job_;
  std::set<std::string> called_;
};

TEST_F(MethodsTest, WeightsMethodsFenceAnOldIncarnationAndMayBeRepeated) {
  const rpc::Channel& trainer = *cluster_.channel("trainer-0");
  weights::v1::Latest latest;
  for (const int64_t incarnation : {1, 2}) {
    weights::v1::WatchRequest watch;
    watch.set_policy("policy");
    SetCall("rollout-0", incarnation, watch.mutable_call());
    OpenStream(trainer, watch, incarnation == 1 ? "FENCED" : "",
               [&](rpc::ClientStream& stream) { return stream.Read(&latest); });
  }
  ASSERT_EQ(latest.manifest().size(), 32U);

  weights::v1::LeaseRequest lease;
  lease.add_states(latest.state());
  lease.add_manifests(latest.manifest());
  lease.mutable_ttl()->set_seconds(60);
  CallFencedAndTwice(trainer, lease);

  weights::v1::ReportRequest report;
  report.set_replica("rollout-0");
  *report.mutable_version() = latest.version();
  report.set_phase(weights::v1::REPLICA_PHASE_ACTIVE);
  report.set_state(latest.state());
  CallFencedAndTwice(trainer, report);

  uint32_t crcs[2] = {};
  for (const int64_t incarnation : {1, 2, 2}) {
    weights::v1::FetchRequest fetch;
    SetCall("rollout-0", incarnation, fetch.mutable_call());
    fetch.add_objects()->set_id(latest.manifest());
    OpenStream(trainer, fetch, incarnation == 1 ? "FENCED" : "", [&](rpc::ClientStream& stream) {
      rpc::Frame frame;
      weights::v1::FetchHeader header;
      if (!stream.ReadFrame(&frame)) return false;
      EXPECT_EQ(frame.ParseHeader(&header), absl::OkStatus());

      std::swap(crcs[0], crcs[1]);
      crcs[1] = header.crc32c();
      return true;
    });
  }

  EXPECT_EQ(crcs[0], crcs[1]);

  weights::v1::ListRequest list;
  SetCall("controller-0", 0, list.mutable_call());
  EXPECT_GT(CallTwice<weights::v1::ListResponse>(trainer, list).nodes_size(), 0);

  weights::v1::JoinBroadcastRequest join;
  join.set_manifest(std::string(32, 'x'));
  SetCall("rollout-0", 1, join.mutable_call());
  called_.insert(MethodName(join));
  EXPECT_EQ(ReasonOf(CallOnce(trainer, join)), "FENCED");
  SetCall("rollout-0", 2, join.mutable_call());
  for (int time = 0; time < 2; ++time)
    EXPECT_EQ(ReasonOf(CallOnce(trainer, join)), "GONE") << "no version has this manifest";

  weights::v1::VerifyRequest verify;
  SetCall("controller-0", 0, verify.mutable_call());
  ExpectUnimplemented(trainer, verify, &called_);
  // The engine holds a version once it samples, and it has trained a step.
  EXPECT_TRUE(
      CallTwice<weights::v1::VerifyResponse>(*cluster_.channel("rollout-0"), verify).equal());

  weights::v1::RollbackRequest rollback;
  rollback.set_version(1'000'000'000);
  SetCall("rollout-0", 2, rollback.mutable_call());
  EXPECT_EQ(ReasonOf(CallOnce(trainer, rollback)), "WRONG_ROLE");
  SetCall("controller-0", 0, rollback.mutable_call());
  ExpectUnimplemented(*cluster_.channel("rollout-0"), rollback, &called_);
  for (int time = 0; time < 2; ++time)
    EXPECT_EQ(ReasonOf(CallOnce(trainer, rollback)), "GONE") << "no checkpoint has this version";
  EXPECT_EQ(ListUncalledMethods("sluice.weights.v1.WeightsService", called_), "");
}

TEST_F(MethodsTest, RendezvousMethodsAreForTheTrainersOfTheJobAndMayBeRepeated) {
  const rpc::Channel& trainer = *cluster_.channel("trainer-0");
  collective::v1::SetRequest set;
  set.set_key("key");
  set.set_value("value");
  collective::v1::GetRequest get;
  get.set_key("key");
  SetCall("rollout-0", 2, set.mutable_call());
  EXPECT_EQ(ReasonOf(CallOnce(trainer, set)), "WRONG_ROLE");
  SetCall("trainer-0", 1, get.mutable_call());
  EXPECT_EQ(ReasonOf(CallOnce(trainer, get)), "NOT_YET");
  SetCall("trainer-0", 1, set.mutable_call());
  CallTwice<collective::v1::SetResponse>(trainer, set);
  EXPECT_EQ(CallTwice<collective::v1::GetResponse>(trainer, get).value(), "value");
  EXPECT_EQ(ListUncalledMethods("sluice.collective.v1.RendezvousService", called_), "");
}

TEST_F(MethodsTest, EngineMethodsRefuseWrongRolesAndAnOldIncarnation) {
  const rpc::Channel& rollout = *cluster_.channel("rollout-0");
  engine::v1::DescribeRequest describe;
  SetCall("controller-0", 0, describe.mutable_call());
  const auto described = CallTwice<engine::v1::DescribeResponse>(rollout, describe);
  EXPECT_GT(described.slots(), 0U);
  EXPECT_TRUE(described.caps().verifies());

  // Generate and Score are for rewards. reward-0 may call them, its former incarnation is fenced,
  // and a rollout has the wrong role.
  const int64_t incarnation = IncarnationOf("reward-0");
  engine::v1::GenerateRequest generate;
  for (const uint32_t id : {1, 4, 5, 13}) generate.add_prompt(id);
  generate.mutable_sampling()->set_temperature(1);
  generate.mutable_sampling()->set_max_tokens(6);
  engine::v1::GenerateResponse generated;
  const auto read = [&](rpc::ClientStream& stream) { return stream.Read(&generated); };

  SetCall("rollout-0", 2, generate.mutable_call());
  OpenStream(rollout, generate, "WRONG_ROLE", read);
  SetCall("reward-0", incarnation - 1, generate.mutable_call());
  OpenStream(rollout, generate, "FENCED", read);
  SetCall("reward-0", incarnation, generate.mutable_call());
  OpenStream(rollout, generate, "", read);
  EXPECT_GT(generated.tokens_size(), 0);

  engine::v1::ScoreRequest score;
  engine::v1::ScoreHeader& header = *score.mutable_header();
  const int32_t tokens[] = {1, 4, 5, 13, 6};
  std::string payload;
  common::v1::Record& record = *header.add_records();
  record.mutable_owner()->set_member(0);
  record.mutable_piece()->set_role(common::v1::SEGMENT_ROLE_SAMPLED);
  record.mutable_piece()->set_count(5);
  AddField("tokens", common::v1::DTYPE_I32, {5},
           {reinterpret_cast<const char*>(tokens), sizeof(tokens)}, &record, &payload);
  score.set_payload(payload);
  engine::v1::ScoreResponse scored;
  const auto read_scores = [&](rpc::ClientStream& stream) { return stream.Read(&scored); };

  SetCall("someone", 0, header.mutable_call());
  OpenStream(rollout, score, "NOT_LISTED", read_scores);
  SetCall("reward-0", incarnation, header.mutable_call());
  OpenStream(rollout, score, "", read_scores);
  EXPECT_EQ(scored.payload().size(), 5 * sizeof(float));

  // Evaluate is only for trainers. What it does is tested by eval_training_test.cc.
  engine::v1::EvaluateRequest evaluate;
  evaluate.set_dataset("heldout");
  engine::v1::EvaluateResponse evaluated;
  const auto read_result = [&](rpc::ClientStream& stream) { return stream.Read(&evaluated); };
  SetCall("reward-0", incarnation, evaluate.mutable_call());
  OpenStream(rollout, evaluate, "WRONG_ROLE", read_result);

  EXPECT_EQ(ListUncalledMethods("sluice.engine.v1.EngineService", called_), "");
}

TEST_F(MethodsTest, JobMethodsChangeNothingWhenRepeated) {
  // A second job waits for the daemons that the first one has, so that its state does not change.
  const JobFile file = ReadJobFile(
      SLUICE_SOURCE_DIR "/configs/examples/digits.yaml",
      {.sets = {"name=waiting", absl::StrCat("checkpoint.dir=", cluster_.dir(), "/waiting")}});
  ASSERT_EQ(ProblemStatus(file.problems), absl::OkStatus());
  job::v1::SubmitRequest submit;
  submit.set_name("waiting");
  submit.set_hash(file.hash);
  *submit.mutable_spec() = *file.spec;

  called_.insert(MethodName(submit));
  job::v1::SubmitResponse first, second;
  ASSERT_EQ(rpc::Call(cluster_.controller(), submit, &first), absl::OkStatus());
  ASSERT_EQ(rpc::Call(cluster_.controller(), submit, &second), absl::OkStatus());
  ExpectRepeat(first, second, {"created", "status"});
  EXPECT_EQ(first.status().job(), second.status().job());

  submit.set_hash(std::string(32, 'h'));
  EXPECT_EQ(ReasonOf(CallOnce(cluster_.controller(), submit)), "CONFLICT");

  job::v1::GetRequest get;
  get.set_job("waiting");
  EXPECT_EQ(CallTwice<job::v1::JobStatus>(cluster_.controller(), get).state(),
            job::v1::JOB_STATE_WAITING);
  EXPECT_EQ(
      CallTwice<job::v1::ListResponse>(cluster_.controller(), job::v1::ListRequest()).jobs_size(),
      2);

  job::v1::WhyRequest why;
  why.set_job("waiting");
  EXPECT_GT(CallTwice<job::v1::WhyResponse>(cluster_.controller(), why).chain_size(), 0);

  job::v1::InspectRequest inspect;
  inspect.set_job(job_->id());
  inspect.mutable_queue_stats();
  EXPECT_GT(CallTwice<job::v1::InspectResponse>(cluster_.controller(), inspect)
                .queue_stats()
                .ledger()
                .accepted(),
            0);

  inspect.mutable_weights_list();
  const auto kept = CallTwice<job::v1::InspectResponse>(cluster_.controller(), inspect);
  ASSERT_GT(kept.weights_list().nodes_size(), 0);
  job::v1::PinWeightsRequest pin;
  pin.set_job(job_->id());
  pin.set_on(true);
  (void)CallTwice<job::v1::PinWeightsResponse>(cluster_.controller(), pin);

  inspect.mutable_rewards();
  const auto described = CallTwice<job::v1::InspectResponse>(cluster_.controller(), inspect);
  ASSERT_EQ(described.rewards_size(), 1);
  EXPECT_NE(described.rewards(0).answer().generation(), 0U);
  job::v1::ReloadRewardsRequest reload;
  reload.set_job(job_->id());
  const auto reloaded = CallTwice<job::v1::ReloadRewardsResponse>(cluster_.controller(), reload);
  ASSERT_EQ(reloaded.rewards_size(), 1);
  EXPECT_THAT(reloaded.rewards(0).error(), testing::HasSubstr("has no plug-in"));

  job::v1::WatchRequest watch;
  watch.set_job("waiting");
  job::v1::WatchResponse seen;
  for (int time = 0; time < 2; ++time) {
    OpenStream(cluster_.controller(), watch, "",
               [&](rpc::ClientStream& stream) { return stream.Read(&seen); });
  }

  job::v1::LogsRequest logs;
  logs.set_job("waiting");
  job::v1::LogsResponse lines;
  for (int time = 0; time < 2; ++time) {
    OpenStream(cluster_.controller(), logs, "",
               [&](rpc::ClientStream& stream) { return stream.Read(&lines); });
    EXPECT_GT(lines.lines_size(), 0) << "the controller's on its Submit";
  }

  job::v1::ControlRequest cancel;
  cancel.set_job("waiting");
  cancel.set_verb(job::v1::VERB_CANCEL);

  called_.insert(MethodName(cancel));
  job::v1::ControlResponse cancelled, again;
  ASSERT_EQ(rpc::Call(cluster_.controller(), cancel, &cancelled), absl::OkStatus());
  ASSERT_EQ(rpc::Call(cluster_.controller(), cancel, &again), absl::OkStatus());
  ExpectRepeat(cancelled, again, {"status"});
  EXPECT_EQ(ListUncalledMethods("sluice.job.v1.JobService", called_), "");
}

TEST_F(MethodsTest, TheRegistryGivesEachBootAnIncarnationAndFencesTheOneBefore) {
  registry::v1::RegisterRequest request;
  request.set_daemon("reward-9");
  request.set_role(rpc::v1::ROLE_REWARD);
  request.set_boot(RandomId16());
  request.set_protocol_min(1);
  request.set_protocol_max(1);

  called_.insert(MethodName(request));
  registry::v1::RegisterResponse first, second;
  ASSERT_EQ(rpc::Call(cluster_.controller(), request, &first), absl::OkStatus());
  ASSERT_EQ(rpc::Call(cluster_.controller(), request, &second), absl::OkStatus());
  ExpectRepeat(first, second);

  request.set_boot(RandomId16());
  ASSERT_EQ(rpc::Call(cluster_.controller(), request, &second), absl::OkStatus());
  EXPECT_EQ(second.incarnation(), first.incarnation() + 1);

  for (const int64_t incarnation : {first.incarnation(), second.incarnation()}) {
    registry::v1::HeartbeatRequest beat;
    beat.set_daemon("reward-9");
    beat.set_incarnation(incarnation);
    registry::v1::HeartbeatResponse level;
    OpenStream(cluster_.controller(), beat, incarnation == first.incarnation() ? "FENCED" : "",
               [&](rpc::ClientStream& stream) { return stream.Read(&level); });
    EXPECT_EQ(IncarnationOf("reward-9"), second.incarnation());
  }

  EXPECT_EQ(ListUncalledMethods("sluice.registry.v1.RegistryService", called_), "");
}

TEST_F(MethodsTest, EachDaemonAnswersItsAdminMethodsAndLeavesTheOthersUnimplemented) {
  for (const std::string& id : cluster_.ids()) {
    const rpc::Channel& daemon = *cluster_.channel(id);
    admin::v1::ExplainRequest explain;
    SetCall("controller-0", 0, explain.mutable_call());
    if (id == "controller-0") {
      ExpectUnimplemented(daemon, explain, &called_);  // The controller asks the other daemons.
    } else {
      CallTwice<admin::v1::ExplainResponse>(daemon, explain);
    }

    admin::v1::FailpointRequest failpoint;
    failpoint.set_name("tests.never.hit");
    failpoint.set_action("error");
    CallTwice<admin::v1::FailpointResponse>(daemon, failpoint);
    failpoint.clear_action();  // Disarms it.
    CallTwice<admin::v1::FailpointResponse>(daemon, failpoint);

    failpoint.set_action("explode");
    EXPECT_EQ(CallOnce(daemon, failpoint).code(), absl::StatusCode::kInvalidArgument);
    admin::v1::LogsRequest logs;
    SetCall("controller-0", 0, logs.mutable_call());
    if (id == "controller-0") {
      ExpectUnimplemented(daemon, logs, &called_);
      std::string copy;
      admin::v1::BackupResponse piece;
      OpenStream(daemon, admin::v1::BackupRequest(), "", [&](rpc::ClientStream& stream) {
        if (!stream.Read(&piece)) return false;
        copy += piece.data();
        return piece.end();
      });
      EXPECT_EQ(copy.rfind("sluice-meta ", 0), 0u) << copy.substr(0, 40);
    } else {
      admin::v1::LogsResponse lines;
      OpenStream(daemon, logs, "", [&](rpc::ClientStream& stream) { return stream.Read(&lines); });
      EXPECT_GT(lines.lines_size(), 0) << id;
      ExpectUnimplemented(daemon, admin::v1::DrainRequest(), &called_);
      ExpectUnimplemented(daemon, admin::v1::BackupRequest(), &called_);
    }
  }

  admin::v1::DrainRequest drain;
  drain.set_daemon("rollout-0");
  drain.set_on(true);
  CallTwice<admin::v1::DrainResponse>(cluster_.controller(), drain);
  drain.set_daemon("nobody");
  EXPECT_EQ(ReasonOf(CallOnce(cluster_.controller(), drain)), "DAEMON");

  const auto daemons =
      CallTwice<admin::v1::DaemonsResponse>(cluster_.controller(), admin::v1::DaemonsRequest());
  EXPECT_EQ(static_cast<size_t>(daemons.daemons_size()), cluster_.ids().size() - 1);
  EXPECT_EQ(ListUncalledMethods("sluice.admin.v1.AdminService", called_), "");
}

TEST_F(MethodsTest, RewardMethodsAreForTheController) {
  const rpc::Channel& rewards = *cluster_.channel("reward-0");
  reward::v1::DescribeRequest describe;
  SetCall("controller-0", 0, describe.mutable_call());
  const auto described = CallTwice<reward::v1::DescribeResponse>(rewards, describe);
  ASSERT_EQ(described.rewards_size(), 1);
  EXPECT_EQ(described.rewards(0).version().size(), 8U);

  reward::v1::ReloadRequest reload;
  SetCall("controller-0", 0, reload.mutable_call());
  called_.insert(MethodName(reload));
  for (int time = 0; time < 2; ++time)
    EXPECT_EQ(ReasonOf(CallOnce(rewards, reload)), "REWARD") << "the job has no plug-in";
  reload.mutable_call()->mutable_job()->set_job(std::string(32, 'e'));
  EXPECT_EQ(ReasonOf(CallOnce(rewards, reload)), "JOB");
  EXPECT_EQ(ListUncalledMethods("sluice.reward.v1.RewardService", called_), "");
}

// The job has no evaluations, so the daemon scores none.
TEST_F(MethodsTest, ScoreMethodsAreForTheRolloutsOfAJobThatIsEvaluated) {
  const rpc::Channel& rewards = *cluster_.channel("reward-0");
  reward::v1::ScoreRequest score;
  score.set_source("held");
  score.set_row("{}");
  score.add_answers()->set_text("yes");
  called_.insert(MethodName(score));
  SetCall("rollout-0", 2, score.mutable_call());
  EXPECT_EQ(ReasonOf(CallOnce(rewards, score)), "NOT_LISTED");
  EXPECT_EQ(ListUncalledMethods("sluice.reward.v1.ScoreService", called_), "");
}

// A new service must be tested too. Those of env/ and plugin/ are served by user code.
TEST(ServicesTest, EachIsTestedOrServedByUserCode) {
  const std::set<std::string> known = {"admin",  "collective", "common", "engine", "env",
                                       "job",    "plugin",     "policy", "queue",  "registry",
                                       "reward", "rpc",        "weights"};
  const auto folders = ListDir(SLUICE_SOURCE_DIR "/proto/sluice");
  ASSERT_EQ(folders.status(), absl::OkStatus());
  EXPECT_EQ(std::set<std::string>(folders->begin(), folders->end()), known);
}

}  // namespace
}  // namespace sluice::integration
