// Rollouts that pass weights on to each other: each has a real server, relay and subscriber. Some
// of them are replaced by ones that die, fall silent or lie. The model that all is compared to is
// the list of the weights that were published.
#include "common/weights/relay.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/digest.h"
#include "common/base/mutex.h"
#include "common/base/splitmix.h"
#include "common/base/status.h"
#include "common/checkpoint/tensor_set.h"
#include "common/rpc/caller.h"
#include "common/rpc/client.h"
#include "common/rpc/convert.h"
#include "common/rpc/server.h"
#include "common/rpc/stream.h"
#include "common/weights/publisher.h"
#include "common/weights/service.h"
#include "common/weights/subscriber.h"
#include "common/weights/weight_delta.h"
#include "sluice/weights/v1/weights.grpc.pb.h"
#include "tests/common/weights/fleet_rollout.h"
#include "tests/common/weights/random_weights.h"

namespace sluice {
namespace {

std::shared_ptr<const std::string> Object(const std::string& text) {
  return std::make_shared<const std::string>(text);
}

PublishedVersion VersionOf(int64_t number) {
  return {.version = {1, number}, .manifest = absl::StrCat("m", number)};
}

std::vector<WeightEdge> PathOf(int64_t number) {
  return {{.version = VersionOf(number), .manifest = absl::StrCat("m", number)}};
}

TEST(WeightRelayTest, AnObjectIsComingWhileItIsExpectedAndThenItIsHere) {
  WeightRelay relay;
  relay.Begin(VersionOf(1), PathOf(1));
  EXPECT_TRUE(relay.Find("m1", {1, 1}).is_coming);
  EXPECT_TRUE(relay.Find("d", {1, 1}).is_coming) << "the manifest may name it";
  relay.Expect({"c"});
  EXPECT_TRUE(relay.Find("c", {1, 1}).is_coming);
  EXPECT_FALSE(relay.Find("d", {1, 1}).is_coming);
  relay.Add("c", Object("chunk"));
  ASSERT_NE(relay.Find("c", {1, 1}).object, nullptr);
  EXPECT_EQ(*relay.Find("c", {1, 1}).object, "chunk");
}

TEST(WeightRelayTest, EverythingMayComeOfAVersionThatHasNotBegunAndNothingOfAnOlderOne) {
  WeightRelay relay;
  EXPECT_TRUE(relay.Find("x", {1, 1}).is_coming);
  EXPECT_FALSE(relay.Find("x", {}).is_coming) << "for no version";
  relay.Begin(VersionOf(2), PathOf(2));
  relay.Expect({"c"});
  EXPECT_TRUE(relay.Find("x", {1, 3}).is_coming);
  EXPECT_FALSE(relay.Find("x", {1, 2}).is_coming);
  EXPECT_FALSE(relay.Find("x", {1, 1}).is_coming);
}

TEST(WeightRelayTest, AfterAFailureNothingIsComingAndWhatIsHereIsNotFetchedAgain) {
  WeightRelay relay;
  relay.Begin(VersionOf(1), PathOf(1));
  relay.Expect({"c", "d"});
  relay.Add("c", Object("chunk"));
  int woken = 0;
  relay.CallWhenChanged([&] { ++woken; });
  relay.End(/*complete=*/false);
  EXPECT_EQ(woken, 1);
  EXPECT_FALSE(relay.Find("d", {1, 1}).is_coming);

  relay.Begin(VersionOf(1), PathOf(1));
  relay.Expect({"c", "d"});
  EXPECT_NE(relay.Find("c", {1, 1}).object, nullptr);
  EXPECT_TRUE(relay.Find("d", {1, 1}).is_coming);
}

TEST(WeightRelayTest, OnlyWhatIsBeingFetchedOrWasIsListed) {
  WeightRelay relay;
  relay.Begin(VersionOf(1), PathOf(1));
  relay.Add("m1", Object("manifest"));
  EXPECT_EQ(relay.edges().size(), 1u);
  relay.End(/*complete=*/false);
  EXPECT_TRUE(relay.edges().empty());
  relay.Begin(VersionOf(1), PathOf(1));
  EXPECT_EQ(relay.edges().size(), 1u);
  relay.End(/*complete=*/true);
  EXPECT_EQ(relay.edges().size(), 1u);
}

TEST(WeightRelayTest, NothingComesOfAVersionThatWasReachedWithoutBeingFetched) {
  WeightRelay relay;
  int woken = 0;
  relay.CallWhenChanged([&] { ++woken; });
  relay.Reached({1, 2});
  EXPECT_EQ(woken, 1);
  EXPECT_FALSE(relay.Find("x", {1, 2}).is_coming);
  EXPECT_TRUE(relay.Find("x", {1, 3}).is_coming);
  relay.Begin(VersionOf(2), PathOf(2));
  EXPECT_TRUE(relay.Find("x", {1, 2}).is_coming) << "it is fetched after all";
}

TEST(WeightRelayTest, TheVersionBeforeIsHeldUntilTheNewestIsComplete) {
  WeightRelay relay;
  for (int64_t v = 1; v <= 20; ++v) {
    const std::string chunk = absl::StrCat("c", v), before = absl::StrCat("c", v - 1);
    relay.Begin(VersionOf(v), PathOf(v));
    relay.Expect({chunk});
    relay.Add(absl::StrCat("m", v), Object("manifest"));
    relay.Add(chunk, Object(std::string(1000, 'x')));
    EXPECT_EQ(relay.Find(before, {1, v}).object != nullptr, v > 1);
    EXPECT_LE(relay.bytes(), 2 * (1000 + 8));
    relay.End(/*complete=*/true);
    EXPECT_EQ(relay.Find(before, {1, v}).object, nullptr);
    EXPECT_EQ(relay.bytes(), 1000u + 8);
    ASSERT_EQ(relay.edges().size(), 1u);
    EXPECT_EQ(relay.edges()[0].version.version.number, v);
  }
  relay.Clear();
  EXPECT_EQ(relay.bytes(), 0u);
  EXPECT_TRUE(relay.edges().empty());
}

TEST(WeightRelayTest, AnObjectThatNobodyExpectsIsNotKept) {
  WeightRelay relay;
  relay.Begin(VersionOf(1), PathOf(1));
  relay.Add("stranger", Object("bytes"));
  EXPECT_EQ(relay.bytes(), 0u);
}

// What a bad relay does with the messages of its Fetch streams.
enum class Fault {
  kNone,
  kFlipsABit,        // The CRC is that of the right bytes.
  kSendsOtherBytes,  // With their CRC.
  kNamesOtherSize,
  kEndsEarly,  // In the middle of an object, with OK.
  kDies,       // After some messages, for good.
  kHangs,      // After some messages nothing comes; connections stay.
  kStarves,    // It says that it waits itself, and that is all.
  kRepeats,
  kReorders,
  kBecomesSlow,  // After the first version.
};
constexpr int kFaults = 10;  // Without the last one, which takes a second to be seen.

// What a piece takes at a slow relay. All pieces together would take longer than kFleetWithin.
constexpr absl::Duration kSlowPiece = absl::Milliseconds(100);

// A relay whose Fetch has a fault. It serves what a real one holds.
class FaultyRelay : public weights::v1::WeightsService::Service {
 public:
  FaultyRelay(std::shared_ptr<WeightRelay> relay, Fault fault, uint64_t seed)
      : relay_(std::move(relay)), fault_(fault), random_(seed) {}

  // How many of its streams had the fault.
  int faults() const { return faults_; }
  // Ends the streams that hang.
  void Stop() {
    MutexLock lock(&mu_);
    stopping_ = true;
    changed_.NotifyAll();
  }

 private:
  grpc::Status Watch(grpc::ServerContext* context, const weights::v1::WatchRequest*,
                     grpc::ServerWriter<weights::v1::Latest>*) override {
    Hang(context);
    return grpc::Status::CANCELLED;
  }
  grpc::Status List(grpc::ServerContext*, const weights::v1::ListRequest*,
                    weights::v1::ListResponse*) override {
    return grpc::Status::OK;  // It has nothing that it would tell.
  }

  grpc::Status Fetch(grpc::ServerContext* context, const weights::v1::FetchRequest* request,
                     grpc::ServerWriter<weights::v1::FetchMessage>* out) override {
    if (fault_ == Fault::kStarves) {
      ++faults_;
      weights::v1::FetchMessage beat;
      *beat.mutable_header()->mutable_waited() = rpc::ToProto(absl::Hours(1));
      out->Write(beat);
      Hang(context);
      return grpc::Status::CANCELLED;
    }

    std::vector<weights::v1::FetchMessage> messages;
    for (int i = 0; i < request->objects_size(); ++i) {
      const auto object =
          AwaitObject(context, request->objects(i).id(), rpc::FromProto(request->version()));
      weights::v1::FetchMessage message;
      weights::v1::FetchHeader& header = *message.mutable_header();
      header.set_index(static_cast<uint32_t>(i));
      if (object == nullptr) {
        header.add_missing(request->objects(i).id());
      } else {
        header.set_size(object->size());
        header.set_crc32c(Crc32c(*object));
        message.set_payload(*object);
      }
      messages.push_back(std::move(message));
    }
    return SendWithFault(context, std::move(messages), out);
  }

  grpc::Status SendWithFault(grpc::ServerContext* context,
                             std::vector<weights::v1::FetchMessage> messages,
                             grpc::ServerWriter<weights::v1::FetchMessage>* out) {
    size_t place;
    {
      MutexLock lock(&mu_);
      place = random_.Below(messages.size());
      if (fault_ == Fault::kReorders) {
        for (size_t i = messages.size(); i > 1; --i)
          std::swap(messages[i - 1], messages[random_.Below(i)]);
      }
      if (dead_) return {grpc::StatusCode::UNAVAILABLE, "dead"};
    }
    for (size_t i = 0; i < messages.size(); ++i) {
      weights::v1::FetchMessage& message = messages[i];
      const bool here = i == place && !message.payload().empty();
      if (fault_ == Fault::kRepeats) out->Write(message);
      if (fault_ == Fault::kBecomesSlow && relay_->latest()->version.number > 1) {
        ++faults_;
        MutexLock lock(&mu_);
        changed_.WaitFor(&mu_, kSlowPiece);
      }
      if (here && fault_ != Fault::kNone) {
        ++faults_;
        std::string& payload = *message.mutable_payload();
        switch (fault_) {
          case Fault::kFlipsABit: payload[payload.size() / 2] ^= 4; break;
          case Fault::kSendsOtherBytes:
            payload[0] ^= 1;
            message.mutable_header()->set_crc32c(Crc32c(payload));
            break;
          case Fault::kNamesOtherSize:
            message.mutable_header()->set_size(payload.size() / 2 + 1);
            break;
          case Fault::kEndsEarly:
            payload.resize(payload.size() / 2);
            message.mutable_header()->set_crc32c(Crc32c(payload));
            out->Write(message);
            return grpc::Status::OK;
          case Fault::kDies: {
            MutexLock lock(&mu_);
            dead_ = true;
            return {grpc::StatusCode::UNAVAILABLE, "dead"};
          }
          case Fault::kHangs: Hang(context); return grpc::Status::CANCELLED;
          default: break;
        }
      }
      if (!out->Write(message)) return grpc::Status::CANCELLED;
    }
    return grpc::Status::OK;
  }

  // Waits for an object as a relay does. Null: it is missing.
  std::shared_ptr<const std::string> AwaitObject(grpc::ServerContext* context,
                                                 const std::string& id, PolicyVersion version) {
    MutexLock lock(&mu_);
    while (!stopping_ && !context->IsCancelled()) {
      const WeightSource::Lookup found = relay_->Find(id, version);
      if (found.object != nullptr || !found.is_coming) return found.object;
      changed_.WaitFor(&mu_, absl::Milliseconds(5));
    }
    return nullptr;
  }
  void Hang(grpc::ServerContext* context) {
    MutexLock lock(&mu_);
    while (!stopping_ && !context->IsCancelled()) changed_.WaitFor(&mu_, absl::Milliseconds(20));
  }

  const std::shared_ptr<WeightRelay> relay_;
  const Fault fault_;
  std::atomic<int> faults_{0};
  Mutex mu_;
  CondVar changed_;
  SplitMix64 random_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool dead_ ABSL_GUARDED_BY(mu_) = false;
};

// A rollout that may have a fault.
class Node : public FleetRollout {
 public:
  Node(std::string id, const rpc::CallerTable* callers, Fault fault, uint64_t seed)
      : Node(std::move(id), callers, fault, seed, std::make_shared<WeightRelay>()) {}
  ~Node() override {
    Leave();
    if (faulty_ != nullptr) faulty_->Stop();
  }

  void Join(const TensorSet& held, const std::string& trainer, std::vector<RelayMember> members,
            FanOut fan_out) {
    const HolderLimits limits{
        .silent = patience_, .starved = absl::Seconds(2), .avoid = absl::Seconds(5)};
    FleetRollout::Join(held, {.fan_out = fan_out, .limits = limits}, trainer, std::move(members));
  }
  // How long it waits for a holder that is silent. To be called before Join().
  void SetPatience(absl::Duration patience) { patience_ = patience; }
  int faults() const { return faulty_ != nullptr ? faulty_->faults() : 0; }

 private:
  Node(std::string id, const rpc::CallerTable* callers, Fault fault, uint64_t seed,
       std::shared_ptr<WeightRelay> relay)
      : Node(std::move(id), callers, relay,
             fault == Fault::kNone ? nullptr : new FaultyRelay(relay, fault, seed)) {}
  Node(std::string id, const rpc::CallerTable* callers, std::shared_ptr<WeightRelay> relay,
       FaultyRelay* faulty)
      : FleetRollout(std::move(id), callers, std::move(relay),
                     std::unique_ptr<grpc::Service>(faulty)),
        faulty_(faulty) {}

  absl::Duration patience_ = absl::Milliseconds(300);
  FaultyRelay* const faulty_;  // Null: it has no fault.
};

class RelayFleet {
 public:
  // `faults` are those of the rollouts, in the order of the chain.
  RelayFleet(const std::vector<Fault>& faults, uint64_t seed, FanOut fan_out = FanOut::kChain)
      : fan_out_(fan_out), trainer_(&callers_) {
    std::vector<rpc::CallerTable::Worker> workers;
    std::vector<RelayMember> order;
    for (size_t i = 0; i < faults.size(); ++i) {
      const std::string id = absl::StrCat("rollout-", i);
      workers.push_back({.id = id, .role = rpc::Role::kRollout, .incarnation = 1});
      order.push_back({id, ""});
    }
    callers_.SetJob(kFleetJob, workers);
    order = SortIntoChain(std::move(order), absl::StrCat(kFleetJob, " policy"));

    publisher_ = std::make_shared<WeightPublisher>(
        WeightPublisher::Options{.job = kFleetJob, .chunk_target_bytes = 4096}, Clock::Real());
    trainer_.SetPublisher(kFleetJob, publisher_);
    grpc::Service* const services[] = {trainer_.service()};
    server_ = *rpc::Server::Start({}, services);
    for (size_t i = 0; i < faults.size(); ++i) {
      nodes_.push_back(std::make_unique<Node>(order[i].id, &callers_, faults[i], seed + i));
      members_.push_back({order[i].id, nodes_.back()->address()});
    }
  }
  ~RelayFleet() {
    nodes_.clear();
    KillTrainer();
  }

  void Join(size_t node, const TensorSet& held) {
    nodes_[node]->Join(held, server_->address(), members_, fan_out_);
  }
  void JoinAll(const TensorSet& held) {
    for (size_t i = 0; i < nodes_.size(); ++i) Join(i, held);
  }
  PublishedVersion Publish(const TensorSet& weights, int64_t number) {
    const PublishedVersion made = *publisher_->Publish(weights, {1, number}, "");
    published_[made.version] = made.state;
    return made;
  }
  void KillTrainer() {
    if (trainer_killed_) return;
    trainer_killed_ = true;
    trainer_.Shutdown();
    server_->Drain(absl::ZeroDuration());
  }
  // Each version that a rollout was offered is one that was published, to the bit.
  void ExpectOnlyPublished() {
    for (const auto& node : nodes_) {
      const FleetRollout::Counts counts = node->counts();
      EXPECT_EQ(counts.wrong, 0) << node->id();
      for (const auto& [version, state] : counts.states)
        EXPECT_EQ(published_.at(version), state) << node->id() << " " << version.str();
    }
  }

  const std::string& trainer() const { return server_->address(); }
  Node& node(size_t i) { return *nodes_[i]; }
  size_t size() const { return nodes_.size(); }
  WeightPublisher& publisher() { return *publisher_; }
  const std::vector<RelayMember>& members() const { return members_; }

 private:
  const FanOut fan_out_;
  rpc::CallerTable callers_;
  WeightsServer trainer_;
  std::shared_ptr<WeightPublisher> publisher_;
  std::unique_ptr<rpc::Server> server_;
  bool trainer_killed_ = false;
  std::vector<std::unique_ptr<Node>> nodes_;  // In the order of the chain.
  std::vector<RelayMember> members_;
  std::map<PolicyVersion, Fingerprint> published_;
};

TEST(RelayTest, InAChainTheTrainerSendsAVersionOnceAndInAStarToEach) {
  uint64_t once = 0;
  for (const FanOut fan_out : {FanOut::kChain, FanOut::kStar}) {
    RelayFleet fleet(std::vector<Fault>(5, Fault::kNone), 1, fan_out);
    fleet.JoinAll(RandomWeights(1));
    const PublishedVersion version = fleet.Publish(RandomWeights(2), 1);
    for (size_t i = 0; i < fleet.size(); ++i) ASSERT_TRUE(fleet.node(i).Await(version.version));
    fleet.ExpectOnlyPublished();

    const uint64_t sent = fleet.publisher().sent_bytes();
    if (fan_out == FanOut::kStar) {
      EXPECT_NEAR(static_cast<double>(sent), 5.0 * static_cast<double>(once), 100)
          << "the manifests' times may differ in length";
      EXPECT_EQ(fleet.node(0).relay().bytes(), 0u);
      continue;
    }
    once = fleet.node(0).counts().received;
    EXPECT_EQ(sent, once);
    for (size_t i = 0; i + 1 < fleet.size(); ++i)
      EXPECT_EQ(fleet.node(i).relay().sent_bytes(), once) << i;
    EXPECT_EQ(fleet.node(4).counts().parent, fleet.node(3).id());
  }
}

// The first rollout has all. The trainer is dead before any other has asked for anything, and some
// never heard of the version from it.
TEST(RelayTest, EveryRolloutGetsAVersionThatOneOfThemHasWhenTheTrainerIsDead) {
  RelayFleet fleet(std::vector<Fault>(4, Fault::kNone), 1);
  const TensorSet initial = RandomWeights(1);
  fleet.Join(1, initial);  // Not the head of the chain.
  const PublishedVersion version = fleet.Publish(RandomWeights(2), 1);
  ASSERT_TRUE(fleet.node(1).Await(version.version));
  fleet.KillTrainer();

  for (const size_t late : {0, 2, 3}) fleet.Join(late, initial);
  for (size_t i = 0; i < fleet.size(); ++i) ASSERT_TRUE(fleet.node(i).Await(version.version)) << i;
  fleet.ExpectOnlyPublished();
}

TEST(RelayTest, AFetchThatWaitsAtARelayGetsEachObjectWhenItComes) {
  RelayFleet fleet(std::vector<Fault>(3, Fault::kNone), 1);
  const TensorSet initial = RandomWeights(1);
  for (const size_t i : {1, 2}) fleet.Join(i, initial);
  const PublishedVersion version = fleet.Publish(RandomWeights(2), 1);
  for (const size_t i : {1, 2}) {
    while (fleet.node(i).WaitsFor() != fleet.node(i - 1).id()) std::this_thread::yield();
  }
  fleet.Join(0, initial);
  for (size_t i = 0; i < fleet.size(); ++i) ASSERT_TRUE(fleet.node(i).Await(version.version));
  for (size_t i = 1; i < fleet.size(); ++i) {
    EXPECT_EQ(fleet.node(i).counts().left, 0) << fleet.node(i).counts().last_fault;
    EXPECT_EQ(fleet.node(i).counts().parent, fleet.node(i - 1).id());
  }
}

// Its state is that of the weights the head starts with, so the head fetches nothing.
TEST(RelayTest, NobodyWaitsForObjectsAtARelayThatNeedsNone) {
  RelayFleet fleet(std::vector<Fault>(2, Fault::kNone), 1);
  const TensorSet weights = RandomWeights(2);
  const PublishedVersion version = fleet.Publish(weights, 1);
  fleet.Join(0, weights);
  ASSERT_TRUE(fleet.node(0).Await(version.version));
  fleet.Join(1, RandomWeights(1));
  ASSERT_TRUE(fleet.node(1).Await(version.version));
  EXPECT_EQ(fleet.node(1).counts().left, 0) << fleet.node(1).counts().last_fault;
  fleet.ExpectOnlyPublished();
}

// The model of this rollout has another layout, so that it can fetch no version.
TEST(RelayTest, ARelayAnnouncesAndListsNothingThatItCouldNotFetch) {
  RelayFleet fleet({Fault::kNone}, 1);
  fleet.Publish(RandomWeights(2), 1);
  fleet.Join(0, *TensorSet::Create({{"other", DType::kF32, {5}}}));
  ASSERT_TRUE(fleet.node(0).AwaitDownloads(1));
  EXPECT_GT(fleet.node(0).relay().bytes(), 0u) << "it has the manifest";
  EXPECT_EQ(fleet.node(0).relay().latest(), std::nullopt);
  EXPECT_TRUE(fleet.node(0).relay().edges().empty());
}

// A bit flips in a chunk that the relay keeps and in the engine's copy of it.
TEST(RelayTest, AnObjectThatIsDamagedInTheRelaysMemoryIsFetchedAgain) {
  RelayFleet fleet({Fault::kNone}, 1);
  WeightRelay& relay = fleet.node(0).relay();
  fleet.node(0).RefuseFirst([&](const StagedWeights& staged) {
    weights::v1::Manifest manifest;
    ASSERT_TRUE(manifest.ParseFromString(*relay.Find(staged.manifest, staged.version).object));
    const auto chunk = relay.Find(manifest.chunks(0).sha256(), staged.version).object;
    const_cast<std::string&>(*chunk)[chunk->size() / 2] ^= 1;
  });
  fleet.Join(0, RandomWeights(1));
  const PublishedVersion version = fleet.Publish(RandomWeights(2), 1);
  ASSERT_TRUE(fleet.node(0).Await(version.version));
  fleet.ExpectOnlyPublished();
}

// A trainer that announces a version and then hangs in each call.
class HangingTrainer : public weights::v1::WeightsService::Service {
 public:
  HangingTrainer() {
    grpc::Service* const services[] = {this};
    server_ = *rpc::Server::Start({}, services);
  }
  ~HangingTrainer() override {
    {
      MutexLock lock(&mu_);
      stopping_ = true;
      changed_.NotifyAll();
    }
    server_->Drain(absl::Seconds(5));
  }
  const std::string& address() const { return server_->address(); }
  void AwaitList() {
    MutexLock lock(&mu_);
    while (lists_ == 0) changed_.Wait(&mu_);
  }
  // Waits until a List call has ended. Returns whether that was long before its deadline.
  bool AwaitCancelled() {
    MutexLock lock(&mu_);
    while (!ended_early_.has_value()) changed_.Wait(&mu_);
    return *ended_early_;
  }

 private:
  grpc::Status Watch(grpc::ServerContext* context, const weights::v1::WatchRequest*,
                     grpc::ServerWriter<weights::v1::Latest>* out) override {
    weights::v1::Latest latest;
    *latest.mutable_version() = rpc::ToProto(PolicyVersion{1, 1});
    latest.set_manifest(std::string(32, 'm'));
    latest.set_state(std::string(16, 's'));
    out->Write(latest);
    MutexLock lock(&mu_);
    Hang(context);
    return grpc::Status::CANCELLED;
  }
  grpc::Status List(grpc::ServerContext* context, const weights::v1::ListRequest*,
                    weights::v1::ListResponse*) override {
    MutexLock lock(&mu_);
    ++lists_;
    changed_.NotifyAll();
    Hang(context);
    ended_early_ = std::chrono::system_clock::now() + std::chrono::seconds(1) < context->deadline();
    changed_.NotifyAll();
    return grpc::Status::CANCELLED;
  }
  void Hang(grpc::ServerContext* context) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    while (!stopping_ && !context->IsCancelled()) changed_.WaitFor(&mu_, absl::Milliseconds(5));
  }

  Mutex mu_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  int lists_ ABSL_GUARDED_BY(mu_) = 0;
  std::optional<bool> ended_early_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<rpc::Server> server_;
};

TEST(RelayTest, AnotherTrainerEndsACallToTheOldOneThatHangs) {
  HangingTrainer old;
  RelayFleet fleet({Fault::kNone}, 1);
  fleet.node(0).Join(RandomWeights(1), old.address(), fleet.members(), FanOut::kChain);
  old.AwaitList();
  fleet.node(0).SetSource(fleet.trainer());
  const PublishedVersion version = fleet.Publish(RandomWeights(2), 2);
  EXPECT_TRUE(old.AwaitCancelled());
  ASSERT_TRUE(fleet.node(0).Await(version.version));
  fleet.ExpectOnlyPublished();
}

// Has a relay hold a version as a delta from `base`, with this manifest and these chunks.
void HoldDelta(
    WeightRelay& relay, const PublishedVersion& version, const Fingerprint& base,
    const std::string& manifest,
    const std::function<std::shared_ptr<const std::string>(const std::string& id)>& chunk_of) {
  weights::v1::Manifest parsed;
  ASSERT_TRUE(parsed.ParseFromString(manifest));
  relay.Begin(version, {{.version = version, .manifest = version.manifest, .base = base}});
  relay.Add(version.manifest, Object(manifest));
  for (const weights::v1::Chunk& chunk : parsed.chunks()) {
    relay.Expect({chunk.sha256()});
    relay.Add(chunk.sha256(), chunk_of(chunk.sha256()));
  }
  relay.End(/*complete=*/true);
}

// There is no trainer, and the only holder has first wrong and then right chunks of a delta.
TEST(RelayTest, OtherBytesOfAHolderProveNothingAgainstTheWeightsHeld) {
  RelayFleet fleet(std::vector<Fault>(2, Fault::kNone), 1);
  const TensorSet old = RandomWeights(1);
  TensorSet next = old;
  next.as<float>(0)[7] += 1;
  fleet.Publish(old, 1);
  const PublishedVersion version = fleet.Publish(next, 2);
  const auto object = [&](const std::string& id) {
    return fleet.publisher().Find(id, version.version).object;
  };
  WeightRelay& relay = fleet.node(0).relay();
  const std::string manifest = *object(version.manifest);
  HoldDelta(relay, version, FingerprintOf(old), manifest,
            [](const std::string&) { return Object("other bytes"); });
  relay.SetLatest(version);
  fleet.node(1).Join(old, /*trainer=*/"", fleet.members(), FanOut::kChain);
  ASSERT_TRUE(fleet.node(1).AwaitDownloads(1));
  EXPECT_GT(fleet.node(1).counts().received, 0u);

  relay.Clear();
  HoldDelta(relay, version, FingerprintOf(old), manifest, object);
  ASSERT_TRUE(fleet.node(1).Await(version.version));
  fleet.ExpectOnlyPublished();
}

// Rollout 0 is a liar. Rollout 2 has version 2, as a delta from version 1, which rollout 1 holds.
// The trainer is dead.
class LiarTest : public testing::Test {
 protected:
  void SetUp() override {
    fleet_.Publish(old_, 1);
    fleet_.Join(2, old_);
    last_ = fleet_.Publish(Changed(0.25f), 2);
    ASSERT_TRUE(fleet_.node(2).Await(last_.version));
    fleet_.KillTrainer();
  }
  TensorSet Changed(float by) const {
    TensorSet weights = old_;
    for (size_t i = 0; i < 3000; ++i) weights.as<float>(0)[i * 7] += by;
    return weights;
  }

  const TensorSet old_ = RandomWeights(1);
  RelayFleet fleet_{std::vector<Fault>(3, Fault::kNone), 1};
  PublishedVersion last_;
};

// Its list has a delta to other weights under the fingerprint of version 2.
TEST_F(LiarTest, ARelayWhoseListLedToARefusedDeltaIsNotAskedAgain) {
  WeightPublisher wrong({.job = kFleetJob, .chunk_target_bytes = 4096}, Clock::Real());
  ASSERT_TRUE(wrong.Publish(old_, {1, 1}, "").ok());
  PublishedVersion lie = *wrong.Publish(Changed(0.5f), last_.version, "");
  weights::v1::Manifest manifest;
  ASSERT_TRUE(manifest.ParseFromString(*wrong.Find(lie.manifest, lie.version).object));
  ASSERT_EQ(manifest.kind(), weights::v1::Manifest::KIND_DELTA);
  manifest.set_state(last_.state.bytes());
  const std::string bytes = manifest.SerializeAsString();
  lie.manifest = Sha256(bytes);
  lie.state = last_.state;

  // It also has the manifest that was announced, without which nobody asks it for a list.
  WeightRelay& liar = fleet_.node(0).relay();
  liar.Begin(last_, {{.version = lie, .manifest = lie.manifest, .base = FingerprintOf(old_)}});
  liar.Add(last_.manifest, fleet_.publisher().Find(last_.manifest, last_.version).object);
  liar.Add(lie.manifest, Object(bytes));
  for (const weights::v1::Chunk& chunk : manifest.chunks()) {
    liar.Expect({chunk.sha256()});
    liar.Add(chunk.sha256(), wrong.Find(chunk.sha256(), lie.version).object);
  }
  liar.End(/*complete=*/true);
  fleet_.Join(1, old_);
  ASSERT_TRUE(fleet_.node(1).Await(last_.version));
  EXPECT_EQ(fleet_.node(1).counts().wrong, 1);
}

// What the liar says that a version has which nobody published.
enum class Claim { kHeldWeights, kUnknownWeights, kOlderVersion, kOlderWeights };
class LiarAnnouncesTest : public LiarTest, public testing::WithParamInterface<Claim> {};

TEST_P(LiarAnnouncesTest, ARelayThatAnnouncesAnUnknownVersionShutsOutNobodyAndIsNotBelieved) {
  PublishedVersion lie = last_;  // With its manifest, and weights that others have.
  lie.version = {GetParam() == Claim::kOlderVersion ? 1 : int64_t{1} << 40, 9};
  switch (GetParam()) {
    case Claim::kHeldWeights: lie.state = FingerprintOf(old_); break;
    case Claim::kUnknownWeights: lie.state = FingerprintOf(Changed(0.5f)); break;
    case Claim::kOlderVersion: break;
    case Claim::kOlderWeights: lie.manifest = std::string(32, 'm'); break;
  }
  fleet_.node(0).relay().SetLatest(lie);
  fleet_.Join(1, old_);
  ASSERT_TRUE(fleet_.node(1).Await(last_.version));
  fleet_.ExpectOnlyPublished();
}

INSTANTIATE_TEST_SUITE_P(Weights, LiarAnnouncesTest,
                         testing::Values(Claim::kHeldWeights, Claim::kUnknownWeights,
                                         Claim::kOlderVersion, Claim::kOlderWeights));

// Its manifest, which is read first, does not begin at what the rollout holds, so others are read
// too.
TEST(RelayTest, AVersionTwoDeltasAwayIsSentWithEachManifestOnce) {
  RelayFleet fleet({Fault::kNone}, 1);
  const TensorSet old = RandomWeights(1);
  TensorSet weights = old;
  fleet.Publish(old, 1);
  PublishedVersion last;
  uint64_t bytes = 0;
  for (int64_t v = 2; v <= 3; ++v) {
    weights.as<float>(0)[7] += 1;
    last = fleet.Publish(weights, v);
    bytes += fleet.publisher().edges().back().bytes;
    bytes += fleet.publisher().FindObject(last.manifest)->size();
  }
  fleet.Join(0, old);
  ASSERT_TRUE(fleet.node(0).Await(last.version));
  EXPECT_EQ(fleet.node(0).counts().received, bytes);
  fleet.ExpectOnlyPublished();
}

class FaultyRelayTest : public testing::TestWithParam<int> {};

// A chain in which the second one is bad.
TEST_P(FaultyRelayTest, W05W06ABadRelayIsPassedAndOnlyWhatIsMissingIsFetchedAgain) {
  const Fault fault = static_cast<Fault>(GetParam());
  RelayFleet fleet({Fault::kNone, fault, Fault::kNone, Fault::kNone}, 7);
  fleet.JoinAll(RandomWeights(1));
  const PublishedVersion version = fleet.Publish(RandomWeights(2), 1);
  for (size_t i = 0; i < fleet.size(); ++i) ASSERT_TRUE(fleet.node(i).Await(version.version)) << i;
  fleet.ExpectOnlyPublished();

  const FleetRollout::Counts counts = fleet.node(2).counts();
  const bool harmless =
      fault == Fault::kNone || fault == Fault::kRepeats || fault == Fault::kReorders;
  EXPECT_EQ(fleet.node(1).faults() > 0, fault != Fault::kNone);
  EXPECT_EQ(counts.left, harmless ? 0 : 1) << counts.last_fault;
  if (!harmless) {
    EXPECT_THAT(counts.last_fault, testing::HasSubstr(fleet.node(1).id()));
  }
  const bool lies = fault == Fault::kFlipsABit || fault == Fault::kSendsOtherBytes ||
                    fault == Fault::kNamesOtherSize || fault == Fault::kEndsEarly;
  EXPECT_EQ(counts.last_fault.find(" lied: ") != std::string::npos, lies) << counts.last_fault;
  const uint64_t whole = fleet.node(0).counts().received;
  EXPECT_EQ(counts.taken, whole);
  if (fault == Fault::kRepeats) {
    EXPECT_GT(counts.received, whole + whole / 2);
  } else {
    EXPECT_LE(counts.received, whole + 5000) << "at most the object with the fault came twice";
  }
  EXPECT_EQ(fleet.node(3).counts().received, whole) << "the one behind notices nothing";
}

INSTANTIATE_TEST_SUITE_P(Each, FaultyRelayTest, testing::Range(0, kFaults));

// The pieces of the first version show what is usual.
TEST(RelayTest, ARelayThatBecomesSlowIsLeftForTheOneBeforeIt) {
  RelayFleet fleet({Fault::kNone, Fault::kBecomesSlow, Fault::kNone}, 7);
  fleet.JoinAll(RandomWeights(1));
  const PublishedVersion first = fleet.Publish(RandomWeights(2), 1);
  ASSERT_TRUE(fleet.node(2).Await(first.version));
  EXPECT_EQ(fleet.node(2).counts().left, 0) << fleet.node(2).counts().last_fault;
  EXPECT_EQ(fleet.node(2).counts().parent, fleet.node(1).id());

  const PublishedVersion second = fleet.Publish(RandomWeights(3), 2);
  ASSERT_TRUE(fleet.node(2).Await(second.version));
  const FleetRollout::Counts counts = fleet.node(2).counts();
  EXPECT_EQ(counts.left, 1);
  EXPECT_THAT(counts.last_fault, testing::HasSubstr(fleet.node(1).id() + " slow"));
  EXPECT_EQ(counts.parent, fleet.node(0).id());
  EXPECT_GE(fleet.node(1).faults(), 4) << "it was judged by several pieces";
  fleet.ExpectOnlyPublished();
}

// The wait is what `sluice why` shows.
TEST(RelayTest, AFetchThatWaitsNamesTheObjectAndTheHolder) {
  RelayFleet fleet({Fault::kHangs, Fault::kNone}, 7);
  fleet.node(1).SetPatience(absl::Hours(1));
  fleet.JoinAll(RandomWeights(1));
  fleet.Publish(RandomWeights(2), 1);
  const absl::Duration until = Clock::Real()->Monotonic() + kFleetWithin;
  std::optional<ObjectFetcher::Wait> wait;
  while (!wait || fleet.node(0).faults() == 0) {
    ASSERT_LT(Clock::Real()->Monotonic(), until);
    wait = fleet.node(1).wait();
  }
  EXPECT_EQ(wait->holder, fleet.node(0).id());
  EXPECT_EQ(wait->object.size(), 16u);
  EXPECT_GT(wait->objects, 0u);
  EXPECT_EQ(wait->version, (PolicyVersion{1, 1}));
}

class RandomRelayTest : public testing::TestWithParam<uint64_t> {};

// Random histories: several versions, whole and as deltas, some rollouts bad, some that join late,
// and a trainer that dies once one rollout has the last version. That version is whole then: of
// deltas a relay holds only those to the newest version, which do not help one that is far behind.
TEST_P(RandomRelayTest, W05EachHonestRolloutEndsAtTheLastVersionAndNothingWrongIsOffered) {
  SplitMix64 random(GetParam());
  std::vector<Fault> faults(3 + random.Below(4), Fault::kNone);
  for (Fault& fault : faults) {
    if (random.Below(3) == 0) fault = static_cast<Fault>(random.Below(kFaults));
  }
  RelayFleet fleet(faults, GetParam());
  TensorSet weights = RandomWeights(GetParam());
  const TensorSet initial = weights;
  std::set<size_t> late;
  for (size_t i = 0; i < fleet.size(); ++i) {
    if (random.Below(4) == 0) late.insert(i);
    else fleet.Join(i, initial);
  }

  const int64_t versions = 1 + static_cast<int64_t>(random.Below(4));
  const bool trainer_dies = random.Below(2) == 0;
  PublishedVersion last;
  for (int64_t v = 1; v <= versions; ++v) {
    if (random.Below(3) == 0 || (trainer_dies && v == versions)) {
      weights = RandomWeights(random.Next());
    } else {
      for (int change = 0; change < 3000; ++change)
        weights.as<float>(0)[random.Below(40'000)] += 0.25f;
    }
    last = fleet.Publish(weights, v);
    if (random.Below(2) == 0 && late.size() < fleet.size()) {
      size_t waits = 0;
      while (late.contains(waits)) ++waits;
      ASSERT_TRUE(fleet.node(waits).Await(last.version)) << "seed " << GetParam();
    }
  }

  // A trainer may die once an honest rollout has all.
  size_t first = 0;
  while (first < fleet.size() && (late.contains(first) || faults[first] != Fault::kNone)) ++first;
  if (first < fleet.size() && trainer_dies) {
    ASSERT_TRUE(fleet.node(first).Await(last.version)) << "seed " << GetParam();
    fleet.KillTrainer();
  }
  for (const size_t i : late) fleet.Join(i, initial);
  for (size_t i = 0; i < fleet.size(); ++i) {
    ASSERT_TRUE(fleet.node(i).Await(last.version))
        << "seed " << GetParam() << ", " << fleet.node(i).id() << " with fault "
        << static_cast<int>(faults[i]) << ", left " << fleet.node(i).counts().last_fault;
  }
  fleet.ExpectOnlyPublished();
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomRelayTest, testing::Range(uint64_t{1}, uint64_t{11}));

TEST(RelayAccessTest, ARelayServesOnlyThoseOfItsJobAndTakesNoLeases) {
  RelayFleet fleet({Fault::kNone, Fault::kNone}, 1);
  const auto channel = *rpc::Connect(fleet.node(0).address(), {rpc::Role::kRollout});
  weights::v1::ListRequest list;
  list.mutable_call()->mutable_job()->set_incarnation(1);
  // A single attempt, without the repeats of rpc::Call().
  const auto ask = [&](const std::string& job, const std::string& worker) {
    list.mutable_call()->mutable_job()->set_job(job);
    list.mutable_call()->mutable_job()->set_worker(worker);
    rpc::ClientStream stream(*channel, *weights::v1::ListRequest::descriptor(), nullptr,
                             kFleetWithin);
    stream.Write(list);
    stream.WritesDone();
    weights::v1::ListResponse listed;
    (void)stream.Read(&listed);
    return stream.Finish();
  };
  EXPECT_EQ(ask(kFleetJob, "rollout-1"), absl::OkStatus());
  EXPECT_EQ(ReasonOf(ask(kFleetJob, "stranger")), "NOT_LISTED");
  EXPECT_EQ(ReasonOf(ask(std::string(32, 'f'), "rollout-1")), "NOT_LISTED");

  weights::v1::LeaseRequest lease;
  *lease.mutable_call() = list.call();
  lease.mutable_call()->mutable_job()->set_job(kFleetJob);
  lease.mutable_call()->mutable_job()->set_worker("rollout-1");
  weights::v1::LeaseResponse leased;
  EXPECT_TRUE(absl::IsFailedPrecondition(rpc::Call(*channel, lease, &leased)));
}

}  // namespace
}  // namespace sluice
