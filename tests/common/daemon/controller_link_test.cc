#include "common/daemon/controller_link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/rpc/convert.h"
#include "common/rpc/leader_search.h"
#include "common/rpc/server.h"
#include "common/rpc/server_stream.h"
#include "sluice/registry/v1/registry.grpc.pb.h"
#include "tests/common/handed.h"

namespace sluice::daemon {
namespace {

using registry::v1::HeartbeatRequest;
using registry::v1::HeartbeatResponse;
using registry::v1::RegisterRequest;
using registry::v1::RegisterResponse;

// The registry of a controller. Each registration gets `refusal` and `incarnation`, and each
// heartbeat gets what `answer` returns. The test gets what arrived, and each stream.
class FakeRegistry : public registry::v1::RegistryService::CallbackService {
 public:
  struct Stream : rpc::BidiStream<HeartbeatRequest, HeartbeatResponse> {
    explicit Stream(FakeRegistry* owner) : owner(owner) {}
    void OnMessage(HeartbeatRequest& request) override {
      if (owner->answer) {
        HeartbeatResponse response = owner->answer(request);
        if (response.ByteSizeLong() > 0) Send(response);
      }
      owner->beats.Push(request);
    }
    FakeRegistry* const owner;
  };

  grpc::ServerUnaryReactor* Register(grpc::CallbackServerContext* context,
                                     const RegisterRequest* request,
                                     RegisterResponse* response) override {
    auto* reactor = context->DefaultReactor();
    response->set_incarnation(incarnation);
    *response->mutable_beat() = rpc::ToProto(beat);
    reactor->Finish(rpc::ToGrpcStatus(refusal));
    registered.Push(*request);
    return reactor;
  }

  grpc::ServerBidiReactor<HeartbeatRequest, HeartbeatResponse>* Heartbeat(
      grpc::CallbackServerContext*) override {
    auto stream = rpc::MakeStream<Stream>(this);
    streams.Push(stream);
    stream->StartReading();
    return stream.get();
  }

  int64_t incarnation = 5;
  // So long that a heartbeat is sent only because something has changed.
  absl::Duration beat = absl::Hours(1);
  absl::Status refusal;
  std::function<HeartbeatResponse(const HeartbeatRequest&)> answer;
  Handed<RegisterRequest> registered;
  Handed<HeartbeatRequest> beats;
  Handed<std::shared_ptr<Stream>> streams;
};

class ControllerLinkTest : public testing::Test {
 protected:
  // Starts a server for `registry`. The first server picks an address, and later ones listen on the
  // same one unless the test clears address_. Declare the server after its registry, so that it
  // ends before it.
  std::unique_ptr<rpc::Server> Serve(FakeRegistry* registry) {
    grpc::Service* const services[] = {registry};
    rpc::Server::Options options;
    if (!address_.empty()) options.address = address_;
    auto server = rpc::Server::Start(options, services);
    SLUICE_CHECK_MSG(server.ok(), server.status().ToString());
    address_ = (*server)->address();
    return *std::move(server);
  }
  std::unique_ptr<ControllerLink> Link() {
    return std::make_unique<ControllerLink>(
        ControllerLink::Options{
            .controller = address_,
            .id = "rollout-0",
            .role = rpc::Role::kRollout,
            .addresses = {{"grpc", "127.0.0.1:1"}},
            .backoff = {.first = absl::Milliseconds(1), .longest = absl::Milliseconds(5)},
            .silence = absl::Milliseconds(50)},
        ControllerLink::Handlers{
            .on_registered = [this](int64_t incarnation) { incarnations_.Push(incarnation); },
            .on_assigned =
                [this](const HeartbeatResponse& assignments) { assignments_.Push(assignments); },
            .on_drain = [this] { drains_.Push(true); },
            .on_refused = [this](absl::Status why) { refusals_.Push(why); }});
  }
  static job::v1::StepReport Step(int64_t k) {
    job::v1::StepReport step;
    step.set_job("job");
    step.set_k(k);
    return step;
  }
  static HeartbeatResponse Assignments(uint64_t generation) {
    HeartbeatResponse assignments;
    assignments.set_generation(generation);
    assignments.add_jobs()->set_job("job");
    assignments.mutable_jobs(0)->set_phase(registry::v1::ASSIGNMENT_PHASE_RUN);
    return assignments;
  }

  std::string address_;
  Handed<int64_t> incarnations_;
  Handed<HeartbeatResponse> assignments_;
  Handed<bool> drains_;
  Handed<absl::Status> refusals_;
};

TEST_F(ControllerLinkTest, ADaemonRegistersThenBeatsUnderItsIncarnation) {
  FakeRegistry registry;
  const auto server = Serve(&registry);
  const auto link = Link();
  link->Start();
  const RegisterRequest request = registry.registered.Pop();

  EXPECT_EQ(request.daemon(), "rollout-0");
  EXPECT_EQ(request.role(), rpc::v1::ROLE_ROLLOUT);
  EXPECT_EQ(request.boot().size(), 16u);
  EXPECT_EQ(request.addresses().at("grpc"), "127.0.0.1:1");
  EXPECT_EQ(registry.beats.Pop().incarnation(), 5);
  EXPECT_EQ(incarnations_.Pop(), 5);
  EXPECT_EQ(link->incarnation(), 5);
}

TEST_F(ControllerLinkTest, ProgressIsSentAtOnceAndAgainInEachLaterHeartbeat) {
  FakeRegistry registry;
  const auto server = Serve(&registry);
  const auto link = Link();
  link->Start();
  registry.beats.Pop();

  registry::v1::Progress progress;
  progress.set_job("job");
  progress.set_step(3);
  link->SetProgress(progress);

  EXPECT_EQ(registry.beats.PopUntil([](const auto& beat) { return beat.progress_size() > 0; })
                .progress(0)
                .step(),
            3);

  link->SetDraining();
  const HeartbeatRequest beat =
      registry.beats.PopUntil([](const auto& said) { return said.draining(); });
  EXPECT_EQ(beat.progress_size(), 1);

  link->RemoveProgress("job");
  registry.beats.PopUntil([](const auto& said) { return said.progress_size() == 0; });
}

TEST_F(ControllerLinkTest, BytesThatAreNotUtf8DoNotCostTheHeartbeatThatCarriesThem) {
  FakeRegistry registry;
  const auto server = Serve(&registry);
  const auto link = Link();
  link->Start();
  registry.beats.Pop();

  registry::v1::Progress progress;
  progress.set_job("job");
  progress.set_cause("model caf\xe9: no config.json");
  link->SetProgress(progress);

  common::v1::Event event;
  event.set_message("\xff\xfe");
  link->RaiseEvent(event);

  const HeartbeatRequest beat =
      registry.beats.PopUntil([](const auto& said) { return said.events_size() > 0; });
  ASSERT_EQ(beat.progress_size(), 1);

  EXPECT_EQ(beat.progress(0).cause(), "model caf\xef\xbf\xbd: no config.json");
  EXPECT_EQ(beat.events(0).message(), "\xef\xbf\xbd\xef\xbf\xbd");
}

TEST_F(ControllerLinkTest, ANewGenerationIsDeliveredOnceAndToldAsApplied) {
  FakeRegistry registry;
  registry.answer = [](const HeartbeatRequest&) { return Assignments(8); };
  const auto server = Serve(&registry);
  const auto link = Link();
  link->Start();

  EXPECT_EQ(assignments_.Pop().generation(), 8u);
  registry.beats.PopUntil([](const auto& beat) { return beat.generation() == 8; });
  const auto stream = registry.streams.Pop();
  stream->Send(Assignments(7));  // An older generation, which is ignored.
  stream->Send(Assignments(9));

  EXPECT_EQ(assignments_.Pop().generation(), 9u);
}

TEST_F(ControllerLinkTest, StepsAndEventsAreSentUntilTheyAreStored) {
  FakeRegistry registry;
  const auto server = Serve(&registry);
  const auto link = Link();
  link->Start();

  link->ReportStep(Step(1));
  link->ReportStep(Step(2));
  common::v1::Event event;
  event.set_code("paused");
  link->RaiseEvent(event);
  const HeartbeatRequest all = registry.beats.PopUntil(
      [](const auto& beat) { return beat.events_size() == 1 && beat.steps_size() == 2; });

  EXPECT_EQ(all.events(0).seq(), 1u);
  EXPECT_EQ(all.events(0).daemon(), "rollout-0");
  EXPECT_TRUE(all.events(0).has_at());
  EXPECT_FALSE(link->Flush(absl::ZeroDuration()));

  HeartbeatResponse stored;
  auto* step = stored.add_steps_stored();
  step->set_job("job");
  step->set_k(1);
  stored.set_events_stored(1);

  const auto stream = registry.streams.Pop();
  stream->Send(stored);
  const HeartbeatRequest rest =
      registry.beats.PopUntil([](const auto& beat) { return beat.steps_size() == 1; });

  EXPECT_EQ(rest.steps(0).k(), 2);
  EXPECT_EQ(rest.events_size(), 0);

  stored.mutable_steps_stored(0)->set_k(2);
  stream->Send(stored);
  EXPECT_TRUE(link->Flush(absl::Seconds(30)));
}

TEST_F(ControllerLinkTest, StepsAreSentUntilTheyAreStoredEvenIfAnotherGroupTrainsTheJobNow) {
  FakeRegistry registry;
  const auto server = Serve(&registry);
  const auto link = Link();
  link->Start();

  job::v1::StepReport older = Step(8), present = Step(3);
  older.mutable_version()->set_incarnation(1);
  present.mutable_version()->set_incarnation(2);
  for (const job::v1::StepReport& step : {older, present}) link->ReportStep(step);

  HeartbeatResponse assignments = Assignments(8);
  assignments.mutable_jobs(0)->set_incarnation(2);
  const auto stream = registry.streams.Pop();
  stream->Send(assignments);
  const HeartbeatRequest both =
      registry.beats.PopUntil([](const auto& said) { return said.generation() == 8; });
  EXPECT_EQ(both.steps_size(), 2);

  HeartbeatResponse stored;
  auto* step = stored.add_steps_stored();
  step->set_job("job");
  step->set_incarnation(1);
  step->set_k(100);
  stream->Send(stored);
  const HeartbeatRequest rest =
      registry.beats.PopUntil([](const auto& said) { return said.steps_size() == 1; });
  EXPECT_EQ(rest.steps(0).k(), 3);

  step->set_incarnation(2);
  step->set_k(3);
  stream->Send(stored);
  EXPECT_TRUE(link->Flush(absl::Seconds(30)));
}

TEST_F(ControllerLinkTest, AControllerThatComesBackFindsTheSameBootAndWhatWasNotStored) {
  auto first = std::make_unique<FakeRegistry>();
  first->answer = [](const HeartbeatRequest&) { return Assignments(8); };
  auto first_server = Serve(first.get());
  const auto link = Link();
  link->Start();
  link->ReportStep(Step(4));

  const std::string boot = first->registered.Pop().boot();
  assignments_.Pop();
  first->beats.PopUntil(
      [](const auto& beat) { return beat.steps_size() == 1 && beat.generation() == 8; });

  first_server.reset();
  first.reset();
  link->ReportStep(Step(5));  // No controller listens now.

  FakeRegistry second;
  second.incarnation = 6;
  // The new controller counts generations anew.
  second.answer = [](const HeartbeatRequest&) { return Assignments(3); };
  const auto second_server = Serve(&second);
  const RegisterRequest again = second.registered.Pop();

  EXPECT_EQ(again.boot(), boot);
  EXPECT_EQ(again.incarnation(), 5);
  ASSERT_EQ(again.running_size(), 1);
  EXPECT_EQ(again.running(0).job(), "job");
  EXPECT_EQ(again.running(0).generation(), 8u);

  const HeartbeatRequest beat =
      second.beats.PopUntil([](const auto& said) { return said.steps_size() == 2; });
  EXPECT_EQ(beat.incarnation(), 6);
  EXPECT_EQ(beat.steps(0).k(), 4);
  EXPECT_EQ(incarnations_.Pop(), 5);
  EXPECT_EQ(incarnations_.Pop(), 6);
  EXPECT_EQ(assignments_.Pop().generation(), 3u);

  link->Stop();
}

TEST_F(ControllerLinkTest, ADaemonMayStartBeforeItsController) {
  FakeRegistry registry;
  Serve(&registry).reset();  // Only finds an address and frees it again.
  const auto link = Link();
  link->Start();
  const auto server = Serve(&registry);
  EXPECT_EQ(registry.registered.Pop().daemon(), "rollout-0");
}

TEST_F(ControllerLinkTest, ARefusalForNowIsRetriedAndAProtocolRefusalIsNot) {
  FakeRegistry registry;
  registry.refusal =
      Error(absl::StatusCode::kFailedPrecondition, "NOT_YET", "the old boot still beats");
  auto server = Serve(&registry);
  const auto link = Link();
  link->Start();
  registry.registered.Pop();
  registry.registered.Pop();
  server.reset();

  FakeRegistry other;
  other.refusal = Error(absl::StatusCode::kFailedPrecondition, "PROTOCOL",
                        "this controller speaks protocols 2 to 3");
  const auto other_server = Serve(&other);
  const absl::Status why = refusals_.Pop();

  EXPECT_EQ(ReasonOf(why), "PROTOCOL");
  EXPECT_THAT(std::string(why.message()), testing::HasSubstr("protocols 2 to 3"));

  link->Stop();
}

TEST_F(ControllerLinkTest, ADrainIsToldOnce) {
  FakeRegistry registry;
  registry.answer = [](const HeartbeatRequest&) {
    HeartbeatResponse response;
    response.set_drain(true);
    return response;
  };

  const auto server = Serve(&registry);
  const auto link = Link();
  link->Start();
  EXPECT_TRUE(drains_.Pop());

  link->SetDraining();
  registry.beats.PopUntil([](const auto& beat) { return beat.draining(); });
}

TEST_F(ControllerLinkTest, OfSeveralControllersItFindsTheOneThatLeads) {
  FakeRegistry registry;
  const auto server = Serve(&registry);
  rpc::Server::Options options;
  options.refusal = [] {
    return ErrorWith(absl::StatusCode::kUnavailable, {.reason = rpc::kStandby}, "a standby");
  };
  const auto standby = rpc::Server::Start(options, {});
  ASSERT_TRUE(standby.ok()) << standby.status();
  address_ = absl::StrCat((*standby)->address(), ",", address_);

  const auto link = Link();
  link->Start();

  EXPECT_EQ(registry.registered.Pop().daemon(), "rollout-0");
  EXPECT_EQ(incarnations_.Pop(), 5);
}

// It is paused, or cannot reach its store, while another one leads.
TEST_F(ControllerLinkTest, AControllerThatAnswersNoHeartbeatIsLeftForAnother) {
  FakeRegistry silent, other;
  silent.beat = other.beat = absl::Milliseconds(1);
  other.answer = [](const HeartbeatRequest&) { return Assignments(7); };
  const auto first = Serve(&silent);
  const std::string first_address = std::exchange(address_, "");
  const auto second = Serve(&other);
  address_ = absl::StrCat(first_address, ",", address_);

  const auto link = Link();
  link->Start();

  EXPECT_EQ(silent.registered.Pop().incarnation(), 0);
  EXPECT_EQ(other.registered.Pop().incarnation(), 5) << "it keeps its incarnation";
  EXPECT_EQ(assignments_.Pop().generation(), 7u);
}

}  // namespace
}  // namespace sluice::daemon
