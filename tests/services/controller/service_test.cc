// Tests the daemon from outside, over gRPC, with real clients and real daemon links. The queue is a
// fake that answers SetJob, Stats and Release.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <filesystem>
#include <functional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/base/id.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/daemon/controller_link.h"
#include "common/metrics/metrics.h"
#include "common/policy/policy.h"
#include "common/rpc/client.h"
#include "common/rpc/convert.h"
#include "common/rpc/server.h"
#include "common/rpc/server_stream.h"
#include "common/rpc/stream.h"
#include "services/controller/server.h"
#include "services/controller/spec.h"
#include "sluice/admin/v1/admin.grpc.pb.h"
#include "sluice/job/v1/job.pb.h"
#include "sluice/queue/v1/queue.grpc.pb.h"
#include "sluice/registry/v1/registry.pb.h"
#include "tests/services/controller/digits_spec.h"

namespace sluice::controller {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

// Answers SetJob, Stats, Retask and Release, and remembers what it was told.
class FakeQueue : public queue::v1::QueueService::CallbackService {
 public:
  grpc::ServerUnaryReactor* SetJob(grpc::CallbackServerContext* context,
                                   const queue::v1::SetJobRequest* request,
                                   queue::v1::SetJobResponse* response) override {
    MutexLock lock(&mu_);
    if (!refusal_.ok() && request->phase() == queue::v1::PHASE_OPEN) {
      grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
      reactor->Finish(grpc::Status(static_cast<grpc::StatusCode>(refusal_.code()),
                                   std::string(refusal_.message())));
      return reactor;
    }
    response->set_repeat(last_.revision() == request->revision());
    response->set_restored(last_.revision() > 0);
    response->set_incarnation(1);
    response->mutable_ledger()->set_accepted(64);
    response->mutable_ledger()->set_durable(64);
    last_ = *request;
    phases_.push_back(request->phase());
    return Finish(context);
  }

  grpc::ServerUnaryReactor* Stats(grpc::CallbackServerContext* context,
                                  const queue::v1::StatsRequest* request,
                                  queue::v1::StatsResponse* response) override {
    response->set_version(41);
    return Finish(context);
  }

  grpc::ServerUnaryReactor* Retask(grpc::CallbackServerContext* context,
                                   const queue::v1::RetaskRequest* request,
                                   queue::v1::RetaskResponse* response) override {
    response->set_count(3);
    MutexLock lock(&mu_);
    retask_ = *request;
    return Finish(context);
  }

  grpc::ServerUnaryReactor* Release(grpc::CallbackServerContext* context,
                                    const queue::v1::ReleaseRequest* request,
                                    queue::v1::ReleaseResponse*) override {
    MutexLock lock(&mu_);
    released_.push_back(request->worker());
    changed_.NotifyAll();
    return Finish(context);
  }

  // Refuses every job from now on. The reason goes out as it is, even if it is not UTF-8.
  void Refuse(absl::Status why) {
    MutexLock lock(&mu_);
    refusal_ = std::move(why);
  }

  queue::v1::SetJobRequest last() {
    MutexLock lock(&mu_);
    return last_;
  }

  queue::v1::RetaskRequest retask() {
    MutexLock lock(&mu_);
    return retask_;
  }

  std::vector<queue::v1::Phase> phases() {
    MutexLock lock(&mu_);
    return phases_;
  }

  // Waits for the workers that the controller releases. The call may come later than the event that
  // tells of the loss.
  std::vector<std::string> AwaitReleased() {
    MutexLock lock(&mu_);
    while (released_.empty()) changed_.Wait(&mu_);
    return released_;
  }

 private:
  static grpc::ServerUnaryReactor* Finish(grpc::CallbackServerContext* context) {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

  Mutex mu_;
  CondVar changed_;
  absl::Status refusal_ ABSL_GUARDED_BY(mu_);
  queue::v1::SetJobRequest last_ ABSL_GUARDED_BY(mu_);
  queue::v1::RetaskRequest retask_ ABSL_GUARDED_BY(mu_);
  std::vector<queue::v1::Phase> phases_ ABSL_GUARDED_BY(mu_);
  std::vector<std::string> released_ ABSL_GUARDED_BY(mu_);
};

// The log lines that a daemon keeps of jobs.
class FakeLogs : public admin::v1::AdminService::CallbackService {
 public:
  grpc::ServerWriteReactor<admin::v1::LogsResponse>* Logs(
      grpc::CallbackServerContext*, const admin::v1::LogsRequest* request) override {
    auto stream = rpc::MakeStream<rpc::WriteStream<admin::v1::LogsResponse>>();
    admin::v1::LogsResponse response;
    MutexLock lock(&mu_);
    const uint64_t after = request->run() == run_ ? request->after() : 0;
    for (const common::v1::LogLine& line : lines_[request->call().job().job()]) {
      if (line.number() > after) *response.add_lines() = line;
      response.set_newest(line.number());
      response.set_run(run_);
    }
    response.set_lost(after == 0 ? lost_ : 0);
    stream->Send(response);
    stream->End(absl::OkStatus());
    return stream.get();
  }

  void Add(const std::string& job, int64_t second, const std::string& json) {
    MutexLock lock(&mu_);
    common::v1::LogLine& line = lines_[job].emplace_back();
    line.set_number(lines_[job].size());
    *line.mutable_at() = rpc::ToProto(absl::FromUnixSeconds(second));
    line.set_level(common::v1::LOG_LEVEL_INFO);
    line.set_json(json);
  }

  // As a process that was started anew, and has lost `lost` lines since.
  void Restart(uint64_t lost) {
    MutexLock lock(&mu_);
    lines_.clear();
    ++run_;
    lost_ = lost;
  }

 private:
  Mutex mu_;
  uint64_t run_ ABSL_GUARDED_BY(mu_) = 1;
  uint64_t lost_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<std::string, std::vector<common::v1::LogLine>> lines_ ABSL_GUARDED_BY(mu_);
};

// A daemon that reports that it is ready for each assignment, and leaves a job when told to.
class FakeDaemon {
 public:
  FakeDaemon(const std::string& controller, const std::string& id, rpc::Role role,
             const std::string& address)
      : link_({.controller = controller,
               .id = id,
               .role = role,
               .addresses = {{"grpc", address}},
               .backoff = {.first = absl::Milliseconds(10), .longest = absl::Milliseconds(50)}},
              {.on_registered = {},
               .on_assigned =
                   [this](const registry::v1::HeartbeatResponse& assignments) {
                     Assigned(assignments);
                   },
               .on_drain = {},
               .on_refused = {}}) {
    link_.Start();
  }

  ~FakeDaemon() { link_.Stop(); }
  daemon::ControllerLink& link() { return link_; }

  void Done(const std::string& job) { Say(job, "done", ""); }
  void Say(const std::string& job, const std::string& phase, const std::string& cause) {
    registry::v1::Progress progress;
    {
      MutexLock lock(&mu_);
      progress = said_;
    }
    progress.set_job(job);
    progress.set_phase(phase);
    progress.set_cause(cause);
    link_.SetProgress(progress);
  }

 private:
  void Assigned(const registry::v1::HeartbeatResponse& assignments) {
    for (const registry::v1::Assignment& job : assignments.jobs()) {
      if (job.phase() == registry::v1::ASSIGNMENT_PHASE_STOP) {
        link_.RemoveProgress(job.job());
        continue;
      }
      registry::v1::Progress progress;
      progress.set_job(job.job());
      progress.set_incarnation(job.incarnation());
      progress.set_ready(true);
      {
        MutexLock lock(&mu_);
        said_ = progress;
      }
      link_.SetProgress(progress);
    }
  }

  Mutex mu_;
  registry::v1::Progress said_ ABSL_GUARDED_BY(mu_);
  daemon::ControllerLink link_;
};

class ServiceTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "sluice_ctls_XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    dir_ = name;
    StartController("127.0.0.1:0");
    grpc::Service* services[] = {&queue_, &queue_logs_};
    queue_server_ = *rpc::Server::Start({}, services);
    grpc::Service* trainer_services[] = {&trainer_logs_};
    trainer_server_ = *rpc::Server::Start({}, trainer_services);
  }

  void TearDown() override {
    daemons_.clear();
    StopController();
    std::filesystem::remove_all(dir_);
  }

  void StartController(const std::string& address) {
    host_ = {nullptr, &metrics_, [](absl::Status) {}};
    auto program = MakeController({.id = "controller-0", .data_dir = dir_}, host_);
    ASSERT_TRUE(program.ok()) << program.status();
    program_ = *std::move(program);
    const std::vector<grpc::Service*> services = program_->services();
    auto server = rpc::Server::Start({.address = address}, services);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    channel_ = *rpc::Connect(server_->address(), {rpc::Role::kController});
  }

  void StopController() {
    program_->Drain();
    server_->Drain(absl::Seconds(1));
    server_.reset();
    program_.reset();
  }

  void StartFleet() {
    const std::string at = server_->address(), queue = queue_server_->address();
    daemons_["queue-0"] = std::make_unique<FakeDaemon>(at, "queue-0", rpc::Role::kQueue, queue);
    daemons_["trainer-0"] = std::make_unique<FakeDaemon>(at, "trainer-0", rpc::Role::kTrainer,
                                                         trainer_server_->address());
    daemons_["rollout-0"] =
        std::make_unique<FakeDaemon>(at, "rollout-0", rpc::Role::kRollout, "127.0.0.1:2");
    daemons_["reward-0"] =
        std::make_unique<FakeDaemon>(at, "reward-0", rpc::Role::kReward, "127.0.0.1:3");
  }

  absl::StatusOr<job::v1::SubmitResponse> Submit(const job::v1::JobSpec& spec, char hash = 'h') {
    job::v1::SubmitRequest request;
    request.set_name(spec.name());
    request.set_hash(std::string(32, hash));
    *request.mutable_spec() = spec;
    job::v1::SubmitResponse response;
    SLUICE_RETURN_IF_ERROR(rpc::Call(*channel_, request, &response));
    return response;
  }

  job::v1::JobStatus Get(const std::string& job) {
    job::v1::GetRequest request;
    request.set_job(job);
    job::v1::JobStatus status;
    EXPECT_TRUE(rpc::Call(*channel_, request, &status, {.give_up = absl::Seconds(20)}).ok());
    return status;
  }

  // Follows the job until `enough` is true of a message. Adds all messages to `seen`.
  void WatchUntil(job::v1::WatchRequest request, std::vector<job::v1::WatchResponse>* seen,
                  const std::function<bool(const job::v1::WatchResponse&)>& enough) {
    request.set_follow(true);
    rpc::ClientStream stream(*channel_, *job::v1::WatchRequest::descriptor(), nullptr,
                             absl::Seconds(30));
    ASSERT_TRUE(stream.Write(request));
    stream.WritesDone();
    job::v1::WatchResponse response;
    while (stream.Read(&response)) {
      if (response.item_case() != job::v1::WatchResponse::ITEM_NOT_SET) seen->push_back(response);
      if (enough(response)) return;
    }
    FAIL() << "the watch ended: " << stream.Finish();
  }

  // Reads the call to its end. Adds to `lines` "DAEMON JSON" of each line, and merges all else that
  // was said.
  absl::StatusOr<job::v1::LogsResponse> ReadLogs(const job::v1::LogsRequest& request,
                                                 std::vector<std::string>* lines) {
    rpc::ClientStream stream(*channel_, *job::v1::LogsRequest::descriptor(), nullptr,
                             absl::Seconds(30));
    stream.Write(request);
    stream.WritesDone();
    job::v1::LogsResponse all, response;
    while (stream.Read(&response)) {
      for (const job::v1::DaemonLine& line : response.lines())
        lines->push_back(absl::StrCat(line.daemon(), " ", line.line().json()));
      all.MergeFrom(response);
    }
    if (absl::Status status = stream.Finish(); !status.ok()) return status;
    return all;
  }

  void WaitFor(const std::string& job, job::v1::JobState state) {
    std::vector<job::v1::WatchResponse> seen;
    job::v1::WatchRequest request;
    request.set_job(job);
    WatchUntil(request, &seen, [&](const job::v1::WatchResponse& r) {
      return r.has_status() && r.status().state() == state;
    });
  }

  void Report(const std::string& job, int64_t k, int64_t trainer_incarnation = 1) {
    job::v1::StepReport step;
    step.set_job(job);
    step.set_k(k);
    step.mutable_version()->set_incarnation(trainer_incarnation);
    step.mutable_version()->set_number(k + 1);
    (*step.mutable_values())["reward_mean"] = 0.5;
    (*step.mutable_values())["reward_count"] = 8;
    daemons_["trainer-0"]->link().ReportStep(step);
  }

  metrics::Registry metrics_;
  daemon::Host host_;
  std::string dir_;
  std::unique_ptr<daemon::Program> program_;
  std::unique_ptr<rpc::Server> server_;
  std::shared_ptr<rpc::Channel> channel_;
  FakeQueue queue_;
  FakeLogs queue_logs_, trainer_logs_;
  std::unique_ptr<rpc::Server> queue_server_, trainer_server_;
  std::map<std::string, std::unique_ptr<FakeDaemon>> daemons_;
};

TEST_F(ServiceTest, AJobRunsFromSubmitToItsResult) {
  StartFleet();
  const std::string job = Submit(Spec("digits"))->job();
  WaitFor(job, job::v1::JOB_STATE_RUNNING);

  const queue::v1::SetJobRequest told = queue_.last();
  EXPECT_EQ(told.call().job().job(), job);
  EXPECT_EQ(told.workers_size(), 3);
  EXPECT_EQ(told.spec().job_name(), "digits");
  EXPECT_EQ(told.spec().member_tokens(), 39u);  // max_prompt + max_response.
  EXPECT_EQ(told.spec().sources(0).fields().at("prompt"), "question");
  ASSERT_EQ(told.spec().tasks_size(), 1);
  EXPECT_THAT(told.spec().tasks(0).needs(), ElementsAre("messages"));

  for (int k = 0; k < 3; ++k) Report(job, k);
  ASSERT_TRUE(daemons_["trainer-0"]->link().Flush(absl::Seconds(10)));
  daemons_["trainer-0"]->Done(job);
  WaitFor(job, job::v1::JOB_STATE_SUCCEEDED);

  const job::v1::JobStatus status = Get("digits");
  EXPECT_EQ(status.result().steps(), 3);
  EXPECT_DOUBLE_EQ(status.result().reward_last(), 0.5);
  EXPECT_EQ(status.result().ledger().durable(), 64);
  EXPECT_EQ(status.spec().name(), "digits");
}

TEST_F(ServiceTest, WhatAQueueAndATrainerSayInBadBytesLeavesEveryCallAnswered) {
  StartFleet();
  const std::string ran = Submit(Spec("ran"))->job();
  WaitFor(ran, job::v1::JOB_STATE_RUNNING);

  common::v1::Event event;
  event.set_code("checkpoint");
  event.set_message("/ckpt/caf\xe9");
  daemons_["trainer-0"]->link().RaiseEvent(event);
  daemons_["trainer-0"]->Say(ran, "failed", "tensor \xff is missing");
  WaitFor(ran, job::v1::JOB_STATE_FAILED);

  EXPECT_THAT(Get(ran).message(), HasSubstr("tensor \xef\xbf\xbd is missing"));
  EXPECT_EQ(Get(ran).result().checkpoint(), "/ckpt/caf\xef\xbf\xbd");

  queue_.Refuse(absl::InvalidArgumentError("rows.jsonl:1:2: ill-formed \xff\xfe"));
  const std::string refused = Submit(Spec("refused"))->job();
  WaitFor(refused, job::v1::JOB_STATE_FAILED);
  for (const std::string& job : {ran, refused}) {
    job::v1::WhyRequest why;
    why.set_job(job);
    job::v1::WhyResponse because;
    EXPECT_EQ(rpc::Call(*channel_, why, &because), absl::OkStatus());
  }

  EXPECT_THAT(Get(refused).message(), HasSubstr("ill-formed \xef\xbf\xbd\xef\xbf\xbd"));

  job::v1::ListResponse list;
  EXPECT_EQ(rpc::Call(*channel_, job::v1::ListRequest(), &list), absl::OkStatus());
  EXPECT_EQ(list.jobs_size(), 2);
}

TEST_F(ServiceTest, ListGivesPagesThatNewJobsDoNotMove) {
  for (const char* name : {"one", "two", "three", "four"})
    ASSERT_EQ(Submit(Spec(name)).status(), absl::OkStatus());
  const auto list = [&](job::v1::ListRequest request, job::v1::ListResponse* response) {
    response->Clear();
    const absl::Status status = rpc::Call(*channel_, request, response);
    std::vector<std::string> names;
    for (const job::v1::JobStatus& job : response->jobs()) names.push_back(job.name());
    return std::make_pair(status.code(), names);
  };
  const auto is = [](std::vector<std::string> names) {
    return Pair(absl::StatusCode::kOk, ::testing::ElementsAreArray(names));
  };

  job::v1::ListResponse page;
  job::v1::ListRequest request;
  request.set_limit(3);
  EXPECT_THAT(list(request, &page), is({"four", "three", "two"}));
  EXPECT_EQ(page.total(), 4u);
  ASSERT_EQ(Submit(Spec("five")).status(), absl::OkStatus());
  request.set_page(page.next());
  EXPECT_THAT(list(request, &page), is({"one"}));
  EXPECT_EQ(page.next(), "");
  EXPECT_EQ(page.total(), 5u);

  request.Clear();
  request.add_states(job::v1::JOB_STATE_SUCCEEDED);
  EXPECT_THAT(list(request, &page), is({}));
  request.add_states(job::v1::JOB_STATE_WAITING);
  EXPECT_THAT(list(request, &page), is({"five", "four", "three", "two", "one"}));
  request.set_page("nonsense");
  EXPECT_EQ(list(request, &page).first, absl::StatusCode::kInvalidArgument);
}

TEST_F(ServiceTest, AWatchResumesWithoutGapOrDuplicateAcrossARestartOfTheController) {
  StartFleet();
  const std::string job = Submit(Spec("digits"))->job();
  WaitFor(job, job::v1::JOB_STATE_RUNNING);
  for (int k = 0; k < 5; ++k) Report(job, k);

  std::vector<job::v1::WatchResponse> seen;
  job::v1::WatchRequest request;
  request.set_job(job);
  WatchUntil(request, &seen,
             [](const job::v1::WatchResponse& r) { return r.has_step() && r.step().k() == 2; });

  const std::string address = server_->address();
  StopController();
  Report(job, 5);  // No controller hears it now. The daemon's link sends it again.
  StartController(address);

  // gRPC may use the connection that has just broken for the new channel too. rpc::Call() then
  // tries again, but a stream would fail, so make a call first.
  EXPECT_EQ(Get(job).job(), job);

  for (int k = 6; k < 9; ++k) Report(job, k);
  for (const job::v1::WatchResponse& r : seen) {
    if (r.has_event()) request.set_after_event(r.event().seq());
    if (r.has_step()) request.set_after_step(r.step().k());
  }
  WatchUntil(request, &seen,
             [](const job::v1::WatchResponse& r) { return r.has_step() && r.step().k() == 8; });

  std::vector<uint64_t> events;
  std::vector<int64_t> steps;
  for (const job::v1::WatchResponse& r : seen) {
    if (r.has_event()) events.push_back(r.event().seq());
    if (r.has_step()) steps.push_back(r.step().k());
  }

  for (size_t i = 0; i < events.size(); ++i) EXPECT_EQ(events[i], i + 1);
  EXPECT_THAT(steps, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8));
  EXPECT_EQ(Get(job).state(), job::v1::JOB_STATE_RUNNING);
  EXPECT_EQ(Get(job).incarnation(), 1);
}

TEST_F(ServiceTest, AWatchDeliversTheStepsThatANewTrainerGroupTrainsAgain) {
  StartFleet();
  const std::string job = Submit(Spec("digits"))->job();
  WaitFor(job, job::v1::JOB_STATE_RUNNING);
  for (int k = 0; k < 5; ++k) Report(job, k);

  // After step 4 the trainer goes back to the checkpoint before step 2.
  std::vector<job::v1::WatchResponse> seen;
  job::v1::WatchRequest request;
  request.set_job(job);
  bool went_back = false;
  WatchUntil(request, &seen, [&](const job::v1::WatchResponse& r) {
    if (r.has_step() && r.step().k() == 4 && r.step().version().incarnation() == 1)
      daemons_["trainer-0"]->Say(job, "restore", "RESTORE_FIRST");
    if (r.has_status() && r.status().incarnation() == 2 && !std::exchange(went_back, true))
      for (int k = 2; k < 6; ++k) Report(job, k, 2);
    return r.has_step() && r.step().k() == 5;
  });

  std::vector<std::pair<int64_t, int64_t>> steps;
  for (const job::v1::WatchResponse& r : seen) {
    if (r.has_step()) steps.emplace_back(r.step().version().incarnation(), r.step().k());
  }
  EXPECT_THAT(steps, ElementsAre(Pair(1, 0), Pair(1, 1), Pair(1, 2), Pair(1, 3), Pair(1, 4),
                                 Pair(2, 2), Pair(2, 3), Pair(2, 4), Pair(2, 5)));
}

TEST_F(ServiceTest, SubmitIsIdempotentAndAnotherFileIsAConflictWithTheDifference) {
  const auto first = Submit(Spec("digits"));
  const auto again = Submit(Spec("digits"));
  ASSERT_TRUE(again.ok());
  EXPECT_TRUE(first->created());
  EXPECT_FALSE(again->created());
  EXPECT_EQ(first->job(), again->job());

  job::v1::JobSpec other = Spec("digits");
  other.mutable_run()->set_seed(8);
  const absl::Status conflict = Submit(other, 'x').status();
  EXPECT_EQ(conflict.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(conflict.message()), HasSubstr("seed"));
}

TEST_F(ServiceTest, WhatValidateRefusesIsRefusedOfAnyClientWithTheSameText) {
  job::v1::JobSpec spec = Spec("digits");
  spec.mutable_queue()->mutable_keep()->set_durability("fast");
  spec.mutable_rollout()->mutable_sampling()->set_top_k(5);
  spec.mutable_trainer()->mutable_optimizer()->set_lr(-1);
  spec.clear_checkpoint();

  const absl::Status status = Submit(spec).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(DetailOf(status).catalogue, "SLUICE-CTL-0007");

  const std::string message(status.message());
  EXPECT_THAT(
      message,
      HasSubstr(
          "SLUICE-CONFIG-0008 queue.keep.durability is \"fast\", wants memory, metadata, full"));
  EXPECT_THAT(message, HasSubstr("SLUICE-CONFIG-0013 rollout.sampling.top_k: "));
  EXPECT_THAT(message,
              HasSubstr("SLUICE-CONFIG-0007 trainer.optimizer.lr is -1, but the minimum is 0"));
  EXPECT_THAT(message, HasSubstr("SLUICE-CONFIG-0009 checkpoint.dir is missing"));

  spec = Spec("digits");  // A value that is wrong only together with another.
  spec.mutable_rollout()->mutable_group()->set_min(9);
  EXPECT_THAT(std::string(Submit(spec).status().message()),
              HasSubstr("rollout.group.min is 9, but the maximum is rollout.group.size = 8"));

  spec = Spec("digits");  // A value that no job file can have.
  (*spec.mutable_reward()->mutable_rewards(0)->mutable_args()->mutable_fields())["property"]
      .set_number_value(std::nan(""));
  EXPECT_THAT(std::string(Submit(spec).status().message()),
              HasSubstr("reward.rewards.0.args: text: args.property is \"NaN\""));

  spec = Spec("digits");
  spec.mutable_weights()->set_encoding("delta");
  EXPECT_THAT(std::string(Submit(spec).status().message()),
              HasSubstr("weights.encoding: \"delta\" is not in this build; use auto or full"));
}

TEST_F(ServiceTest, AnUnusualValueIsTakenAndToldAsAnEvent) {
  job::v1::JobSpec spec = Spec("digits");
  spec.mutable_trainer()->mutable_optimizer()->set_lr(1000);
  const auto submitted = Submit(spec);
  ASSERT_TRUE(submitted.ok()) << submitted.status();

  std::vector<job::v1::WatchResponse> seen;
  job::v1::WatchRequest request;
  request.set_job(submitted->job());
  WatchUntil(request, &seen, [](const job::v1::WatchResponse& r) {
    return r.has_event() && r.event().code() == "unusual";
  });

  EXPECT_EQ(seen.back().event().severity(), common::v1::SEVERITY_WARNING);
  EXPECT_THAT(seen.back().event().message(), HasSubstr("trainer.optimizer.lr is 1000"));
}

TEST_F(ServiceTest, AFileThatIsHereAndCannotBeUsedIsRefusedAndOneThatIsElsewhereIsNot) {
  job::v1::JobSpec spec = Spec("digits");
  ASSERT_TRUE(Submit(spec).ok());  // /models/tiny and /data/digits.jsonl do not exist here.

  const std::string file = dir_ + "/rows.jsonl";
  ASSERT_EQ(WriteFileAtomic(file, "{\"text\": \"1234\"}\n"), absl::OkStatus());
  spec.set_name("other");
  spec.mutable_data()->mutable_train(0)->set_path(file);

  const absl::Status status = Submit(spec).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("rows.jsonl:1: no column \"question\" for field prompt"));
}

TEST_F(ServiceTest, AVerbOrFieldThatIsNotBuiltIsRefusedByName) {
  (void)Submit(Spec("digits"));
  const auto refusal = [&](const job::v1::ControlRequest& request) {
    job::v1::ControlResponse response;
    const absl::Status refused = rpc::Call(*channel_, request, &response);
    EXPECT_EQ(refused.code(), absl::StatusCode::kUnimplemented);
    return std::string(refused.message());
  };
  job::v1::ControlRequest request;
  request.set_job("digits");
  request.set_verb(job::v1::VERB_PIN);
  EXPECT_THAT(refusal(request), HasSubstr("PIN of a job"));
  request.set_verb(job::v1::VERB_PAUSE);
  request.set_keep_warm(true);
  EXPECT_THAT(refusal(request), HasSubstr("keep_warm of PAUSE"));
}

TEST_F(ServiceTest, RescoreAndReadmitArePassedOnToTheQueue) {
  const std::string job = Submit(Spec("digits"))->job();
  job::v1::ControlRequest request;
  job::v1::ControlResponse response;
  request.set_job("digits");
  request.set_verb(job::v1::VERB_RESCORE);
  request.set_generation(0x7c1f09aa);
  EXPECT_EQ(ReasonOf(rpc::Call(*channel_, request, &response)), "NOT_YET") << "no queue has it";

  StartFleet();
  WaitFor(job, job::v1::JOB_STATE_RUNNING);
  ASSERT_EQ(rpc::Call(*channel_, request, &response), absl::OkStatus());
  EXPECT_EQ(response.count(), 3u);
  EXPECT_EQ(response.status().name(), "digits");
  EXPECT_EQ(queue_.retask().mode(), queue::v1::RETASK_MODE_RESCORE);
  EXPECT_EQ(queue_.retask().generation(), 0x7c1f09aau);

  request.set_verb(job::v1::VERB_READMIT);
  request.add_groups(std::string(16, 'g'));
  ASSERT_EQ(rpc::Call(*channel_, request, &response), absl::OkStatus());
  EXPECT_EQ(queue_.retask().mode(), queue::v1::RETASK_MODE_READMIT);
  EXPECT_EQ(queue_.retask().groups(0), std::string(16, 'g'));
  request.set_groups(0, "short");
  EXPECT_EQ(rpc::Call(*channel_, request, &response).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(ServiceTest, ADeletedJobIsGoneAlsoForThoseWhoWatchIt) {
  StartFleet();
  const std::string job = Submit(Spec("digits"))->job();
  WaitFor(job, job::v1::JOB_STATE_RUNNING);
  job::v1::ControlRequest request;
  request.set_job(job);
  request.set_verb(job::v1::VERB_CANCEL);
  job::v1::ControlResponse response;
  ASSERT_TRUE(rpc::Call(*channel_, request, &response).ok());
  WaitFor(job, job::v1::JOB_STATE_CANCELLED);

  job::v1::WatchRequest watch;
  watch.set_job(job);
  watch.set_follow(true);
  rpc::ClientStream stream(*channel_, *job::v1::WatchRequest::descriptor());
  ASSERT_TRUE(stream.Write(watch));
  stream.WritesDone();
  job::v1::WatchResponse seen;
  ASSERT_TRUE(stream.Read(&seen));

  request.set_verb(job::v1::VERB_DELETE);
  ASSERT_EQ(rpc::Call(*channel_, request, &response), absl::OkStatus());
  EXPECT_EQ(response.status().job(), job) << "the status before the deletion";
  while (stream.Read(&seen)) {
  }
  EXPECT_EQ(ReasonOf(stream.Finish()), "JOB");
  EXPECT_EQ(ReasonOf(rpc::Call(*channel_, request, &response)), "JOB");
}

TEST_F(ServiceTest, ALostRolloutIsReleasedAtTheQueue) {
  StartFleet();
  const std::string job = Submit(Spec("digits"))->job();
  WaitFor(job, job::v1::JOB_STATE_RUNNING);
  daemons_.erase("rollout-0");

  std::vector<job::v1::WatchResponse> seen;
  job::v1::WatchRequest request;
  request.set_job(job);
  WatchUntil(request, &seen, [](const job::v1::WatchResponse& r) {
    return r.has_event() && r.event().code() == "daemon_lost";
  });
  daemons_["rollout-0"] = std::make_unique<FakeDaemon>(server_->address(), "rollout-0",
                                                       rpc::Role::kRollout, "127.0.0.1:2");
  WatchUntil(request, &seen, [](const job::v1::WatchResponse& r) {
    return r.has_status() && r.status().conditions_size() == 0 && r.status().daemons_size() == 4;
  });

  EXPECT_THAT(queue_.AwaitReleased(), ElementsAre("rollout-0"));
}

TEST_F(ServiceTest, InspectAsksTheQueueAndWhyNamesWhoIsMissing) {
  const std::string job = Submit(Spec("digits"))->job();
  job::v1::WhyRequest why;
  why.set_job(job);
  job::v1::WhyResponse because;
  ASSERT_TRUE(rpc::Call(*channel_, why, &because).ok());
  ASSERT_EQ(because.chain_size(), 1);
  EXPECT_THAT(because.chain(0).cause(), HasSubstr("trainer"));

  StartFleet();
  WaitFor(job, job::v1::JOB_STATE_RUNNING);
  job::v1::InspectRequest inspect;
  inspect.set_job("digits");
  inspect.mutable_queue_stats();
  job::v1::InspectResponse answer;
  ASSERT_TRUE(rpc::Call(*channel_, inspect, &answer).ok());

  EXPECT_EQ(answer.queue_stats().version(), 41);
}

TEST_F(ServiceTest, LogsMergesTheLinesOfAllDaemonsAndNamesThoseThatAreDown) {
  StartFleet();
  const std::string job = Submit(Spec("digits"))->job();
  WaitFor(job, job::v1::JOB_STATE_RUNNING);
  queue_logs_.Add(job, 10, "first");
  trainer_logs_.Add(job, 20, "second");
  trainer_logs_.Add(job, 40, "fourth");
  trainer_logs_.Add(job, 35, "fifth, after the clock was set back");
  queue_logs_.Add(job, 30, "third");
  queue_logs_.Add("0123456789abcdef0123456789abcdef", 15, "of an earlier job of the same name");

  job::v1::LogsRequest request;
  request.set_job("digits");
  std::vector<std::string> lines;
  const absl::StatusOr<job::v1::LogsResponse> all = ReadLogs(request, &lines);
  ASSERT_EQ(all.status(), absl::OkStatus());
  EXPECT_THAT(lines,
              ElementsAre("queue-0 first", "trainer-0 second", "queue-0 third", "trainer-0 fourth",
                          "trainer-0 fifth, after the clock was set back",
                          AllOf(HasSubstr("controller-0 "), HasSubstr("\"event\":\"audit\""),
                                HasSubstr("\"method\":\"Submit\""))));
  // Nobody listens at their addresses.
  ASSERT_EQ(all->silent_size(), 2);
  EXPECT_EQ(all->silent(0).daemon(), "reward-0");
  EXPECT_EQ(all->silent(1).daemon(), "rollout-0");

  lines.clear();
  request.set_tail(4);
  ASSERT_EQ(ReadLogs(request, &lines).status(), absl::OkStatus());
  EXPECT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines[0], "queue-0 third");
  lines.clear();
  request.set_daemon("trainer-0");
  request.set_tail(2);
  ASSERT_EQ(ReadLogs(request, &lines).status(), absl::OkStatus());
  EXPECT_THAT(lines, ElementsAre("trainer-0 fourth", HasSubstr("trainer-0 fifth")));

  request.set_daemon("nobody");
  EXPECT_EQ(ReasonOf(ReadLogs(request, &lines).status()), "DAEMON");
  request.set_job("unknown");
  EXPECT_EQ(ReasonOf(ReadLogs(request, &lines).status()), "JOB");
}

TEST_F(ServiceTest, FollowedLogsGoOnAcrossARestartOfADaemonUntilTheJobHasEnded) {
  StartFleet();
  const std::string job = Submit(Spec("digits"))->job();
  WaitFor(job, job::v1::JOB_STATE_RUNNING);
  trainer_logs_.Add(job, 10, "a");
  job::v1::LogsRequest request;
  request.set_job(job);
  request.set_daemon("trainer-0");
  request.set_follow(true);
  rpc::ClientStream stream(*channel_, *job::v1::LogsRequest::descriptor(), nullptr,
                           absl::Seconds(30));
  ASSERT_TRUE(stream.Write(request));
  stream.WritesDone();

  job::v1::LogsResponse response;
  ASSERT_TRUE(stream.Read(&response));
  ASSERT_EQ(response.lines_size(), 1);
  const uint64_t run = response.lines(0).run();
  trainer_logs_.Add(job, 11, "b");
  ASSERT_TRUE(stream.Read(&response));
  ASSERT_EQ(response.lines_size(), 1);
  EXPECT_EQ(response.lines(0).line().json(), "b");

  trainer_logs_.Restart(/*lost=*/5);
  trainer_logs_.Add(job, 12, "c");
  ASSERT_TRUE(stream.Read(&response));
  while (response.lines_size() == 0) ASSERT_TRUE(stream.Read(&response));
  EXPECT_EQ(response.lines(0).line().json(), "c");
  EXPECT_NE(response.lines(0).run(), run);
  ASSERT_EQ(response.lost_size(), 1);
  EXPECT_EQ(response.lost(0).count(), 5u);

  daemons_["trainer-0"]->Done(job);
  while (stream.Read(&response)) EXPECT_EQ(response.lines_size(), 0);
  EXPECT_EQ(stream.Finish(), absl::OkStatus());

  // Who reads on from what it has gets the rest alone.
  std::vector<std::string> lines;
  trainer_logs_.Add(job, 13, "d");
  (*request.mutable_after())["trainer-0"].set_run(run + 1);
  (*request.mutable_after())["trainer-0"].set_after(1);
  ASSERT_EQ(ReadLogs(request, &lines).status(), absl::OkStatus());
  EXPECT_THAT(lines, ElementsAre("trainer-0 d"));
}

TEST_F(ServiceTest, MoreReadersOfLogsThanTheControllerServesAreRefused) {
  const std::string job = Submit(Spec("digits"))->job();
  job::v1::LogsRequest request;
  request.set_job(job);
  request.set_follow(true);
  std::vector<std::unique_ptr<rpc::ClientStream>> readers;
  job::v1::LogsResponse response;
  absl::Status refused;
  while (refused.ok() && readers.size() < 100) {
    readers.push_back(std::make_unique<rpc::ClientStream>(
        *channel_, *job::v1::LogsRequest::descriptor(), nullptr, absl::Seconds(30)));
    ASSERT_TRUE(readers.back()->Write(request));
    readers.back()->WritesDone();
    // Each first gets the line of the Submit.
    if (!readers.back()->Read(&response)) refused = readers.back()->Finish();
  }
  EXPECT_EQ(ReasonOf(refused), "LOG_READERS") << refused;
  EXPECT_EQ(readers.size(), 33u);
}

TEST_F(ServiceTest, ACancelledJobEndsCleanlyAndTheFleetIsListed) {
  StartFleet();
  const std::string job = Submit(Spec("digits"))->job();
  WaitFor(job, job::v1::JOB_STATE_RUNNING);
  job::v1::ControlRequest cancel;
  cancel.set_job(job);
  cancel.set_verb(job::v1::VERB_CANCEL);
  job::v1::ControlResponse response;
  ASSERT_TRUE(rpc::Call(*channel_, cancel, &response).ok());
  WaitFor(job, job::v1::JOB_STATE_CANCELLED);

  EXPECT_EQ(queue_.phases().front(), queue::v1::PHASE_OPEN);
  EXPECT_THAT(queue_.phases(), testing::Contains(queue::v1::PHASE_CLOSED));

  admin::v1::DaemonsResponse daemons;
  ASSERT_TRUE(rpc::Call(*channel_, admin::v1::DaemonsRequest(), &daemons).ok());
  EXPECT_EQ(daemons.daemons_size(), 4);
}

// A controller that ends closes the streams of all daemons. One that drains still works for its job
// then, and may have its last checkpoint to write.
TEST_F(ServiceTest, ADaemonThatDrainsHasNotLeftWhenTheControllerEnds) {
  StartFleet();
  const std::string job = Submit(Spec("digits"))->job();
  WaitFor(job, job::v1::JOB_STATE_RUNNING);
  daemons_["trainer-0"]->link().SetDraining();
  const auto known = [&] {
    admin::v1::DaemonsResponse response;
    EXPECT_TRUE(rpc::Call(*channel_, admin::v1::DaemonsRequest(), &response).ok());
    return std::any_of(
        response.daemons().begin(), response.daemons().end(),
        [](const admin::v1::Daemon& d) { return d.daemon() == "trainer-0" && d.draining(); });
  };
  // Each question takes a round trip, so that no pause is needed.
  for (const absl::Time end = absl::Now() + absl::Seconds(30); !known() && absl::Now() < end;) {
  }
  ASSERT_TRUE(known());

  const std::string address = server_->address();
  StopController();
  StartController(address);
  EXPECT_EQ(Get(job).state(), job::v1::JOB_STATE_RUNNING);
  Report(job, 0);
  std::vector<job::v1::WatchResponse> seen;
  job::v1::WatchRequest request;
  request.set_job(job);
  WatchUntil(request, &seen, [](const job::v1::WatchResponse& r) { return r.has_step(); });
  for (const job::v1::WatchResponse& response : seen)
    EXPECT_NE(response.event().code(), "daemon_left") << response.event().message();
  const queue::v1::SetJobRequest told = queue_.last();
  EXPECT_EQ(told.workers_size(), 3) << "the trainer is still listed";
}

TEST_F(ServiceTest, UnknownJobsAreNotFoundEverywhere) {
  job::v1::GetRequest get;
  get.set_job("nobody");
  job::v1::JobStatus status;
  EXPECT_EQ(ReasonOf(rpc::Call(*channel_, get, &status)), "JOB");

  job::v1::WatchRequest watch;
  watch.set_job("nobody");
  rpc::ClientStream stream(*channel_, *job::v1::WatchRequest::descriptor());
  ASSERT_TRUE(stream.Write(watch));
  stream.WritesDone();
  job::v1::WatchResponse response;

  EXPECT_FALSE(stream.Read(&response));
  EXPECT_EQ(ReasonOf(stream.Finish()), "JOB");
}

TEST_F(ServiceTest, ASecondControllerOnTheSameDirectoryIsRefused) {
  const auto second = MakeController({.id = "controller-1", .data_dir = dir_}, host_);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(SpecTest, ASupervisedJobHasRowsOnlyAndNoRolloutsAndRewards) {
  job::v1::JobSpec spec = Spec("sft");
  spec.set_kind("sft");
  spec.clear_rollout();
  spec.clear_reward();
  ASSERT_TRUE(CheckSpec(spec, Policy()).ok()) << CheckSpec(spec, Policy()).status();

  EXPECT_EQ(NeedsOf(spec).rollouts.max, 0);
  EXPECT_EQ(NeedsOf(spec).rewards.max, 0);

  const queue::v1::QueueSpec queue = QueueSpecOf(spec);
  EXPECT_TRUE(queue.rows_only());
  EXPECT_EQ(queue.group_size(), 1u);
  EXPECT_EQ(queue.tasks_size(), 0);
}

TEST(SpecTest, TheQueueIsToldOfWavesAndOfRowsThatRest) {
  job::v1::JobSpec spec = Spec("digits");
  EXPECT_EQ(QueueSpecOf(spec).first_wave(), 0u);
  EXPECT_EQ(QueueSpecOf(spec).rest_after(), 0u);

  spec.mutable_rollout()->mutable_group()->set_first_wave(4);
  spec.mutable_data()->mutable_order()->set_rest_after(3);
  spec.mutable_data()->mutable_order()->set_rest_steps(7);
  const queue::v1::QueueSpec queue = QueueSpecOf(spec);
  EXPECT_EQ(queue.first_wave(), 4u);
  EXPECT_EQ(queue.rest_after(), 3u);
  EXPECT_EQ(queue.rest_steps(), 7u);
}

TEST(SpecTest, AJobThatRewardsStepsAsksForTheEndsOfTokensAndTakesTheirRewards) {
  job::v1::JobSpec spec = Spec("digits");
  const queue::v1::QueueSpec plain = QueueSpecOf(spec);
  job::v1::RewardEntry& entry = *spec.mutable_reward()->mutable_rewards(0);
  entry.set_verifier("judge");
  auto& args = *entry.mutable_args()->mutable_fields();
  args.clear();
  args["judge"].set_string_value("strict");
  args["template"].set_string_value("prm");
  const queue::v1::QueueSpec steps = QueueSpecOf(spec);

  ASSERT_EQ(steps.tasks_size(), 1);
  EXPECT_THAT(plain.tasks(0).needs(), testing::ElementsAre("messages"));
  EXPECT_THAT(steps.tasks(0).needs(), testing::ElementsAre("messages", "answer_ends"));
  EXPECT_THAT(plain.tasks(0).produces(), testing::Not(testing::Contains("rew_tok")));
  EXPECT_THAT(steps.tasks(0).produces(), testing::Contains("rew_tok"));
  EXPECT_EQ(steps.token_bytes(), plain.token_bytes() + 8);
  // Three votes, each asked for twice, with a wait before each call.
  EXPECT_EQ(steps.tasks(0).deadline().seconds(), 12 * plain.tasks(0).deadline().seconds());
}

TEST(SpecTest, AQuotaThatTheJobCannotMeetIsToldByNumber) {
  job::v1::JobSpec spec = Spec("digits");
  spec.mutable_resources()->mutable_rollout()->set_min(4);
  const Policy::Quota quota{.submitter = "*", .rollouts = 3, .pools = {"default", "small"}};
  const absl::Status above = CheckQuota(quota, "alice", spec);
  EXPECT_EQ(DetailOf(above).catalogue, "SLUICE-CTL-0024");
  EXPECT_EQ(above.message(),
            "resources.rollout.min is 4, but the operator's quota of submitter alice is 3");

  spec.mutable_resources()->mutable_rollout()->set_min(3);
  EXPECT_EQ(CheckQuota(quota, "alice", spec), absl::OkStatus());
  EXPECT_EQ(
      CheckQuota(quota, "alice", spec, 1).message(),
      "resources.rollout.min is 3, but the operator's quota of submitter alice is 3, and other "
      "jobs have 1");
  spec.mutable_resources()->set_pool("big");
  const absl::Status pool = CheckQuota(quota, "alice", spec);
  EXPECT_EQ(DetailOf(pool).catalogue, "SLUICE-CTL-0025");
  EXPECT_THAT(pool.message(), HasSubstr("resources.pool is big"));
}

TEST(SpecTest, ASubmittersFoldersLimitWhatItsJobsReadAndWrite) {
  job::v1::JobSpec spec = Spec("digits");
  spec.mutable_data()->mutable_train(0)->set_path("/data/alice/train.jsonl");
  spec.mutable_checkpoint()->set_dir("/ckpt/alice/digits");
  spec.mutable_model()->clear_init();
  spec.mutable_model()->set_path("/models/tiny");
  const auto check = [&](const std::vector<std::string>& read,
                         const std::vector<std::string>& write) {
    return CheckQuota({.submitter = "*", .read_roots = read, .write_roots = write}, "alice", spec);
  };
  EXPECT_EQ(check({}, {}), absl::OkStatus());
  EXPECT_EQ(check({"/data", "/models"}, {"/ckpt/alice"}), absl::OkStatus());
  // What may be written may also be read, and an empty list limits nothing.
  EXPECT_EQ(check({"/models"}, {"/data/alice", "/ckpt"}), absl::OkStatus());
  EXPECT_EQ(check({}, {"/ckpt"}), absl::OkStatus());

  const absl::Status written = check({"/data", "/models", "/ckpt"}, {"/ckpt/bob"});
  EXPECT_EQ(DetailOf(written).catalogue, "SLUICE-CTL-0033");
  EXPECT_EQ(written.message(),
            "checkpoint.dir: /ckpt/alice/digits is not below a folder that jobs may write, which "
            "are /ckpt/bob for submitter alice");
  // A name that only begins like the folder's is another folder.
  EXPECT_THAT(check({"/data/al", "/models"}, {}).message(),
              HasSubstr("data.train.0.path: /data/alice/train.jsonl is not below"));
  spec.mutable_data()->mutable_train(0)->set_path("/data/../etc/passwd");
  EXPECT_THAT(check({"/data", "/models"}, {}).message(), HasSubstr("/data/../etc/passwd"));
}

TEST(SpecTest, ASubmittersJobsAskOnlyTheJudgesOfThePolicy) {
  job::v1::JobSpec spec = Spec("digits");
  const Policy::Quota quota{.submitter = "*", .judges = {"strict", "kind"}};
  EXPECT_EQ(CheckQuota(quota, "alice", spec), absl::OkStatus());
  job::v1::RewardEntry& entry = *spec.mutable_reward()->add_rewards();
  entry.set_name("quality");
  entry.set_verifier("judge");
  (*entry.mutable_args()->mutable_fields())["judge"].set_string_value("kind");
  EXPECT_EQ(CheckQuota(quota, "alice", spec), absl::OkStatus());
  (*entry.mutable_args()->mutable_fields())["judge"].set_string_value("dear");
  const absl::Status other = CheckQuota(quota, "alice", spec);
  EXPECT_EQ(DetailOf(other).catalogue, "SLUICE-CTL-0034");
  EXPECT_EQ(
      other.message(),
      "reward.rewards asks the judge \"dear\", but the operator's policy lets submitter alice "
      "ask strict, kind");
}

TEST(SpecTest, ASubmittersJobsAskOnlyThePluginServersOfThePolicy) {
  job::v1::JobSpec spec = Spec("digits");
  const Policy::Quota quota{.submitter = "*", .plugin_servers = {"style"}};
  job::v1::RewardEntry& entry = *spec.mutable_reward()->add_rewards();
  entry.set_name("quality");
  entry.set_verifier("plugin");
  (*entry.mutable_args()->mutable_fields())["verl"].set_string_value("/data/r.py:compute_score");
  EXPECT_EQ(CheckQuota(quota, "alice", spec), absl::OkStatus()) << "it is a program";
  entry.clear_args();
  (*entry.mutable_args()->mutable_fields())["grpc"].set_string_value("style");
  EXPECT_EQ(CheckQuota(quota, "alice", spec), absl::OkStatus());
  (*entry.mutable_args()->mutable_fields())["grpc"].set_string_value("dear");
  const absl::Status other = CheckQuota(quota, "alice", spec);
  EXPECT_EQ(DetailOf(other).catalogue, "SLUICE-CTL-0034");
  EXPECT_EQ(other.message(),
            "reward.rewards asks the plug-in server \"dear\", but the operator's policy lets "
            "submitter alice ask style");
}

TEST(SpecTest, NumbersOfDaemonsHaveALimit) {
  job::v1::JobSpec spec = Spec("digits");
  for (job::v1::ReplicaRange* range :
       {spec.mutable_resources()->mutable_rollout(), spec.mutable_resources()->mutable_reward()}) {
    range->set_min(4294967295);
    range->set_max(4294967295);
  }
  const std::string message(CheckSpec(spec, Policy()).status().message());
  for (const char* key : {"rollout.min", "rollout.max", "reward.min", "reward.max"}) {
    EXPECT_THAT(message, HasSubstr(absl::StrCat("resources.", key,
                                                " is 4294967295, but the maximum is 100000")));
  }
}

TEST(SpecTest, AMemberIsBoundedByTheContext) {
  job::v1::JobSpec spec = Spec("digits");
  spec.mutable_data()->mutable_order()->set_max_prompt(2048);
  EXPECT_EQ(QueueSpecOf(spec).member_tokens(), 64u);
}

}  // namespace
}  // namespace sluice::controller
