#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <map>
#include <optional>
#include <thread>
#include <utility>

#include "absl/synchronization/notification.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/splitmix.h"
#include "common/base/status.h"
#include "common/checkpoint/tensor_set.h"
#include "common/rpc/caller.h"
#include "common/rpc/server.h"
#include "common/rpc/stream.h"
#include "common/weights/fetcher.h"
#include "common/weights/publisher.h"
#include "common/weights/service.h"
#include "common/weights/subscriber.h"
#include "common/weights/weight_delta.h"
#include "sluice/weights/v1/weights.grpc.pb.h"

namespace sluice {
namespace {

constexpr char kJob[] = "00112233445566778899aabbccddeeff";

TensorSet RandomSet(uint64_t seed, int64_t n = 700'000) {
  TensorSet set = *TensorSet::Create({{"a", DType::kF32, {n}}, {"b", DType::kF32, {13}}});
  SplitMix64 random(seed);
  for (size_t i = 0; i < set.size(); ++i) {
    for (float& x : set.as<float>(i)) x = static_cast<float>(random.Uniform());
  }
  return set;
}

// The weights that an engine which holds `held` has after it has taken a staged version.
TensorSet Take(const StagedWeights& staged, const TensorSet& held) {
  if (staged.tensors != nullptr) return *staged.tensors;
  TensorSet weights = held;
  if (staged.delta == nullptr) return weights;
  EXPECT_EQ(staged.delta->base, FingerprintOf(held));
  const std::vector<DeltaTarget> targets = WholeTensors(&weights);
  std::vector<Fingerprint> sums(weights.size());
  for (const SignedChunk& part : staged.delta->chunks)
    part.chunk.Apply(part.sign, targets, absl::MakeSpan(sums));
  if (!staged.delta->tensor_states.empty()) {
    EXPECT_EQ(staged.delta->tensor_states, TensorFingerprints(weights));
  }
  return weights;
}

// Runs the trainer's side and an engine's side with a real server on loopback.
class PublicationTest : public testing::Test {
 protected:
  PublicationTest() : weights_(&callers_) {
    callers_.SetJob(kJob, {{.id = "rollout-0", .role = rpc::Role::kRollout, .incarnation = 3}});
    grpc::Service* const services[] = {weights_.service()};
    server_ = *rpc::Server::Start({}, services);
    publisher_ = std::make_shared<WeightPublisher>(
        WeightPublisher::Options{.job = kJob, .retain_versions = 2}, Clock::Real());
    weights_.SetPublisher(kJob, publisher_);
  }
  ~PublicationTest() override {
    subscriber_.reset();
    weights_.Shutdown();
    server_->Drain(absl::Seconds(5));
  }
  void Subscribe(const TensorSet& held, std::string source = "", Clock* clock = nullptr) {
    subscriber_ = std::make_unique<WeightSubscriber>(
        WeightSubscriber::Options{.job = kJob,
                                  .worker = "rollout-0",
                                  .incarnation = 3,
                                  .clock = clock,
                                  .on_download_failed =
                                      [this](const absl::Status&) {
                                        if (!failed_.HasBeenNotified()) failed_.Notify();
                                      }},
        held.specs(), FingerprintOf(held), [this](StagedWeights staged) {
          MutexLock lock(&mu_);
          staged_.push_back(std::move(staged));
          arrived_.NotifyAll();
        });
    subscriber_->SetSource(source.empty() ? server_->address() : source);
  }
  StagedWeights Next() {
    MutexLock lock(&mu_);
    while (staged_.empty()) {
      if (!arrived_.WaitFor(&mu_, absl::Seconds(30))) {
        ADD_FAILURE() << "no version was staged";
        return {};
      }
    }

    StagedWeights staged = std::move(staged_.front());
    staged_.erase(staged_.begin());
    return staged;
  }

  rpc::CallerTable callers_;
  WeightsServer weights_;
  std::unique_ptr<rpc::Server> server_;
  std::shared_ptr<WeightPublisher> publisher_;
  absl::Notification failed_;  // A download has failed.
  Mutex mu_;
  CondVar arrived_;
  std::vector<StagedWeights> staged_ ABSL_GUARDED_BY(mu_);
  // Declared before the subscriber, whose thread reads it.
  ManualClock clock_;
  std::unique_ptr<WeightSubscriber> subscriber_;
};

TEST_F(PublicationTest, AnEngineThatHoldsTheStateIsOnlyRelabelled) {
  const TensorSet initial = RandomSet(1);
  ASSERT_TRUE(publisher_->Publish(initial, {1, 0}, "").ok());
  Subscribe(initial);
  const StagedWeights staged = Next();
  EXPECT_EQ(staged.version, (PolicyVersion{1, 0}));
  EXPECT_EQ(staged.tensors, nullptr);
}

TEST_F(PublicationTest, ANewVersionArrivesWholeAndInManyMessages) {
  const TensorSet initial = RandomSet(1), next = RandomSet(2);
  Subscribe(initial);
  ASSERT_TRUE(publisher_->Publish(next, {1, 1}, "").ok());
  const StagedWeights staged = Next();
  ASSERT_NE(staged.tensors, nullptr);

  EXPECT_EQ(FingerprintOf(*staged.tensors), FingerprintOf(next));
  EXPECT_EQ(staged.state, FingerprintOf(next));
  EXPECT_GT(staged.bytes, 2'800'000u);  // 700,000 fp32 numbers.
}

TEST_F(PublicationTest, TheNewestVersionWinsOverThoseTheEngineWasTooSlowFor) {
  Subscribe(RandomSet(1));
  ASSERT_TRUE(publisher_->Publish(RandomSet(2), {1, 1}, "").ok());
  const StagedWeights first = Next();  // While this one has no answer, no other is offered.
  for (int64_t v = 2; v <= 6; ++v)
    ASSERT_TRUE(publisher_->Publish(RandomSet(1 + v), {1, v}, "").ok());
  subscriber_->OnActivated(first.version, first.state, absl::ZeroDuration());
  StagedWeights staged = Next();

  // A version that was being fetched when a newer one came may still arrive.
  while (staged.version.number < 6) {
    subscriber_->OnActivated(staged.version, staged.state, absl::ZeroDuration());
    staged = Next();
  }

  EXPECT_EQ(staged.version, (PolicyVersion{1, 6}));
}

TEST_F(PublicationTest, ARefusedVersionIsFetchedAndOfferedAgain) {
  Subscribe(RandomSet(1));
  ASSERT_TRUE(publisher_->Publish(RandomSet(2), {1, 1}, "").ok());
  const StagedWeights first = Next();
  subscriber_->OnRefused(first.version, "fingerprint differs", "a");
  const StagedWeights again = Next();

  EXPECT_EQ(again.version, first.version);
  EXPECT_EQ(FingerprintOf(*again.tensors), again.state);
}

// The clock stands still, so the back-off never ends on its own.
TEST_F(PublicationTest, ARefusedVersionWaitsForItsBackOffAndANewerOneDoesNot) {
  Subscribe(RandomSet(1), "", &clock_);
  ASSERT_TRUE(publisher_->Publish(RandomSet(2), {1, 1}, "").ok());
  const StagedWeights first = Next();
  subscriber_->OnRefused(first.version, "fingerprint differs", "a");

  ASSERT_TRUE(publisher_->Publish(RandomSet(3), {1, 2}, "").ok());
  EXPECT_EQ(Next().version, (PolicyVersion{1, 2}));

  subscriber_->OnRefused({1, 2}, "fingerprint differs", "a");
  clock_.Advance(absl::Minutes(1));
  EXPECT_EQ(Next().version, (PolicyVersion{1, 2}));
}

TEST_F(PublicationTest, ASkippedStepIsARelabelWithoutChunks) {
  const TensorSet weights = RandomSet(1);
  const PublishedVersion full = *publisher_->Publish(weights, {1, 1}, "");
  const PublishedVersion relabel = *publisher_->Publish(weights, {1, 2}, "");

  EXPECT_EQ(relabel.state, full.state);
  EXPECT_NE(relabel.manifest, full.manifest);

  weights::v1::Manifest manifest;
  ASSERT_TRUE(manifest.ParseFromString(*publisher_->FindObject(relabel.manifest)));
  EXPECT_EQ(manifest.chunks_size(), 0);
  EXPECT_EQ(manifest.kind(), weights::v1::Manifest::KIND_DELTA);
  EXPECT_EQ(manifest.base(), full.state.bytes());
  EXPECT_EQ(manifest.state(), full.state.bytes());
  EXPECT_EQ(publisher_->edges().back().bytes, 0u);
}

TEST_F(PublicationTest, AnEngineWithOtherWeightsFetchesARelabelFromItsAnchor) {
  const TensorSet weights = RandomSet(2);
  ASSERT_TRUE(publisher_->Publish(weights, {1, 1}, "").ok());
  // Many more versions than retain_versions.
  for (int64_t v = 2; v <= 6; ++v) ASSERT_TRUE(publisher_->Publish(weights, {1, v}, "").ok());
  Subscribe(RandomSet(1));
  const StagedWeights staged = Next();

  EXPECT_EQ(staged.version, (PolicyVersion{1, 6}));
  ASSERT_NE(staged.tensors, nullptr);
  EXPECT_EQ(FingerprintOf(*staged.tensors), FingerprintOf(weights));
}

TEST_F(PublicationTest, AnEvaluationFetchesARelabelToo) {
  const TensorSet weights = RandomSet(2);
  ASSERT_TRUE(publisher_->Publish(weights, {1, 1}, "").ok());
  ASSERT_TRUE(publisher_->Publish(weights, {1, 2}, "").ok());

  const auto channel = *rpc::Connect(server_->address(), {rpc::Role::kTrainer});
  const WeightFetcher fetcher({.job = kJob, .worker = "eval"}, weights.specs());
  const auto kept = fetcher.List(*channel);
  ASSERT_TRUE(kept.ok()) << kept.status();
  const auto staged = fetcher.Fetch(*channel, kept->back(), std::nullopt, nullptr);
  ASSERT_TRUE(staged.ok()) << staged.status();

  EXPECT_EQ(staged->version, (PolicyVersion{1, 2}));
  EXPECT_EQ(FingerprintOf(*staged->tensors), FingerprintOf(weights));
}

TEST_F(PublicationTest, DuringAReplayAnEngineKeepsWhatItHoldsUntilLatestCatchesUp) {
  const TensorSet v2 = RandomSet(2), v4 = RandomSet(4);
  Subscribe(RandomSet(1));
  ASSERT_TRUE(publisher_->Publish(v4, {1, 4}, "").ok());
  const StagedWeights ahead = Next();
  subscriber_->OnActivated(ahead.version, ahead.state, absl::ZeroDuration());

  ASSERT_TRUE(publisher_->Publish(v2, {2, 2}, "", /*hold_until=*/5).ok());
  ASSERT_TRUE(publisher_->Publish(RandomSet(3), {2, 3}, "", 5).ok());
  ASSERT_TRUE(publisher_->Publish(v4, {2, 4}, "", 5).ok());

  const StagedWeights caught_up = Next();
  EXPECT_EQ(caught_up.version, (PolicyVersion{2, 4}));
  EXPECT_EQ(caught_up.tensors, nullptr) << "the same bits came again: a relabel";
}

TEST_F(PublicationTest, W12AVersionThatIsNotAboveTheLastIsRefused) {
  ASSERT_TRUE(publisher_->Publish(RandomSet(1), {2, 3}, "").ok());
  const auto again = publisher_->Publish(RandomSet(2), {2, 3}, "");
  EXPECT_EQ(again.status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(ReasonOf(again.status()), "LOST_RACE");
  EXPECT_EQ(publisher_->Publish(RandomSet(2), {1, 9}, "").status().code(),
            absl::StatusCode::kAborted);
}

// The trainer publishes while the new listener is called with the version before.
TEST_F(PublicationTest, AListenerHearsOfVersionsInTheirOrder) {
  ASSERT_TRUE(publisher_->Publish(RandomSet(1), {1, 1}, "").ok());
  std::vector<int64_t> heard;
  bool published = false;
  publisher_->AddListener("rollout-0", [&](const Announcement& announced) {
    const PublishedVersion& latest = announced.version;
    if (!std::exchange(published, true)) {
      EXPECT_TRUE(publisher_->Publish(RandomSet(2), {1, 2}, "").ok());
    }
    heard.push_back(latest.version.number);
  });
  ASSERT_TRUE(publisher_->Publish(RandomSet(3), {1, 3}, "").ok());

  EXPECT_THAT(heard, testing::ElementsAre(1, 2, 3));
}

TEST_F(PublicationTest, OldVersionsAreCollectedUnlessLeased) {
  const auto v1 = *publisher_->Publish(RandomSet(1), {1, 1}, "");
  publisher_->Lease("rollout-0", {v1.manifest}, absl::Minutes(1));
  const auto v2 = *publisher_->Publish(RandomSet(2), {1, 2}, "");
  for (int64_t v = 3; v <= 5; ++v) ASSERT_TRUE(publisher_->Publish(RandomSet(v), {1, v}, "").ok());

  EXPECT_NE(publisher_->FindObject(v1.manifest), nullptr);
  EXPECT_EQ(publisher_->FindObject(v2.manifest), nullptr);
  EXPECT_EQ(publisher_->edges().size(), 3u);
}

// Returns a copy of which each element moves by one place with odds of 1 in `one_in`.
TensorSet Moved(const TensorSet& from, SplitMix64& random, uint64_t one_in) {
  TensorSet to = from;
  for (size_t i = 0; i < to.size(); ++i) {
    for (uint32_t& bits : to.as<uint32_t>(i)) {
      if (random.Below(one_in) == 0) bits += random.Below(2) == 0 ? 1 : -1;
    }
  }
  return to;
}

TEST_F(PublicationTest, AnEngineThatHoldsTheVersionBeforeFetchesADelta) {
  SplitMix64 random(1);
  const TensorSet v1 = RandomSet(1), v2 = Moved(v1, random, 100), v3 = Moved(v2, random, 100);
  ASSERT_TRUE(publisher_->Publish(v1, {1, 1}, "").ok());
  Subscribe(v1);
  const StagedWeights relabel = Next();
  EXPECT_EQ(relabel.tensors, nullptr);
  subscriber_->OnActivated(relabel.version, relabel.state, absl::ZeroDuration());
  const TensorSet* held = &v1;
  for (const auto& [number, weights] : {std::pair(2, &v2), std::pair(3, &v3)}) {
    ASSERT_TRUE(publisher_->Publish(*weights, {1, number}, "").ok());
    const StagedWeights staged = Next();
    EXPECT_EQ(staged.version, (PolicyVersion{1, number}));
    ASSERT_NE(staged.delta, nullptr);
    EXPECT_EQ(Take(staged, *held).buffer(), weights->buffer());
    held = weights;
    EXPECT_LT(staged.bytes, 30'000u) << "7000 of 700,000 numbers changed";
    subscriber_->OnActivated(staged.version, staged.state, absl::ZeroDuration());
  }
}

TEST_F(PublicationTest, AnEngineThatIsBehindTakesTheDeltasThatItMissed) {
  SplitMix64 random(1);
  std::vector<TensorSet> versions = {RandomSet(1)};
  ASSERT_TRUE(publisher_->Publish(versions[0], {1, 0}, "").ok());
  for (int64_t v = 1; v <= 5; ++v) {
    versions.push_back(Moved(versions.back(), random, 1000));
    ASSERT_TRUE(publisher_->Publish(versions.back(), {1, v}, "").ok());
  }
  Subscribe(versions[2]);
  const StagedWeights staged = Next();
  EXPECT_EQ(staged.version, (PolicyVersion{1, 5}));
  EXPECT_EQ(Take(staged, versions[2]).buffer(), versions[5].buffer());
  EXPECT_LT(staged.bytes, 20'000u);
}

TEST_F(PublicationTest, AnEngineThatHoldsNothingKnownBeginsAtTheAnchor) {
  SplitMix64 random(1);
  const TensorSet v1 = RandomSet(1), v2 = Moved(v1, random, 100);
  ASSERT_TRUE(publisher_->Publish(v1, {1, 1}, "").ok());
  ASSERT_TRUE(publisher_->Publish(v2, {1, 2}, "").ok());
  Subscribe(RandomSet(9));
  const StagedWeights staged = Next();
  EXPECT_EQ(staged.tensors->buffer(), v2.buffer());
  EXPECT_GT(staged.bytes, 2'800'000u);
}

TEST_F(PublicationTest, ADeltaThatIsRefusedTwiceIsFollowedByTheWholeVersion) {
  SplitMix64 random(1);
  const TensorSet v1 = RandomSet(1), v2 = Moved(v1, random, 100);
  ASSERT_TRUE(publisher_->Publish(v1, {1, 1}, "").ok());
  ASSERT_TRUE(publisher_->Publish(v2, {1, 2}, "").ok());
  Subscribe(v1, "", &clock_);
  for (int refusal = 0; refusal < 2; ++refusal) {
    EXPECT_NE(Next().delta, nullptr) << refusal;
    subscriber_->OnRefused({1, 2}, "fingerprint differs", "a");
    clock_.Advance(absl::Minutes(1));
  }
  EXPECT_EQ(Next().tensors->buffer(), v2.buffer());
}

TEST_F(PublicationTest, AnEngineWithDamagedWeightsGetsTheVersionThatItHadAsAWhole) {
  SplitMix64 random(1);
  const TensorSet v1 = RandomSet(1), v2 = Moved(v1, random, 100);
  ASSERT_TRUE(publisher_->Publish(v1, {1, 1}, "").ok());
  ASSERT_TRUE(publisher_->Publish(v2, {1, 2}, "").ok());
  Subscribe(v1);
  const StagedWeights first = Next();
  subscriber_->OnActivated(first.version, first.state, absl::ZeroDuration());

  subscriber_->OnDamaged(first.version, "a bit has flipped", "a");
  const StagedWeights again = Next();
  EXPECT_EQ(again.version, first.version);
  ASSERT_NE(again.tensors, nullptr);
  EXPECT_EQ(again.tensors->buffer(), v2.buffer());
}

// A slow model of the graph: whatever was published, leased and freed, each version that is kept
// can be fetched from nothing and from each other state, has its bits, and a path never has more
// bytes than the anchor and the deltas between.
TEST_F(PublicationTest, W10EachKeptVersionIsReachedFromEveryStateOverRandomHistories) {
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    SCOPED_TRACE(seed);
    SplitMix64 random(seed);
    const int retain = static_cast<int>(1 + random.Below(3)), holders = 2;
    publisher_ = std::make_shared<WeightPublisher>(
        WeightPublisher::Options{
            .job = kJob,
            .retain_versions = retain,
            .chunk_target_bytes = 4096,
            .encoding = seed % 4 == 1 ? WeightEncoding::kFull : WeightEncoding::kAuto},
        Clock::Real());
    weights_.SetPublisher(kJob, publisher_);
    const auto channel = *rpc::Connect(server_->address(), {rpc::Role::kTrainer});
    std::map<PolicyVersion, TensorSet> published;
    TensorSet now = RandomSet(seed, 5000);
    const WeightFetcher fetcher({.job = kJob, .worker = "rollout-0", .incarnation = 3},
                                now.specs());
    for (int64_t v = 0; v < 30; ++v) {
      switch (random.Below(8)) {
        case 0: break;  // A skipped step.
        case 1: now = RandomSet(random.Next(), 5000); break;
        case 2: now = Moved(now, random, 3); break;
        case 3:  // Back to an older state, as after a restart.
          if (!published.empty()) now = published.begin()->second;
          break;
        default: now = Moved(now, random, 50);
      }
      const auto made = publisher_->Publish(now, {1, v}, "");
      ASSERT_TRUE(made.ok()) << made.status();
      ASSERT_EQ(made->state, FingerprintOf(now));
      published[made->version] = now;
      // The fetches below lease too, in the name of the rollout.
      if (random.Below(6) == 0) {
        publisher_->Lease(absl::StrCat("evaluation-", random.Below(holders)), {made->manifest},
                          absl::Hours(1));
      }
      publisher_->Lease("rollout-0", {}, absl::ZeroDuration());
      uint64_t bytes = 0;
      for (const WeightPublisher::Edge& edge : publisher_->edges()) bytes += edge.bytes;
      // The small chunks of this test take up to a tenth more than the weights.
      const uint64_t whole = 4 * 5013 * 11 / 10, wanted = static_cast<uint64_t>(retain + holders);
      EXPECT_LE(bytes, (3 * wanted + 3) * whole / 2) << v;

      const auto kept = fetcher.List(*channel);
      ASSERT_TRUE(kept.ok()) << kept.status();
      ASSERT_EQ(kept->back().version, made->version);
      for (const PublishedVersion& version : *kept) {
        const TensorSet& wanted = published.at(version.version);
        for (const PublishedVersion* from :
             {static_cast<const PublishedVersion*>(nullptr), &kept->front(), &kept->back()}) {
          std::optional<Fingerprint> held;
          if (from != nullptr) held = from->state;
          const auto staged = fetcher.Fetch(*channel, version, held, nullptr);
          ASSERT_TRUE(staged.ok()) << version.version.str() << ": " << staged.status();
          const TensorSet& base = from == nullptr ? wanted : published.at(from->version);
          EXPECT_EQ(Take(*staged, base).buffer(), wanted.buffer()) << version.version.str();
        }
      }
    }
  }
}

TEST_F(PublicationTest, AnchorsComeBySizeAndOldOnesAreFreed) {
  SplitMix64 random(3);
  TensorSet now = RandomSet(1, 100'000);
  uint64_t since = 0, anchors = 0;
  for (int64_t v = 0; v < 60; ++v) {
    ASSERT_TRUE(publisher_->Publish(now, {1, v}, "").ok());
    const std::vector<WeightPublisher::Edge> edges = publisher_->edges();
    uint64_t kept = 0, whole = 0;
    for (const WeightPublisher::Edge& edge : edges) {
      kept += edge.bytes;
      whole += edge.base.has_value() ? 0 : 1;
    }
    EXPECT_EQ(whole, 1u) << v;
    EXPECT_LE(kept, 650'000u) << "an anchor, and deltas of half its size";
    const bool anchor =
        std::any_of(edges.begin(), edges.end(), [&](const WeightPublisher::Edge& edge) {
          return !edge.base.has_value() && edge.version.version.number == v;
        });
    since = anchor ? 0 : since + edges.back().bytes;
    if (v > 0) {
      EXPECT_LE(since, 200'026u) << v;
    }
    anchors += anchor ? 1 : 0;
    now = Moved(now, random, 20);
  }
  EXPECT_GE(anchors, 2u);
}

// The version that is leased was reached from the one before. Then comes a version without a way to
// it, whose own copy is freed while it is the first of the versions that lead to the next anchor.
TEST_F(PublicationTest, W10ALeasedVersionStaysReachableWhenLaterOnesAreFreed) {
  publisher_ = std::make_shared<WeightPublisher>(
      WeightPublisher::Options{.job = kJob, .retain_versions = 1}, Clock::Real());
  weights_.SetPublisher(kJob, publisher_);
  SplitMix64 random(5);
  const TensorSet v0 = RandomSet(1, 50'000), v1 = Moved(v0, random, 50);
  ASSERT_TRUE(publisher_->Publish(v0, {1, 0}, "").ok());
  const PublishedVersion leased = *publisher_->Publish(v1, {1, 1}, "");
  publisher_->Lease("evaluation", {leased.manifest}, absl::Hours(1));

  TensorSet now = RandomSet(2, 50'000);
  for (int64_t v = 2; v < 12; ++v) {
    ASSERT_TRUE(publisher_->Publish(now, {1, v}, "").ok());
    now = Moved(now, random, 2);  // About a third of the bytes of all weights.
    const auto channel = *rpc::Connect(server_->address(), {rpc::Role::kTrainer});
    const WeightFetcher fetcher({.job = kJob, .worker = "rollout-0", .incarnation = 3}, v0.specs());
    const auto staged = fetcher.Fetch(*channel, leased, std::nullopt, nullptr);
    ASSERT_TRUE(staged.ok()) << v << ": " << staged.status();
    EXPECT_EQ(staged->tensors->buffer(), v1.buffer());
  }
}

TEST_F(PublicationTest, APinnedVersionStaysUntilThePinIsTakenOff) {
  SplitMix64 random(7);
  TensorSet now = RandomSet(1, 20'000);
  const PublishedVersion first = *publisher_->Publish(now, {1, 0}, "");
  ASSERT_EQ(publisher_->SetPin("", true), absl::OkStatus()) << "the latest version";
  const auto publish = [&](int64_t from, int64_t to) {
    for (int64_t v = from; v < to; ++v) {
      now = Moved(now, random, 3);
      ASSERT_TRUE(publisher_->Publish(now, {1, v}, "").ok());
    }
  };
  publish(1, 20);
  EXPECT_NE(publisher_->FindObject(first.manifest), nullptr);
  ASSERT_EQ(publisher_->leases().size(), 1u);
  EXPECT_TRUE(publisher_->leases()[0].pin);

  ASSERT_EQ(publisher_->SetPin(first.manifest, false), absl::OkStatus());
  publish(20, 40);
  EXPECT_EQ(publisher_->FindObject(first.manifest), nullptr);
  EXPECT_TRUE(publisher_->leases().empty());
  EXPECT_EQ(ReasonOf(publisher_->SetPin(first.manifest, true)), "GONE");
}

// A chain of n rollouts has a version after one crossing, and one chunk for each further rollout.
TEST_F(PublicationTest, ChunksAreSmallerForMoreReceiversButNotTooSmall) {
  const auto longest_chunk = [&](int receivers, int64_t v) {
    publisher_->SetReceivers(receivers);
    const PublishedVersion made = *publisher_->Publish(RandomSet(v, 8 << 20), {1, v}, "");
    weights::v1::Manifest manifest;
    EXPECT_TRUE(manifest.ParseFromString(*publisher_->FindObject(made.manifest)));
    uint32_t longest = 0;
    for (const weights::v1::Chunk& chunk : manifest.chunks())
      longest = std::max(longest, chunk.wire_bytes());
    return longest;
  };
  EXPECT_NEAR(longest_chunk(1, 1), 1 << 20, 1000) << "32 MiB";
  EXPECT_NEAR(longest_chunk(4, 2), (32 << 20) / 80, 1000);
  EXPECT_NEAR(longest_chunk(100, 3), 128 << 10, 1000);
}

// What is being fetched stays, however many versions come meanwhile.
TEST_F(PublicationTest, AnAnchorThatIsLeasedStaysWhenANewOneCame) {
  SplitMix64 random(7);
  TensorSet now = RandomSet(1, 20'000);
  const PublishedVersion first = *publisher_->Publish(now, {1, 0}, "");
  publisher_->Lease("rollout-0", {first.manifest}, absl::Minutes(1));
  for (int64_t v = 1; v < 30; ++v) {
    now = Moved(now, random, 3);
    ASSERT_TRUE(publisher_->Publish(now, {1, v}, "").ok());
    const auto manifest = publisher_->FindObject(first.manifest);
    ASSERT_NE(manifest, nullptr);
    weights::v1::Manifest parsed;
    ASSERT_TRUE(parsed.ParseFromString(*manifest));
    for (const weights::v1::Chunk& chunk : parsed.chunks())
      ASSERT_NE(publisher_->FindObject(chunk.sha256()), nullptr) << v;
  }
}

TEST_F(PublicationTest, ARefusalMakesTheNextVersionAnAnchor) {
  SplitMix64 random(7);
  TensorSet now = RandomSet(1);
  const auto publish = [&](int64_t v) {
    EXPECT_TRUE(publisher_->Publish(now, {1, v}, "").ok());
    now = Moved(now, random, 100);
    int anchors = 0;
    for (const WeightPublisher::Edge& edge : publisher_->edges())
      anchors += edge.version.version.number == v && !edge.base.has_value() ? 1 : 0;
    return anchors;
  };
  EXPECT_EQ(publish(1), 1);
  EXPECT_EQ(publish(2), 0);
  publisher_->Report({.worker = "rollout-0", .version = {1, 2}, .phase = "ACTIVE"});
  EXPECT_EQ(publish(3), 0);
  publisher_->Report({.worker = "rollout-0", .version = {1, 3}, .phase = "REFUSED"});
  EXPECT_EQ(publish(4), 1);
  EXPECT_EQ(publish(5), 0);
}

// A trainer that announces a version and is then stopped: its connections stay open, but nothing
// comes.
class SilentTrainer : public weights::v1::WeightsService::CallbackService {
 public:
  SilentTrainer() {
    latest_.mutable_version()->set_incarnation(1);
    latest_.mutable_version()->set_number(1);
    latest_.set_manifest(std::string(32, 'm'));
    latest_.set_state(std::string(16, 's'));
  }
  void AwaitFetch() { asked_.WaitForNotification(); }
  // Waits until the subscriber has begun to fetch the version or has refused it. Returns true if it
  // refused.
  bool AwaitRefusal() {
    asked_.WaitForNotification();
    return refused_;
  }

 protected:
  void NotifyFetch() { asked_.Notify(); }

 private:
  template <typename Response>
  class Silent : public grpc::ServerWriteReactor<Response> {
    void OnCancel() override { this->Finish(grpc::Status::CANCELLED); }
    void OnDone() override { delete this; }
  };
  grpc::ServerWriteReactor<weights::v1::Latest>* Watch(grpc::CallbackServerContext*,
                                                       const weights::v1::WatchRequest*) override {
    auto* const reactor = new Silent<weights::v1::Latest>;
    reactor->StartWrite(&latest_);
    return reactor;
  }
  grpc::ServerWriteReactor<weights::v1::FetchMessage>* Fetch(
      grpc::CallbackServerContext*, const weights::v1::FetchRequest*) override {
    asked_.Notify();
    return new Silent<weights::v1::FetchMessage>;
  }

  grpc::ServerUnaryReactor* List(grpc::CallbackServerContext* context,
                                 const weights::v1::ListRequest*,
                                 weights::v1::ListResponse* response) override {
    weights::v1::VersionNode* const node = response->add_nodes();
    *node->mutable_version() = latest_.version();
    node->set_manifest(latest_.manifest());
    node->set_state(latest_.state());
    node->set_kind(weights::v1::Manifest::KIND_FULL);
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

  grpc::ServerUnaryReactor* Lease(grpc::CallbackServerContext* context,
                                  const weights::v1::LeaseRequest*,
                                  weights::v1::LeaseResponse*) override {
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

  grpc::ServerUnaryReactor* Report(grpc::CallbackServerContext* context,
                                   const weights::v1::ReportRequest* request,
                                   weights::v1::ReportResponse*) override {
    refused_ = request->phase() == weights::v1::REPLICA_PHASE_REFUSED;
    if (refused_) asked_.Notify();
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

  weights::v1::Latest latest_;
  std::atomic<bool> refused_{false};
  absl::Notification asked_;
};

TEST_F(PublicationTest, W07WhatAReplacedTrainerAnnouncesIsRefused) {
  Subscribe(RandomSet(1));
  ASSERT_TRUE(publisher_->Publish(RandomSet(2), {2, 1}, "").ok());
  const StagedWeights first = Next();
  subscriber_->OnActivated(first.version, first.state, absl::ZeroDuration());

  SilentTrainer replaced;  // Announces version 1 of incarnation 1.
  grpc::Service* const services[] = {&replaced};
  const std::unique_ptr<rpc::Server> old = *rpc::Server::Start({}, services);
  subscriber_->SetSource(old->address());

  EXPECT_TRUE(replaced.AwaitRefusal());

  ASSERT_TRUE(publisher_->Publish(RandomSet(3), {2, 2}, "").ok());
  subscriber_->SetSource(server_->address());
  EXPECT_EQ(Next().version, (PolicyVersion{2, 2}));

  subscriber_.reset();
  old->Drain(absl::Seconds(5));
}

TEST_F(PublicationTest, ATrainerThatFellSilentInAFetchIsLeftForItsSuccessor) {
  SilentTrainer silent;
  grpc::Service* const services[] = {&silent};
  const std::unique_ptr<rpc::Server> stopped = *rpc::Server::Start({}, services);
  Subscribe(RandomSet(1), stopped->address());
  silent.AwaitFetch();
  ASSERT_TRUE(publisher_->Publish(RandomSet(2), {2, 1}, "").ok());
  subscriber_->SetSource(server_->address());

  EXPECT_EQ(Next().version, (PolicyVersion{2, 1}));
  subscriber_.reset();
  stopped->Drain(absl::Seconds(5));
}

// A trainer whose server is shutting down: it answers each download with CANCELLED.
class ClosingTrainer : public SilentTrainer {
 public:
  // Waits for the report of a refusal, and returns how many downloads were asked for before it.
  int AwaitRefusalReport() {
    reported_.WaitForNotification();
    return fetches_at_report_;
  }
  void AwaitSecondFetch() { second_fetch_.WaitForNotification(); }

 private:
  class Cancelled : public grpc::ServerWriteReactor<weights::v1::FetchMessage> {
   public:
    Cancelled() { Finish(grpc::Status(grpc::StatusCode::CANCELLED, "shutting down")); }
    void OnDone() override { delete this; }
  };
  grpc::ServerWriteReactor<weights::v1::FetchMessage>* Fetch(
      grpc::CallbackServerContext*, const weights::v1::FetchRequest*) override {
    const int fetches = ++fetches_;
    if (fetches == 1) NotifyFetch();
    if (fetches == 2) second_fetch_.Notify();
    return new Cancelled;
  }
  grpc::ServerUnaryReactor* Report(grpc::CallbackServerContext* context,
                                   const weights::v1::ReportRequest* request,
                                   weights::v1::ReportResponse*) override {
    if (request->phase() == weights::v1::REPLICA_PHASE_REFUSED) {
      fetches_at_report_ = fetches_.load();
      reported_.Notify();
    }
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

  std::atomic<int> fetches_{0};
  int fetches_at_report_ = 0;
  absl::Notification second_fetch_, reported_;
};

// The clock stands still, so the back-off never ends on its own. A download that was repeated at
// once would be asked for while the report is on its way.
TEST_F(PublicationTest, ADownloadThatTheTrainerCancelledIsRepeatedAfterABackOff) {
  ClosingTrainer closing;
  grpc::Service* const services[] = {&closing};
  const std::unique_ptr<rpc::Server> server = *rpc::Server::Start({}, services);
  Subscribe(RandomSet(1), server->address(), &clock_);
  failed_.WaitForNotification();
  subscriber_->OnRefused({0, 9}, "a version that is not the newest", "a");
  EXPECT_EQ(closing.AwaitRefusalReport(), 1);

  clock_.Advance(absl::Minutes(1));
  closing.AwaitSecondFetch();
  subscriber_.reset();
  server->Drain(absl::Seconds(5));
}

TEST_F(PublicationTest, AnotherPublisherTakesTheSubscribersOver) {
  Subscribe(RandomSet(1));
  ASSERT_TRUE(publisher_->Publish(RandomSet(2), {1, 1}, "").ok());
  const StagedWeights first = Next();
  subscriber_->OnActivated(first.version, first.state, absl::ZeroDuration());
  publisher_ =
      std::make_shared<WeightPublisher>(WeightPublisher::Options{.job = kJob}, Clock::Real());
  weights_.SetPublisher(kJob, publisher_);

  ASSERT_TRUE(publisher_->Publish(RandomSet(3), {2, 1}, "").ok());
  EXPECT_EQ(Next().version, (PolicyVersion{2, 1}));
}

// A clock whose Monotonic() waits until it is released.
class HeldClock : public Clock {
 public:
  void AwaitCaller() { called_.WaitForNotification(); }
  void Release() { released_.Notify(); }

  absl::Time Now() override { return Clock::Real()->Now(); }
  absl::Duration Monotonic() override {
    if (!called_.HasBeenNotified()) called_.Notify();
    released_.WaitForNotification();
    return Clock::Real()->Monotonic();
  }
  void Sleep(absl::Duration duration) override { Clock::Real()->Sleep(duration); }

 private:
  absl::Notification called_, released_;
};

// Opens a Watch stream and holds it where it has found the publisher and has no listener there yet,
// because a lease that reads the held clock has the publisher's lock. Calls `change`, lets the
// stream go on, and returns the status with which it ends.
class OpeningWatchTest : public PublicationTest {
 protected:
  absl::Status ChangeWhileAWatchOpens(const std::function<void()>& change) {
    HeldClock clock;
    publisher_ = std::make_shared<WeightPublisher>(WeightPublisher::Options{.job = kJob}, &clock);
    weights_.SetPublisher(kJob, publisher_);
    std::thread lease([&] { publisher_->Lease("rollout-0", {}, absl::Minutes(1)); });
    clock.AwaitCaller();

    const auto channel = *rpc::Connect(server_->address(), {rpc::Role::kTrainer});
    rpc::ClientStream stream(*channel, *weights::v1::WatchRequest::descriptor(), nullptr,
                             absl::Seconds(30));
    weights::v1::WatchRequest request;
    request.mutable_call()->mutable_job()->set_job(kJob);
    request.mutable_call()->mutable_job()->set_worker("rollout-0");
    request.mutable_call()->mutable_job()->set_incarnation(3);
    stream.Write(request);
    stream.WritesDone();
    // This test and the server hold the publisher; the stream that found it is the third.
    while (publisher_.use_count() < 3) std::this_thread::yield();

    change();
    clock.Release();
    lease.join();
    weights::v1::Latest beat;
    while (stream.Read(&beat)) {
    }
    return stream.Finish();
  }
};

TEST_F(OpeningWatchTest, AWatchThatOpensWhileThePublisherChangesEnds) {
  const absl::Status end = ChangeWhileAWatchOpens([&] { weights_.SetPublisher(kJob, nullptr); });
  EXPECT_EQ(end.code(), absl::StatusCode::kUnavailable) << end;
}

TEST_F(OpeningWatchTest, AWatchThatOpensDuringTheShutdownEnds) {
  const absl::Status end = ChangeWhileAWatchOpens([&] { weights_.Shutdown(); });
  EXPECT_EQ(end.code(), absl::StatusCode::kUnavailable) << end;
}

}  // namespace
}  // namespace sluice
