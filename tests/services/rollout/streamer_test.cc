#include "services/rollout/streamer.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/cores/core_share.h"
#include "common/queue_client/lease_keeper.h"
#include "common/queue_client/put_stream.h"
#include "gtest/gtest.h"
#include "tests/services/rollout/session_fixture.h"

namespace sluice::rollout {
namespace {

class IgnoringSink : public StepLoop::Sink {
 public:
  void OnStep(StepEvents) override {}
  void OnActivation(const StagedWeights&, const Activation&) override {}
  void OnDamage(const WeightDamage&) override {}
  void OnRoom() override {}
  void OnBroken(absl::Status why) override { ADD_FAILURE() << why; }
};

// The test gives members of a real queue to a streamer, and plays the engine.
class StreamerTest : public SessionTest {
 protected:
  // Admits a group as rollout-0, and makes a member of each of its answers, by number.
  void AdmitGroup(QueueClient* client, const PromptRenderer& renderer) {
    queue::v1::RenewRequest renew;
    common::v1::Loaded& loaded = *renew.add_loaded();
    *loaded.mutable_version() = rpc::ToProto(kVersion);
    loaded.set_verified(true);
    ASSERT_TRUE(client->Renew(std::move(renew)).ok());
    queue::v1::AdmitRequest admit;
    admit.set_room(4);
    const auto admitted = client->Admit(std::move(admit));
    ASSERT_TRUE(admitted.ok()) << admitted.status();
    ASSERT_EQ(admitted->grants_size(), 1);

    const queue::v1::Grant& grant = admitted->grants(0);
    const auto prompt = std::make_shared<const RenderedPrompt>(
        *renderer.Render(grant.row().source(), grant.row().json()));
    for (const queue::v1::Member& granted : grant.members()) {
      Member& member =
          granted_.emplace_back(Member{.request = granted_.size() + 1,
                                       .lease = granted.lease().id(),
                                       .prompt = prompt,
                                       .trajectory = Trajectory(prompt->tokens.size())});
      member.ref.set_group(grant.group());
      member.ref.set_member(granted.member());
      member.ref.set_attempt(granted.attempt());
    }
  }

  // Adds to `step` what an engine says that samples `count` tokens for the member.
  static void Sample(const Member& member, uint32_t count, FinishReason finish, StepEvents* step) {
    for (uint32_t i = 0; i < count; ++i) {
      step->tokens.push_back({.request = member.request,
                              .position = static_cast<uint32_t>(member.trajectory.position()) + i,
                              .token = member.prompt->tokens[0],
                              .logprob = -1,
                              .version = kVersion,
                              .finish = i + 1 == count ? finish : FinishReason::kNone});
    }
  }

  static constexpr PolicyVersion kVersion{1, 0};
  std::vector<Member> granted_;
};

TEST_F(StreamerTest, EachAnswerThatEndsIsCountedOnceWhateverBecomesOfIt) {
  ASSERT_NO_FATAL_FAILURE(StartJob(/*max_response=*/7, /*endless=*/false));
  Publish(0, kInitSeed);
  QueueClient client(Channel(), {.job = kJob, .worker = "rollout-0", .incarnation = 1});
  const auto renderer =
      *PromptRenderer::Load(model_, "model", {{"digits", "{digits}=", {{"prompt", "digits"}}}});
  ASSERT_NO_FATAL_FAILURE(AdmitGroup(&client, *renderer));
  ASSERT_EQ(granted_.size(), 4u);

  LeaseKeeper leases(&client, {});
  PutStream puts(&client);
  const auto engine = *NativeEngine::Create(model_.config, Weights(kInitSeed), kVersion,
                                            model_.stop_ids, {.slots = 1});
  CoreShare cores(1);
  IgnoringSink sink;
  StepLoop loop(engine.get(), KvPolicy::kKeep, &cores, &sink);
  const Metrics metrics(&registry_, "session");
  Streamer streamer({.job_name = "session"}, &client, &leases, &puts, renderer.get(), metrics,
                    [](absl::Status why) { ADD_FAILURE() << why; });
  streamer.Start(&loop);

  // The first answer is sealed. The second ends too, but its lease is lost before its seal. The
  // third has more tokens than the queue has reserved room for.
  StepEvents step;
  granted_[0].put_prompt = true;
  granted_[1].lease = std::string(16, 'x');
  Sample(granted_[0], 3, FinishReason::kStop, &step);
  Sample(granted_[1], 3, FinishReason::kStop, &step);
  Sample(granted_[2], 1200, FinishReason::kNone, &step);
  streamer.AddMembers({granted_[0], granted_[1], granted_[2]});
  streamer.AddStep(std::move(step));
  ASSERT_TRUE(streamer.AwaitEmpty(absl::Minutes(1)));

  EXPECT_EQ(metrics.finished_stop.value(), 2);
  EXPECT_EQ(metrics.finished_length.value(), 1);
  EXPECT_EQ(metrics.dropped.value() + metrics.abandoned.value(), 0);

  // One fails in the engine, and the lease of another is lost while it is sampled.
  Member lost = granted_[3];
  lost.request = 100;
  lost.lease = std::string(16, 'y');
  StepEvents failed;
  failed.failures.push_back({granted_[3].request, absl::DataLossError("a fault")});
  streamer.AddMembers({granted_[3], lost});
  streamer.AddStep(std::move(failed));
  streamer.AddLostLeases({lost.lease});
  ASSERT_TRUE(streamer.AwaitEmpty(absl::Minutes(1)));

  EXPECT_EQ(metrics.dropped.value(), 1);
  EXPECT_EQ(metrics.abandoned.value(), 1);
  EXPECT_EQ(metrics.finished_stop.value() + metrics.finished_length.value(), 3);
}

TEST_F(StreamerTest, AnEngineThatStandsGivesItsAnswersBackToOtherWorkers) {
  ASSERT_NO_FATAL_FAILURE(StartJob(/*max_response=*/7, /*endless=*/false));
  Publish(0, kInitSeed);
  QueueClient client(Channel(), {.job = kJob, .worker = "rollout-0", .incarnation = 1});
  const auto renderer =
      *PromptRenderer::Load(model_, "model", {{"digits", "{digits}=", {{"prompt", "digits"}}}});
  ASSERT_NO_FATAL_FAILURE(AdmitGroup(&client, *renderer));

  LeaseKeeper leases(&client, {});
  PutStream puts(&client);
  const auto engine = *NativeEngine::Create(model_.config, Weights(kInitSeed), kVersion,
                                            model_.stop_ids, {.slots = 1});
  CoreShare cores(1);
  IgnoringSink sink;
  StepLoop loop(engine.get(), KvPolicy::kKeep, &cores, &sink);
  const Metrics metrics(&registry_, "session");
  Streamer streamer({.job_name = "session", .stand = absl::ZeroDuration()}, &client, &leases, &puts,
                    renderer.get(), metrics, [](absl::Status why) { ADD_FAILURE() << why; });
  streamer.Start(&loop);
  StepEvents step;
  granted_[0].put_prompt = true;
  Sample(granted_[0], 3, FinishReason::kNone, &step);
  streamer.AddMembers(granted_);
  streamer.AddStep(std::move(step));
  streamer.SetHasOtherWorkers(true);
  streamer.SetStanding(true);
  ASSERT_TRUE(streamer.AwaitEmpty(absl::Minutes(1)));
  EXPECT_EQ(metrics.migrated.value(), 4);
}

TEST_F(StreamerTest, ATurnLastsAsLongAsTheStepsThatSampledItAndSaysWhereItsTokensEnd) {
  ASSERT_NO_FATAL_FAILURE(StartJob(/*max_response=*/7, /*endless=*/false));
  Publish(0, kInitSeed);
  QueueClient client(Channel(), {.job = kJob, .worker = "rollout-0", .incarnation = 1});
  const auto renderer =
      *PromptRenderer::Load(model_, "model", {{"digits", "{digits}=", {{"prompt", "digits"}}}});
  ASSERT_NO_FATAL_FAILURE(AdmitGroup(&client, *renderer));
  ASSERT_NO_FATAL_FAILURE(AdmitGroup(&client, *renderer));
  ASSERT_EQ(granted_.size(), 8u);

  LeaseKeeper leases(&client, {});
  PutStream puts(&client);
  const auto engine = *NativeEngine::Create(model_.config, Weights(kInitSeed), kVersion,
                                            model_.stop_ids, {.slots = 1});
  CoreShare cores(1);
  IgnoringSink sink;
  StepLoop loop(engine.get(), KvPolicy::kKeep, &cores, &sink);
  Streamer streamer({.job_name = "session", .piece = 2, .answer_ends = true}, &client, &leases,
                    &puts, renderer.get(), Metrics(&registry_, "session"),
                    [](absl::Status why) { ADD_FAILURE() << why; });
  streamer.Start(&loop);

  // Answer i has i + 1 tokens, one in each step; step i takes i + 1 seconds. A step that samples
  // nothing for an answer is no part of its time.
  granted_[0].put_prompt = granted_[4].put_prompt = true;
  streamer.AddMembers({granted_.begin(), granted_.end()});
  streamer.AddStep({.seconds = 100});
  for (uint32_t i = 0; i < 7; ++i) {
    StepEvents step{.seconds = i + 1.0};
    for (Member& member : granted_) {
      const uint32_t last = member.request == 8 ? 6 : static_cast<uint32_t>(member.request) - 1;
      if (i > last) continue;
      step.tokens.push_back({.request = member.request,
                             .position = static_cast<uint32_t>(member.trajectory.position()) + i,
                             .token = member.prompt->tokens[1],
                             .logprob = -1,
                             .version = kVersion,
                             .finish = i == last ? FinishReason::kStop : FinishReason::kNone});
    }
    streamer.AddStep(std::move(step));
  }
  ASSERT_TRUE(streamer.AwaitEmpty(absl::Minutes(1)));

  const Answers answers = TakeBatch(0);
  ASSERT_EQ(answers.size(), 8u);
  uint32_t request = 0;
  for (const auto& [place, answer] : answers) {
    const uint32_t tokens = std::min(++request, 7u);
    ASSERT_EQ(answer.durations.size(), 1u);
    EXPECT_EQ(answer.durations[0], absl::Seconds(tokens * (tokens + 1) / 2));
    std::vector<uint32_t> rows(answer.ends.size() / sizeof(uint32_t));
    std::memcpy(rows.data(), answer.ends.data(), answer.ends.size());
    std::vector<uint32_t> wanted;
    const auto prompt = static_cast<uint32_t>(granted_[request - 1].prompt->tokens.size());
    for (uint32_t t = 0; t < tokens; ++t) wanted.insert(wanted.end(), {prompt + t, t + 1});
    EXPECT_EQ(rows, wanted);
  }
}

TEST_F(StreamerTest, AQueueThatIsGoneDoesNotKeepAFlushForEver) {
  ASSERT_NO_FATAL_FAILURE(StartJob(/*max_response=*/7, /*endless=*/false));
  Publish(0, kInitSeed);
  QueueClient client(Channel(), {.job = kJob, .worker = "rollout-0", .incarnation = 1});
  const auto renderer =
      *PromptRenderer::Load(model_, "model", {{"digits", "{digits}=", {{"prompt", "digits"}}}});
  ASSERT_NO_FATAL_FAILURE(AdmitGroup(&client, *renderer));
  ASSERT_FALSE(granted_.empty());

  // Nothing listens there, so that the seal of an answer is repeated until it is cancelled.
  rpc::Cancel cancel;
  QueueClient gone(*rpc::Connect("127.0.0.1:1", {rpc::Role::kQueue}),
                   {.job = kJob, .worker = "rollout-0", .incarnation = 1, .cancel = &cancel});
  LeaseKeeper leases(&client, {});
  PutStream puts(&client);
  const auto engine = *NativeEngine::Create(model_.config, Weights(kInitSeed), kVersion,
                                            model_.stop_ids, {.slots = 1});
  CoreShare cores(1);
  IgnoringSink sink;
  StepLoop loop(engine.get(), KvPolicy::kKeep, &cores, &sink);
  Streamer streamer({.job_name = "session"}, &gone, &leases, &puts, renderer.get(),
                    Metrics(&registry_, "session"), [](absl::Status) {});
  streamer.Start(&loop);
  EXPECT_TRUE(streamer.FlushPieces(absl::Minutes(1)));  // There is nothing to seal yet.

  StepEvents step;
  granted_[0].put_prompt = true;
  Sample(granted_[0], 3, FinishReason::kStop, &step);
  streamer.AddMembers({granted_[0]});
  streamer.AddStep(std::move(step));
  bool hangs = false;  // The answer is sealed once the queue has taken its tokens.
  for (const absl::Time end = absl::Now() + absl::Minutes(1); !hangs && absl::Now() < end;)
    hangs = !streamer.FlushPieces(absl::Milliseconds(300));
  EXPECT_TRUE(hangs);
  cancel.Trigger();
  streamer.Stop();
  puts.Stop();
}

}  // namespace
}  // namespace sluice::rollout
