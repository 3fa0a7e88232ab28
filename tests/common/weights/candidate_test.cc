// A version that is on trial at one subscriber, over real gRPC on loopback.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/splitmix.h"
#include "common/base/status.h"
#include "common/checkpoint/tensor_set.h"
#include "common/rpc/caller.h"
#include "common/rpc/client.h"
#include "common/rpc/server.h"
#include "common/weights/publisher.h"
#include "common/weights/relay.h"
#include "common/weights/service.h"
#include "common/weights/subscriber.h"
#include "common/weights/weight_delta.h"
#include "sluice/weights/v1/weights.grpc.pb.h"

namespace sluice {
namespace {

constexpr char kTrialJob[] = "00112233445566778899aabbccddeeff";
constexpr absl::Duration kPatience = absl::Seconds(30);

TensorSet SmallSet(uint64_t seed) {
  TensorSet set = *TensorSet::Create({{"a", DType::kF32, {5000}}, {"b", DType::kF32, {13}}});
  SplitMix64 random(seed);
  for (size_t i = 0; i < set.size(); ++i) {
    for (float& x : set.as<float>(i)) x = static_cast<float>(random.Uniform());
  }
  return set;
}

// `set` with one other element, so that it comes as a delta.
TensorSet WithOneChange(TensorSet set) {
  set.as<float>(0)[7] += 1;
  return set;
}

// A rollout's side: takes what is staged, and notes the versions that it has had.
class TrialRollout {
 public:
  TrialRollout(std::string id, const std::string& trainer, const TensorSet& held) {
    held_ = held;
    WeightSubscriber::Options options{
        .job = kTrialJob, .worker = std::move(id), .incarnation = 1, .relay = relay_};
    options.fan_out = FanOut::kChain;
    options.health = [this] {
      MutexLock lock(&mu_);
      return health_;
    };
    subscriber_ = std::make_unique<WeightSubscriber>(
        std::move(options), std::vector<TensorSpec>(held.specs().begin(), held.specs().end()),
        FingerprintOf(held), [this](StagedWeights staged) { Take(staged); });
    subscriber_->SetSource(trainer);
  }

  void SetHealth(const VersionHealth& health) {
    MutexLock lock(&mu_);
    health_ = health;
  }
  bool AwaitVersion(PolicyVersion version) {
    MutexLock lock(&mu_);
    const absl::Time deadline = absl::Now() + kPatience;
    while (!had_.contains(version)) {
      if (absl::Now() > deadline) return false;
      changed_.WaitFor(&mu_, absl::Milliseconds(100));
    }
    return true;
  }
  bool Had(PolicyVersion version) {
    MutexLock lock(&mu_);
    return had_.contains(version);
  }
  // Whether the version was on trial when it came.
  bool WasCandidate(PolicyVersion version) {
    MutexLock lock(&mu_);
    return had_.at(version);
  }
  Fingerprint state() {
    MutexLock lock(&mu_);
    return FingerprintOf(held_);
  }
  WeightRelay& relay() { return *relay_; }

 private:
  void Take(const StagedWeights& staged) {
    {
      MutexLock lock(&mu_);
      if (staged.tensors != nullptr) held_ = *staged.tensors;
      if (staged.delta != nullptr) {
        const std::vector<DeltaTarget> targets = WholeTensors(&held_);
        std::vector<Fingerprint> sums(held_.size());
        for (const SignedChunk& part : staged.delta->chunks)
          part.chunk.Apply(part.sign, targets, absl::MakeSpan(sums));
      }
      EXPECT_EQ(FingerprintOf(held_), staged.state);
    }
    subscriber_->OnActivated(staged.version, staged.state, absl::ZeroDuration());
    MutexLock lock(&mu_);
    had_[staged.version] = staged.candidate;
    changed_.NotifyAll();
  }

  const std::shared_ptr<WeightRelay> relay_ = std::make_shared<WeightRelay>(WeightRelay::Options{});
  Mutex mu_;
  CondVar changed_;
  TensorSet held_ ABSL_GUARDED_BY(mu_);
  VersionHealth health_ ABSL_GUARDED_BY(mu_);
  std::map<PolicyVersion, bool> had_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<WeightSubscriber> subscriber_;
};

class CandidateTest : public testing::Test {
 protected:
  CandidateTest() : weights_(&callers_) {
    callers_.SetJob(kTrialJob, {{"rollout-0", rpc::Role::kRollout, 1},
                                {"rollout-1", rpc::Role::kRollout, 1},
                                {"controller-0", rpc::Role::kController, 1}});
    grpc::Service* const services[] = {weights_.service()};
    server_ = *rpc::Server::Start({}, services);
    weights_.SetPublisher(kTrialJob, publisher_, [this](int64_t version) -> absl::Status {
      if (version == 9) return Error(absl::StatusCode::kNotFound, "GONE", "no checkpoint");
      asked_ = version;
      return absl::OkStatus();
    });
    EXPECT_TRUE(publisher_->Publish(initial_, {1, 0}, "").ok());
    for (const char* id : {"rollout-0", "rollout-1"})
      rollouts_[id] = std::make_unique<TrialRollout>(id, server_->address(), initial_);
    for (auto& [id, rollout] : rollouts_) EXPECT_TRUE(rollout->AwaitVersion({1, 0})) << id;
  }
  ~CandidateTest() override {
    rollouts_.clear();
    weights_.Shutdown();
    server_->Drain(absl::Seconds(5));
  }

  // Waits until the replica's newest report satisfies `what`.
  std::optional<ReplicaState> AwaitReport(const std::string& worker,
                                          const std::function<bool(const ReplicaState&)>& what) {
    const absl::Time deadline = absl::Now() + kPatience;
    while (absl::Now() < deadline) {
      for (const ReplicaState& replica : publisher_->replicas()) {
        if (replica.worker == worker && what(replica)) return replica;
      }
      absl::SleepFor(absl::Milliseconds(5));
    }
    return std::nullopt;
  }

  const TensorSet initial_ = SmallSet(1), next_ = WithOneChange(SmallSet(1));
  rpc::CallerTable callers_;
  WeightsServer weights_;
  std::unique_ptr<rpc::Server> server_;
  std::shared_ptr<WeightPublisher> publisher_ = std::make_shared<WeightPublisher>(
      WeightPublisher::Options{.job = kTrialJob, .retain_versions = 2}, Clock::Real());
  std::map<std::string, std::unique_ptr<TrialRollout>> rollouts_;
  std::optional<int64_t> asked_;
};

TEST_F(CandidateTest, OnlyTheCanaryGetsAVersionOnTrialAndTheOthersWhenItIsPromoted) {
  const PublishedVersion staged = *publisher_->Stage(next_, {1, 1});
  EXPECT_EQ(publisher_->latest()->version, (PolicyVersion{1, 0}));
  EXPECT_FALSE(publisher_->candidate().has_value()) << "nobody tries it yet";
  EXPECT_EQ(publisher_->listeners(), (std::set<std::string>{"rollout-0", "rollout-1"}));

  publisher_->Try(staged, "rollout-1");
  ASSERT_TRUE(rollouts_["rollout-1"]->AwaitVersion({1, 1}));
  EXPECT_TRUE(rollouts_["rollout-1"]->WasCandidate({1, 1}));
  EXPECT_EQ(publisher_->latest()->version, (PolicyVersion{1, 0}));
  EXPECT_FALSE(rollouts_["rollout-0"]->Had({1, 1}));

  publisher_->Promote(staged);
  ASSERT_TRUE(rollouts_["rollout-0"]->AwaitVersion({1, 1}));
  EXPECT_FALSE(rollouts_["rollout-0"]->WasCandidate({1, 1}));
  EXPECT_EQ(rollouts_["rollout-0"]->state(), FingerprintOf(next_));
  EXPECT_FALSE(publisher_->candidate().has_value());
}

TEST_F(CandidateTest, TheCanaryReportsWhatItFindsUntilTheEndOfTheTrial) {
  const PublishedVersion staged = *publisher_->Stage(next_, {1, 1});
  publisher_->Try(staged, "rollout-1");
  const VersionHealth found{.rows = 7, .bad_rows = 2, .gap_tokens = 5, .gap = 0.25, .probed = true};
  rollouts_["rollout-1"]->SetHealth(found);

  const auto report = AwaitReport("rollout-1", [&](const ReplicaState& replica) {
    return replica.version == staged.version && replica.health == found;
  });
  ASSERT_TRUE(report.has_value());
  EXPECT_EQ(report->phase, "ACTIVE");
  EXPECT_EQ(report->state, staged.state);
  EXPECT_FALSE(AwaitReport("rollout-0", [](const auto&) { return true; })->health.has_value());
}

TEST_F(CandidateTest, TheRelayOfTheCanaryNamesTheVersionOnlyOnceItIsPromoted) {
  const PublishedVersion staged = *publisher_->Stage(next_, {1, 1});
  publisher_->Try(staged, "rollout-1");
  ASSERT_TRUE(rollouts_["rollout-1"]->AwaitVersion({1, 1}));
  EXPECT_NE(rollouts_["rollout-1"]->relay().latest(), staged);

  publisher_->Promote(staged);
  const absl::Time deadline = absl::Now() + kPatience;
  while (rollouts_["rollout-1"]->relay().latest() != staged) {
    ASSERT_LT(absl::Now(), deadline);
    absl::SleepFor(absl::Milliseconds(5));
  }
}

TEST_F(CandidateTest, AWithdrawnVersionReachesNobodyElseAndALaterTrainerBringsTheCanaryBack) {
  const PublishedVersion staged = *publisher_->Stage(next_, {1, 1});
  publisher_->Try(staged, "rollout-1");
  ASSERT_TRUE(rollouts_["rollout-1"]->AwaitVersion({1, 1}));
  publisher_->Withdraw();

  // The next incarnation goes on from the promoted version, which has the same bits again.
  auto later = std::make_shared<WeightPublisher>(
      WeightPublisher::Options{.job = kTrialJob, .retain_versions = 2}, Clock::Real());
  ASSERT_TRUE(later->Publish(initial_, {2, 0}, "").ok());
  weights_.SetPublisher(kTrialJob, later);
  for (auto& [id, rollout] : rollouts_) {
    ASSERT_TRUE(rollout->AwaitVersion({2, 0})) << id;
    EXPECT_EQ(rollout->state(), FingerprintOf(initial_)) << id;
  }
  EXPECT_FALSE(rollouts_["rollout-0"]->Had({1, 1}));
}

TEST_F(CandidateTest, TheNextCanaryTakesThePlaceOfTheFirst) {
  const PublishedVersion staged = *publisher_->Stage(next_, {1, 1});
  publisher_->Try(staged, "gone");
  publisher_->Try(staged, "rollout-0");
  ASSERT_TRUE(rollouts_["rollout-0"]->AwaitVersion({1, 1}));
  EXPECT_FALSE(rollouts_["rollout-1"]->Had({1, 1}));
}

TEST_F(CandidateTest, ThePromotedVersionIsKeptWhileANewerOneIsOnTrial) {
  const PublishedVersion staged = *publisher_->Stage(next_, {1, 1});
  publisher_->Try(staged, "rollout-1");
  std::vector<PolicyVersion> kept;
  for (const WeightEdge& edge : publisher_->edges()) kept.push_back(edge.version.version);
  EXPECT_THAT(kept, testing::ElementsAre(PolicyVersion{1, 0}, PolicyVersion{1, 1}));

  EXPECT_EQ(publisher_->Publish(next_, {1, 1}, "").status().code(), absl::StatusCode::kAborted)
      << "a version has one set of weights, on trial or not";
}

TEST_F(CandidateTest, ListSaysWhatIsOnTrialAndWhatWasWithdrawn) {
  const PublishedVersion staged = *publisher_->Stage(next_, {1, 1});
  publisher_->Try(staged, "rollout-1");
  publisher_->SetTrial(WeightPublisher::Trial{.version = staged.version,
                                              .canary = "rollout-1",
                                              .waited = absl::Seconds(2),
                                              .text = "it has computed 3 of 100 tokens"});
  publisher_->SetWithdrawn({{.version = {1, 8}, .from = 5, .cause = "not finite"}});

  weights::v1::ListRequest request;
  request.mutable_call()->mutable_job()->set_job(kTrialJob);
  request.mutable_call()->mutable_job()->set_worker("controller-0");
  request.mutable_call()->mutable_job()->set_incarnation(1);
  weights::v1::ListResponse list;
  const auto channel = *rpc::Connect(server_->address(), {rpc::Role::kTrainer});
  ASSERT_EQ(rpc::Call(*channel, request, &list), absl::OkStatus());
  ASSERT_EQ(list.nodes_size(), 2);
  EXPECT_FALSE(list.nodes(0).candidate());
  EXPECT_TRUE(list.nodes(1).candidate());
  EXPECT_EQ(list.trial().replica(), "rollout-1");
  EXPECT_EQ(list.trial().text(), "it has computed 3 of 100 tokens");
  ASSERT_EQ(list.withdrawn_size(), 1);
  EXPECT_EQ(list.withdrawn(0).version().number(), 8);
  EXPECT_EQ(list.withdrawn(0).from(), 5);
}

TEST_F(CandidateTest, ARollbackIsPassedOnToTheTrainersJobAndOnlyTheControllerMayAsk) {
  const auto channel = *rpc::Connect(server_->address(), {rpc::Role::kTrainer});
  const auto ask = [&](const char* worker, int64_t version) {
    weights::v1::RollbackRequest request;
    request.mutable_call()->mutable_job()->set_job(kTrialJob);
    request.mutable_call()->mutable_job()->set_worker(worker);
    request.mutable_call()->mutable_job()->set_incarnation(1);
    request.set_version(version);
    weights::v1::RollbackResponse response;
    return rpc::Call(*channel, request, &response);
  };
  EXPECT_EQ(ask("rollout-0", 4).code(), absl::StatusCode::kPermissionDenied);
  EXPECT_FALSE(asked_.has_value());
  EXPECT_EQ(ReasonOf(ask("controller-0", 9)), "GONE");
  EXPECT_EQ(ask("controller-0", 4), absl::OkStatus());
  EXPECT_EQ(asked_, 4);
}

}  // namespace
}  // namespace sluice
