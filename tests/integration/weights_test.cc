#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/checkpoint/model_dir.h"
#include "tests/integration/faults.h"
#include "tests/integration/harness/tmpfs.h"
#include "tests/integration/metrics_page.h"

namespace sluice::integration {
namespace {

// The bytes of weights of this kind that a daemon counts.
double WeightBytes(const MetricsPage& page, const std::string& kind) {
  return SumOf(page, "sluice_weights_bytes_total", "kind", kind);
}

class WeightsTest : public FaultsTest {
 protected:
  // Starts a job with a folder of weights, in a file system of `size` if it is not empty.
  void StartWithFolder(const ClusterOptions& options, const std::string& size,
                       std::vector<std::string> sets) {
    cluster_ = std::make_unique<Cluster>(options);
    const std::string folder = cluster_->dir() + "/weights";
    if (!size.empty()) {
      disk_ = std::make_unique<Tmpfs>(folder, size);
      if (!disk_->mounted()) GTEST_SKIP() << "only root may mount a file system";
    }
    ASSERT_EQ(cluster_->Start(), absl::OkStatus());
    steps_ = kEndless;
    sets.push_back("weights.dir=" + folder);
    auto job = SubmitDigits(cluster_.get(), kEndless, std::move(sets));
    ASSERT_EQ(job.status(), absl::OkStatus());
    job_ = *std::move(job);
  }
  void TearDown() override {
    job_.reset();
    disk_.reset();  // Before the cluster removes its folder.
  }

 private:
  std::unique_ptr<Tmpfs> disk_;
};

// The example has 98,944 parameters, and most steps at this learning rate change few of them in
// bfloat16.
TEST_F(WeightsTest, VersionsComeAsDeltasThroughTheLossOfRolloutsAndTrainers) {
  ASSERT_NO_FATAL_FAILURE(
      StartJob({.rollouts = 2}, {"model.dtype=bfloat16", "trainer.optimizer.lr=1e-5",
                                 "checkpoint.every_steps=10", "resources.rollout.max=2"}));
  ASSERT_NO_FATAL_FAILURE(KillAndRestart("rollout-0"));
  ASSERT_NO_FATAL_FAILURE(KillAndRestart("trainer-0"));
  ASSERT_EQ(job_->AwaitStep(fault_step_ + 200, kLong), absl::OkStatus());

  const ModelDir model = *ReadModelDir(SLUICE_SOURCE_DIR "/configs/examples/digits");
  double whole = 0;
  for (const TensorSpec& spec : model.config.Parameters(DType::kBF16))
    whole += static_cast<double>(*NumBytes(spec));
  const double published = WeightBytes(ReadMetrics(cluster_->ops("trainer-0")), "published");
  EXPECT_GT(published, whole) << "the first version of a trainer is whole";
  EXPECT_LT(published, 50 * whole) << "200 versions";
  for (const std::string id : {"rollout-0", "rollout-1"}) {
    const double fetched = WeightBytes(ReadMetrics(cluster_->ops(id)), "fetched");
    EXPECT_GT(fetched, 0) << id;
    EXPECT_LT(fetched, 50 * whole) << id;
  }
  ExpectGoesOn();
}

// One trainer and two rollouts, which share no memory here as if each were on a host of its own.
TEST_F(WeightsTest, ARolloutThatStartsWhileTheTrainerIsDeadTakesTheNewestVersionFromTheFolder) {
  ASSERT_NO_FATAL_FAILURE(StartWithFolder(
      {.rollouts = 2}, "", {"weights.shared_memory=false", "resources.rollout.max=2"}));
  ASSERT_EQ(job_->AwaitStep(kBefore, kLong), absl::OkStatus());
  ASSERT_EQ(cluster_->Kill("rollout-1"), absl::OkStatus());
  ASSERT_EQ(cluster_->Kill("trainer-0"), absl::OkStatus());
  RecordFault();
  ASSERT_EQ(cluster_->Start("rollout-1"), absl::OkStatus());
  const absl::Time deadline = absl::Now() + kLong;
  while (SumOf(ReadMetrics(cluster_->ops("rollout-1")), "sluice_weights_transport_bytes_total",
               "transport", "file") == 0)
    ASSERT_LT(absl::Now(), deadline) << "it reads nothing from the folder";
  ASSERT_EQ(cluster_->Start("trainer-0"), absl::OkStatus());
  ExpectGoesOn();
}

TEST_F(WeightsTest, AFolderOfWeightsWithoutRoomIsReportedAndTheJobGoesOn) {
  ASSERT_NO_FATAL_FAILURE(StartWithFolder({}, "512k", {}));
  if (IsSkipped()) return;
  ASSERT_EQ(job_->AwaitEvent("weights_dir_behind", kLong), absl::OkStatus());
  RecordFault();
  ExpectGoesOn();
}

TEST_F(WeightsTest, RolloutsOnTheTrainersHostReadItsMemoryAndTheCommandSaysWhy) {
  ASSERT_NO_FATAL_FAILURE(StartJob({.rollouts = 2}, {"resources.rollout.max=2"}));
  ASSERT_EQ(job_->AwaitStep(kBefore, kLong), absl::OkStatus());
  const MetricsPage page = ReadMetrics(cluster_->ops("rollout-0"));
  const auto came_by = [&](const char* transport) {
    return SumOf(page, "sluice_weights_transport_bytes_total", "transport", transport);
  };
  EXPECT_GT(came_by("shm"), 0);
  EXPECT_EQ(came_by("grpc"), 0);
  const auto said = cluster_->Sluice({"weights", "path", job_->id(), "rollout-0"});
  ASSERT_EQ(said.status(), absl::OkStatus());
  EXPECT_THAT(said->out, testing::HasSubstr("rollout-0 fetches from trainer by shm: the trainer is "
                                            "on this host and shares its memory"));
  RecordFault();
  ExpectGoesOn();
}

// Three rollouts to which whole versions are broadcast: the trainer, and one Gloo rank in each.
class BroadcastTest : public FaultsTest {
 protected:
  // Goes on, step by step, until all rollouts have got something more by broadcasts.
  void AwaitBroadcasts() {
    std::map<std::string, double> before;
    const auto came = [&](const std::string& id) {
      return SumOf(ReadMetrics(cluster_->ops(id)), "sluice_weights_transport_bytes_total",
                   "transport", "c10d");
    };
    const std::vector<std::string> ids = {"rollout-0", "rollout-1", "rollout-2"};
    for (const std::string& id : ids) before[id] = came(id);
    const absl::Time deadline = absl::Now() + kLong;
    while (!std::all_of(ids.begin(), ids.end(),
                        [&](const std::string& id) { return came(id) > before[id]; })) {
      ASSERT_LT(absl::Now(), deadline) << "nothing is broadcast";
      ASSERT_EQ(job_->AwaitStep(job_->steps() + 1, kLong), absl::OkStatus());
    }
  }
};

TEST_F(BroadcastTest, AKilledOrStoppedRankHoldsUpNoOtherAndTakesPartAgainLater) {
  ASSERT_NO_FATAL_FAILURE(
      StartJob({.rollouts = 3},
               {"weights.broadcast=gloo", "weights.encoding=full", "weights.shared_memory=false",
                "resources.rollout.min=3", "resources.rollout.max=3"}));
  ASSERT_NO_FATAL_FAILURE(AwaitBroadcasts());
  ASSERT_NO_FATAL_FAILURE(KillAndRestart("rollout-1"));
  cluster_->Signal("rollout-2", SIGSTOP);
  ASSERT_EQ(cluster_->process("rollout-2").AwaitStopped(), absl::OkStatus());
  ASSERT_EQ(job_->AwaitStepsSince(absl::Now(), kStepsAfter, kLong), absl::OkStatus());
  cluster_->Signal("rollout-2", SIGCONT);
  RecordFault();
  ASSERT_NO_FATAL_FAILURE(AwaitBroadcasts());
  ExpectGoesOn();
}

// Three rollouts that pass versions on to each other. All that the trainer announces is followed by
// each of them, so the second and third have what they have from one before them.
class ChainTest : public FaultsTest {
 protected:
  void StartChain() {
    ASSERT_NO_FATAL_FAILURE(
        StartJob({.rollouts = 3}, {"weights.fan_out=chain", "weights.shared_memory=false",
                                   "resources.rollout.min=3", "resources.rollout.max=3"}));
  }

  double Relayed() const {
    double sum = 0;
    for (const char* id : {"rollout-0", "rollout-1", "rollout-2"}) {
      if (cluster_->process(id).running())
        sum += WeightBytes(ReadMetrics(cluster_->ops(id)), "relayed");
    }
    return sum;
  }
  // Goes on, step by step, until the rollouts have passed on something more.
  void AwaitRelayed() {
    const double before = Relayed();
    const absl::Time deadline = absl::Now() + kLong;
    while (Relayed() <= before) {
      ASSERT_LT(absl::Now(), deadline) << "no rollout passes anything on";
      ASSERT_EQ(job_->AwaitStep(job_->steps(), kLong), absl::OkStatus());
    }
  }
};

TEST_F(ChainTest, RolloutsPassVersionsOnAlsoAfterOneWasKilledAndTheTrainerToo) {
  ASSERT_NO_FATAL_FAILURE(StartChain());
  ASSERT_NO_FATAL_FAILURE(AwaitRelayed());
  for (const char* id : {"rollout-1", "trainer-0", "rollout-0", "rollout-2"}) {
    SCOPED_TRACE(id);
    ASSERT_NO_FATAL_FAILURE(KillAndRestart(id));
    ASSERT_NO_FATAL_FAILURE(AwaitRelayed());
  }
  ExpectGoesOn();
}

// Which one is a parent of another depends on the job's id, so each is stopped once.
TEST_F(ChainTest, ARolloutThatIsStoppedHoldsUpNoOther) {
  ASSERT_NO_FATAL_FAILURE(StartChain());
  ASSERT_NO_FATAL_FAILURE(AwaitRelayed());
  for (const char* id : {"rollout-0", "rollout-1", "rollout-2"}) {
    SCOPED_TRACE(id);
    cluster_->Signal(id, SIGSTOP);
    ASSERT_EQ(cluster_->process(id).AwaitStopped(), absl::OkStatus());
    const absl::Time stopped = absl::Now();
    ASSERT_EQ(job_->AwaitStepsSince(stopped, kStepsAfter, kLong), absl::OkStatus());
    cluster_->Signal(id, SIGCONT);
    RecordFault();
  }
  ExpectGoesOn();
}

TEST_F(ChainTest, TheCommandsShowVersionsAndParentsAndEachRolloutHoldsWhatWasPublished) {
  ASSERT_NO_FATAL_FAILURE(StartChain());
  ASSERT_NO_FATAL_FAILURE(AwaitRelayed());
  const auto run = [&](std::vector<std::string> args, int exit = 0) {
    args.insert(args.begin(), "weights");
    const auto said = cluster_->Sluice(args);
    EXPECT_EQ(said.status(), absl::OkStatus());
    if (!said.ok()) return std::string();
    EXPECT_EQ(said->exit, exit) << said->out << said->err;
    return said->out + said->err;
  };

  const std::string list = run({"list", job_->id()});
  EXPECT_THAT(list, testing::HasSubstr("trainer")) << "the parent of the first";
  for (const char* id : {"rollout-0", "rollout-1", "rollout-2"})
    EXPECT_THAT(list, testing::HasSubstr(id));
  EXPECT_THAT(run({"show", job_->id(), "latest"}), testing::HasSubstr("layout"));
  EXPECT_THAT(run({"show", job_->id(), "9:9"}, 5), testing::HasSubstr("kept are"));
  EXPECT_THAT(run({"path", job_->id()}), testing::HasSubstr("load all"));
  EXPECT_THAT(run({"path", job_->id(), "nobody"}, 5), testing::HasSubstr("known are"));

  const std::string verified = run({"verify", job_->id()});
  for (const char* id : {"rollout-0", "rollout-1", "rollout-2"})
    EXPECT_THAT(verified, testing::ContainsRegex(absl::StrCat(id, ".*equal")));

  // A pinned version outlives the ones that come after it.
  EXPECT_THAT(run({"pin", job_->id(), "latest"}), testing::HasSubstr("is pinned"));
  const auto is_pinned = [&] { return absl::StrContains(run({"list", job_->id()}), "pinned"); };
  ASSERT_EQ(job_->AwaitStepsSince(absl::Now(), kStepsAfter, kLong), absl::OkStatus());
  EXPECT_TRUE(is_pinned());
  ExpectGoesOn();
}

}  // namespace
}  // namespace sluice::integration
