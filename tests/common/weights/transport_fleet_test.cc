// Fleets whose rollouts get versions in different ways: real servers, sockets, files and
// subscribers. What is compared is the weights that each rollout ends with, to the bit.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/id.h"
#include "common/base/mutex.h"
#include "common/base/splitmix.h"
#include "common/base/status.h"
#include "common/checkpoint/tensor_set.h"
#include "common/rpc/caller.h"
#include "common/rpc/server.h"
#include "common/shm/socket.h"
#include "common/testing/data.h"
#include "common/weights/convert.h"
#include "common/weights/file_transport.h"
#include "common/weights/publisher.h"
#include "common/weights/relay.h"
#include "common/weights/service.h"
#include "common/weights/shm_transport.h"
#include "common/weights/subscriber.h"
#include "common/weights/weight_delta.h"
#include "common/weights/weight_mirror.h"
#include "sluice/weights/v1/weights.grpc.pb.h"
#include "tests/common/weights/random_weights.h"

namespace sluice {
namespace {

constexpr char kFleetJob[] = "00112233445566778899aabbccddeeff";
constexpr absl::Duration kFleetWithin = absl::Seconds(60);

// How a rollout gets versions.
struct Ways {
  bool shared_memory = false, folder = false;
  std::string ucx_devices = "";  // Empty: no UCX.
  FanOut fan_out = FanOut::kStar;
  absl::Duration silent = absl::Seconds(20);
};

class FleetTest : public testing::Test {
 protected:
  // A rollout that applies what it is given, as an engine does.
  class Rollout {
   public:
    Rollout(std::string id, const rpc::CallerTable* callers)
        : id_(std::move(id)), relay_(std::make_shared<WeightRelay>()), weights_(callers) {
      weights_.SetRelay(kFleetJob, relay_, nullptr);
      grpc::Service* const services[] = {weights_.service()};
      server_ = *rpc::Server::Start({}, services);
    }
    ~Rollout() {
      subscriber_.reset();
      weights_.Shutdown();
      server_->Drain(absl::Seconds(5));
    }
    void OfferUcx(const std::string& devices) { weights_.OfferUcx(devices); }
    void ShareMemory() { ASSERT_EQ(weights_.ShareMemory(server_->address()), absl::OkStatus()); }

    void Join(const TensorSet& held, const Ways& ways, const std::string& folder,
              const std::string& trainer, std::vector<RelayMember> members) {
      {
        MutexLock lock(&mu_);
        held_ = held;
      }
      WeightSubscriber::Options options{.job = kFleetJob,
                                        .worker = id_,
                                        .incarnation = 1,
                                        .fan_out = ways.fan_out,
                                        .shared_memory = ways.shared_memory,
                                        .relay = relay_,
                                        .limits = {.silent = ways.silent}};
      if (!ways.ucx_devices.empty()) options.ucx_devices = ways.ucx_devices;
      if (ways.folder) options.folder = std::make_shared<FileTransport>(folder, kFleetJob);
      options.on_download_ended = [this](const ObjectFetcher::Stats& stats) {
        MutexLock lock(&mu_);
        for (const auto& [transport, bytes] : stats.used_by_transport) bytes_[transport] += bytes;
        if (!stats.last_fault.empty()) last_fault_ = stats.last_fault;
        parent_ = stats.parent;
        ++downloads_;
        changed_.NotifyAll();
      };
      subscriber_ = std::make_unique<WeightSubscriber>(
          std::move(options), held.specs(), FingerprintOf(held), [this](StagedWeights staged) {
            if (!Take(staged)) {
              subscriber_->OnRefused(staged.version, "it has another fingerprint", "");
              return;
            }
            subscriber_->OnActivated(staged.version, staged.state, absl::ZeroDuration());
            MutexLock lock(&mu_);
            version_ = staged.version;
            changed_.NotifyAll();
          });
      subscriber_->SetMembers(std::move(members));
      subscriber_->SetSource(trainer);
    }

    // Waits until it has the version. Returns whether it has.
    bool Await(PolicyVersion version) {
      const absl::Duration until = Clock::Real()->Monotonic() + kFleetWithin;
      MutexLock lock(&mu_);
      while (version_ != version) {
        if (Clock::Real()->Monotonic() > until) return false;
        changed_.WaitFor(&mu_, absl::Milliseconds(100));
      }
      return true;
    }

    // Waits until as many downloads have ended, well or not. Returns whether they have.
    bool AwaitDownloads(int count) {
      const absl::Duration until = Clock::Real()->Monotonic() + kFleetWithin;
      MutexLock lock(&mu_);
      while (downloads_ < count) {
        if (Clock::Real()->Monotonic() > until) return false;
        changed_.WaitFor(&mu_, absl::Milliseconds(100));
      }
      return true;
    }
    void SetSource(const std::string& trainer) { subscriber_->SetSource(trainer); }

    Fingerprint state() {
      MutexLock lock(&mu_);
      return FingerprintOf(held_);
    }
    std::map<std::string, uint64_t> bytes() {  // By transport.
      MutexLock lock(&mu_);
      return bytes_;
    }
    std::string last_fault() {
      MutexLock lock(&mu_);
      return last_fault_;
    }
    std::string parent() {
      MutexLock lock(&mu_);
      return parent_;
    }
    RelayMember member() const { return {id_, server_->address()}; }

   private:
    bool Take(const StagedWeights& staged) {
      MutexLock lock(&mu_);
      TensorSet next = staged.tensors != nullptr ? *staged.tensors : held_;
      const std::vector<DeltaTarget> targets = WholeTensors(&next);
      std::vector<Fingerprint> sums(next.size());
      if (staged.delta != nullptr) {
        for (const SignedChunk& part : staged.delta->chunks)
          part.chunk.Apply(part.sign, targets, absl::MakeSpan(sums));
      }
      if (!(FingerprintOf(next) == staged.state)) return false;
      held_ = std::move(next);
      return true;
    }

    const std::string id_;
    const std::shared_ptr<WeightRelay> relay_;
    WeightsServer weights_;
    std::unique_ptr<rpc::Server> server_;
    Mutex mu_;
    CondVar changed_;
    TensorSet held_ ABSL_GUARDED_BY(mu_);
    PolicyVersion version_ ABSL_GUARDED_BY(mu_);
    std::map<std::string, uint64_t> bytes_ ABSL_GUARDED_BY(mu_);
    std::string last_fault_ ABSL_GUARDED_BY(mu_), parent_ ABSL_GUARDED_BY(mu_);
    int downloads_ ABSL_GUARDED_BY(mu_) = 0;
    std::unique_ptr<WeightSubscriber> subscriber_;
  };

  FleetTest() : trainer_(&callers_) {
    std::vector<rpc::CallerTable::Worker> workers;
    std::vector<RelayMember> order;
    for (const char* id : {"rollout-0", "rollout-1", "rollout-2"}) {
      workers.push_back({id, rpc::Role::kRollout, 1});
      order.push_back({id, ""});
    }
    callers_.SetJob(kFleetJob, workers);
    trainer_.SetPublisher(kFleetJob, publisher_);
    grpc::Service* const services[] = {trainer_.service()};
    server_ = *rpc::Server::Start({}, services);
    for (const RelayMember& member :
         SortIntoChain(std::move(order), absl::StrCat(kFleetJob, " policy")))
      rollouts_.push_back(std::make_unique<Rollout>(member.id, &callers_));
  }
  ~FleetTest() override {
    rollouts_.clear();
    KillTrainer();
  }
  void KillTrainer() {
    if (std::exchange(trainer_dead_, true)) return;
    trainer_.Shutdown();
    server_->Drain(absl::ZeroDuration());
  }
  void ShareTrainersMemory() {
    ASSERT_EQ(trainer_.ShareMemory(server_->address()), absl::OkStatus());
  }

  // The rollouts are numbered by their places in the chain.
  Rollout& rollout(size_t i) { return *rollouts_[i]; }
  void Join(size_t i, const Ways& ways) {
    std::vector<RelayMember> members;
    for (const auto& rollout : rollouts_) members.push_back(rollout->member());
    rollout(i).Join(initial_, ways, folder_, trainer_dead_ ? "" : server_->address(), members);
  }
  // Publishes five versions, the third of them whole, and awaits each at the rollouts.
  PublishedVersion PublishSome(const std::vector<size_t>& at) {
    PublishedVersion last;
    TensorSet weights = initial_;
    for (int64_t v = 1; v <= 5; ++v) {
      if (v == 3) weights = RandomWeights(77);
      else
        for (size_t i = 0; i < 500; ++i) weights.as<float>(0)[i * 71] += 0.25f;
      last = *publisher_->Publish(weights, {1, v}, "");
      for (const size_t i : at) EXPECT_TRUE(rollout(i).Await(last.version)) << i;
    }
    return last;
  }

  const TensorSet initial_ = RandomWeights(1);
  const std::string folder_ = testing_data::TempPath("fleet-" + ToHex(RandomId16()));
  rpc::CallerTable callers_;
  WeightsServer trainer_;
  WeightMirror mirror_{{}, WeightFolderWriter(folder_, kFleetJob, 1)};
  const std::shared_ptr<WeightPublisher> publisher_ = std::make_shared<WeightPublisher>(
      WeightPublisher::Options{.job = kFleetJob,
                               .chunk_target_bytes = 4096,
                               .on_stored = [this] { mirror_.Write(*publisher_); }},
      Clock::Real());
  std::unique_ptr<rpc::Server> server_;
  bool trainer_dead_ = false;
  std::vector<std::unique_ptr<Rollout>> rollouts_;
};

class EachTransportTest : public FleetTest, public testing::WithParamInterface<std::string> {};

TEST_P(EachTransportTest, ARolloutEndsWithTheSameBitsAndAllOfThemCameByThisTransport) {
  ShareTrainersMemory();
  trainer_.OfferUcx("shm");
  Join(0, {.shared_memory = GetParam() == "shm",
           .folder = GetParam() == "file",
           .ucx_devices = GetParam() == "ucx" ? "shm" : ""});
  const PublishedVersion last = PublishSome({0});
  EXPECT_EQ(rollout(0).state(), last.state);
  EXPECT_EQ(rollout(0).last_fault(), "");
  EXPECT_EQ(rollout(0).parent(), GetParam() == "file" ? kFolderId : kOriginId);
  ASSERT_EQ(rollout(0).bytes().size(), 1u);
  EXPECT_GT(rollout(0).bytes()[GetParam()], 160'000u) << "a whole version came";
}

const auto kEachTransport = testing::Values("grpc", "shm", "file"
#ifdef SLUICE_UCX
                                            ,
                                            "ucx"
#endif
);
INSTANTIATE_TEST_SUITE_P(Each, EachTransportTest, kEachTransport,
                         [](const auto& info) { return info.param; });

#ifdef SLUICE_UCX
TEST_F(FleetTest, RolloutsReadFromTheOneBeforeThemOverUcxWhileItStillReads) {
  trainer_.OfferUcx("shm");
  for (size_t i = 0; i < 3; ++i) rollout(i).OfferUcx("shm");
  for (size_t i = 0; i < 3; ++i) Join(i, {.ucx_devices = "shm", .fan_out = FanOut::kChain});
  const PublishedVersion last = PublishSome({0, 1, 2});
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(rollout(i).state(), last.state) << i;
    EXPECT_EQ(rollout(i).last_fault(), "") << i;
    EXPECT_EQ(rollout(i).bytes().size(), 1u) << i;
    EXPECT_GT(rollout(i).bytes()["ucx"], 0u) << i;
    EXPECT_EQ(rollout(i).parent(), i == 0 ? "" : rollout(i - 1).member().id) << i;
  }
}
#endif

TEST_F(FleetTest, ARolloutGoesOnByCallsIfTheTrainerHasNoUcxAndTheReasonIsNamed) {
  trainer_.OfferUcx(absl::FailedPreconditionError("trainer-0 was started without --ucx-devices"));
  Join(0, {.ucx_devices = "shm"});
  const PublishedVersion last = PublishSome({0});
  EXPECT_EQ(rollout(0).state(), last.state);
  EXPECT_THAT(rollout(0).last_fault(),
              testing::HasSubstr("the trainer by ucx gone: trainer-0 was started without"));
  EXPECT_GT(rollout(0).bytes()["grpc"], 0u);
}

TEST_F(FleetTest, AMixedFleetEndsWithTheSameBitsAlsoOneThatJoinsWhenTheTrainerIsDead) {
  ShareTrainersMemory();
  Join(0, {.shared_memory = true, .fan_out = FanOut::kChain});
  Join(1, {.fan_out = FanOut::kChain});
  const PublishedVersion last = PublishSome({0, 1});
  KillTrainer();
  Join(2, {.folder = true});
  ASSERT_TRUE(rollout(2).Await(last.version));

  const char* const ways[] = {"shm", "grpc", "file"};
  const std::string parents[] = {"", rollout(0).member().id, "weights.dir"};
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(rollout(i).state(), last.state) << i;
    EXPECT_EQ(rollout(i).bytes().size(), 1u) << i;
    EXPECT_GT(rollout(i).bytes()[ways[i]], 0u) << i;
    EXPECT_EQ(rollout(i).parent(), parents[i]) << i;
  }
}

// A trainer that announces a version and does nothing else.
class Announcer : public weights::v1::WeightsService::Service {
 public:
  explicit Announcer(const PublishedVersion& version) : version_(version) {}

 private:
  grpc::Status Watch(grpc::ServerContext* context, const weights::v1::WatchRequest*,
                     grpc::ServerWriter<weights::v1::Latest>* out) override {
    // A beat now and then, so that the end of the connection is noticed.
    for (out->Write(ToProto(version_)); !context->IsCancelled();) {
      Mutex mu;
      MutexLock lock(&mu);
      CondVar().WaitFor(&mu, absl::Milliseconds(20));
    }
    return grpc::Status::CANCELLED;
  }

  const PublishedVersion version_;
};

TEST_F(FleetTest, AVersionThatTheTrainerHasAnnouncedComesFromTheFolderWhenTheTrainerIsGone) {
  const PublishedVersion last = PublishSome({});
  Announcer announcer(last);
  grpc::Service* const services[] = {&announcer};
  const auto server = *rpc::Server::Start({}, services);
  rollout(0).Join(initial_, {.folder = true}, folder_, server->address(), {});
  ASSERT_TRUE(rollout(0).AwaitDownloads(1)) << "it has heard of the version";
  rollout(0).SetSource("");
  ASSERT_TRUE(rollout(0).Await(last.version));
  EXPECT_EQ(rollout(0).state(), last.state);
  server->Drain(absl::ZeroDuration());
}

// The first rollout of a host takes a version by calls, and the others take it from its memory
// while it still comes.
TEST_F(FleetTest, OnAHostWithoutTheTrainerTheFirstRolloutOfTheChainSharesWhatItGets) {
  for (const auto& rollout : rollouts_) rollout->ShareMemory();
  for (size_t i = 0; i < 3; ++i) Join(i, {.shared_memory = true, .fan_out = FanOut::kChain});
  const PublishedVersion last = PublishSome({0, 1, 2});
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(rollout(i).state(), last.state) << i;
    EXPECT_EQ(rollout(i).last_fault(), "") << i;
    EXPECT_EQ(rollout(i).bytes().size(), 1u) << i;
    EXPECT_GT(rollout(i).bytes()[i == 0 ? "grpc" : "shm"], 0u) << i;
    EXPECT_EQ(rollout(i).parent(), i == 0 ? "" : rollout(0).member().id) << i;
  }
}

// Every object in the folder has a wrong bit: each version is whole and right nevertheless.
TEST_F(FleetTest, WhatIsDamagedInTheFolderComesFromTheTrainer) {
  const PublishedVersion last = PublishSome({});
  const std::string objects = folder_ + "/1/objects/";
  const auto names = ListDir(objects);
  ASSERT_EQ(names.status(), absl::OkStatus());
  for (const std::string& name : *names) {
    std::string bytes = *ReadFile(objects + name);
    bytes[bytes.size() / 2] ^= 1;
    ASSERT_EQ(WriteFileAtomic(objects + name, bytes), absl::OkStatus());
  }
  Join(0, {.folder = true});
  ASSERT_TRUE(rollout(0).Await(last.version));
  EXPECT_EQ(rollout(0).state(), last.state);
  EXPECT_THAT(rollout(0).last_fault(), testing::HasSubstr("weights.dir lied"));
  EXPECT_EQ(rollout(0).bytes().count("file"), 0u);
}

// Somebody holds the socket of the trainer's memory and never answers.
TEST_F(FleetTest, ARolloutWhoseSharedMemoryDoesNotAnswerGoesOnByCalls) {
  const auto mute = shm::Socket::Listen(ShmSocketName(server_->address()));
  ASSERT_EQ(mute.status(), absl::OkStatus());
  Join(0, {.shared_memory = true, .silent = absl::Milliseconds(50)});
  const PublishedVersion last = PublishSome({0});
  EXPECT_EQ(rollout(0).state(), last.state);
  EXPECT_THAT(rollout(0).last_fault(), testing::HasSubstr("the trainer by shm silent"));
  EXPECT_EQ(rollout(0).bytes().count("shm"), 0u);
}

}  // namespace
}  // namespace sluice
