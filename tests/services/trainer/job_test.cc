#include "services/trainer/job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "common/algorithms/presets.h"
#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/base/file.h"
#include "common/checkpoint/init.h"
#include "common/checkpoint/model_dir.h"
#include "common/cores/core_share.h"
#include "common/rpc/caller.h"
#include "common/weights/service.h"
#include "services/trainer/core/checkpoint.h"
#include "services/trainer/core/evaluations.h"
#include "services/trainer/core/lineage.h"
#include "services/trainer/held_out_rows.h"
#include "sluice/job/v1/job.pb.h"
#include "tests/services/trainer/loop.h"
#include "tests/services/trainer/tiny_model.h"

namespace sluice::trainer {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

// A trainer's job and a real queue. A test of reinforcement learning also starts a LoopActor, which
// fills the queue.
class JobTest : public ::testing::Test {
 protected:
  struct Seen {
    Mutex mu;
    CondVar changed;
    std::vector<TrainingJob::Standing> standings ABSL_GUARDED_BY(mu);
    bool ended() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
      return !standings.empty() && standings.back().phase != "loading" &&
             standings.back().phase != "training";
    }
    std::map<int64_t, job::v1::StepReport> steps ABSL_GUARDED_BY(mu);
    std::vector<std::string> events ABSL_GUARDED_BY(mu);
  };

  JobConfig Config(int64_t incarnation, int64_t max_steps) {
    JobConfig config;
    config.id = kJob;
    config.name = "loop";
    config.incarnation = incarnation;
    config.queue = queue_.address();
    config.settings.max_staleness = 1;
    config.settings.group_size = 4;
    config.settings.max_response = 8;
    config.settings.optimizer.lr = 1e-3;
    config.model_dir = digits_;
    config.init_seed = 1;
    config.chat_template = "model";
    config.sources = {{"digits", "{digits}=", {{"prompt", "digits"}, {"answer", "digits"}}}};
    config.checkpoint_dir = dir_;
    config.checkpoint_every_steps = 2;
    config.max_steps = max_steps;
    return config;
  }

  std::unique_ptr<TrainingJob> Start(JobConfig config) {
    TrainingJob::Hooks hooks;
    hooks.on_standing = [this](const TrainingJob::Standing& standing) {
      MutexLock lock(&seen_.mu);
      seen_.standings.push_back(standing);
      seen_.changed.NotifyAll();
    };
    hooks.on_step = [this](const job::v1::StepReport& report) {
      MutexLock lock(&seen_.mu);
      seen_.steps[report.k()] = report;
      seen_.changed.NotifyAll();
    };
    hooks.on_event = [this](common::v1::Event event) {
      MutexLock lock(&seen_.mu);
      seen_.events.push_back(event.code());
      if (on_event_) on_event_(event);
    };
    return std::make_unique<TrainingJob>(std::move(config), "trainer-0", &cores_, &weights_,
                                         nullptr, std::move(hooks));
  }

  // Waits until the job has ended, and returns how.
  TrainingJob::Standing AwaitEnd() {
    MutexLock lock(&seen_.mu);
    while (!seen_.ended()) seen_.changed.Wait(&seen_.mu);
    return seen_.standings.back();
  }

  // Waits until step k is done. Returns false if the job ended before.
  bool AwaitStep(int64_t k) {
    MutexLock lock(&seen_.mu);
    while (seen_.steps.count(k) == 0 && !seen_.ended()) seen_.changed.Wait(&seen_.mu);
    return seen_.steps.count(k) > 0;
  }

  // The newest checkpoint. None of the checkpoints is damaged.
  std::optional<Checkpoint> Newest() {
    std::vector<std::string> damaged;
    auto checkpoint = CheckpointStore({.dir = dir_}).ReadNewest(&damaged);
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
    EXPECT_TRUE(damaged.empty());
    return checkpoint.ok() ? *std::move(checkpoint) : std::nullopt;
  }

  // The steps in metrics.jsonl, in the order of its lines.
  std::vector<int64_t> StepsOfHistory() {
    std::vector<int64_t> steps;
    for (const absl::string_view line :
         absl::StrSplit(*ReadFile(dir_ + "/metrics.jsonl"), '\n', absl::SkipEmpty())) {
      steps.push_back(nlohmann::json::parse(line).at("step").get<int64_t>());
    }
    return steps;
  }

  // 0 .. count - 1.
  static std::vector<int64_t> Steps(int64_t count) {
    std::vector<int64_t> steps(static_cast<size_t>(count));
    std::iota(steps.begin(), steps.end(), 0);
    return steps;
  }

  static void ExpectBalanced(const common::v1::Ledger& ledger) {
    int64_t dropped = 0;
    for (const auto& [reason, count] : ledger.dropped()) dropped += count;
    EXPECT_EQ(ledger.accepted(), ledger.durable() + ledger.applied() + ledger.live() + dropped);
  }

  // Sets a supervised job of `steps` steps in the queue. Returns the config of its trainer.
  JobConfig Supervise(int steps) {
    queue::v1::QueueSpec spec = LoopQueue::Spec(digits_ + "/train.jsonl", 8, 0);
    spec.set_rows_only(true);
    spec.set_group_size(1);
    spec.set_group_min(1);
    spec.clear_tasks();
    spec.set_max_steps(steps);
    queue_.SetJob(spec, 1);

    JobConfig config = Config(1, steps);
    config.settings.kind = Settings::Kind::kSft;
    return config;
  }

  const std::string digits_ = SLUICE_SOURCE_DIR "/configs/examples/digits";
  const std::string dir_ = FreshDir();
  LoopQueue queue_;
  rpc::CallerTable callers_;
  CoreShare cores_{1};
  WeightsServer weights_{&callers_};
  Seen seen_;
  std::function<void(const common::v1::Event&)> on_event_;  // Runs on the job's threads.
};

TEST_F(JobTest, SupervisedRowsAreTrainedAndTheCheckpointProvesWhichOnes) {
  const JobConfig config = Supervise(5);
  const std::unique_ptr<TrainingJob> job = Start(config);
  const TrainingJob::Standing end = AwaitEnd();
  EXPECT_EQ(end.phase, "done") << end.cause;
  EXPECT_EQ(end.version, (PolicyVersion{1, 5}));

  const std::optional<Checkpoint> checkpoint = Newest();
  ASSERT_TRUE(checkpoint.has_value());
  EXPECT_EQ(checkpoint->state.version, (PolicyVersion{1, 5}));

  const common::v1::Ledger ledger = queue_.Stats().ledger();
  EXPECT_EQ(ledger.hash(), checkpoint->state.ledger_hash);
  EXPECT_EQ(ledger.durable(), 40);  // Five steps of eight rows.
  ExpectBalanced(ledger);
  EXPECT_EQ(StepsOfHistory(), Steps(5));

  MutexLock lock(&seen_.mu);
  EXPECT_LT(seen_.steps.at(4).values().at("loss"), seen_.steps.at(0).values().at("loss"));
}

TEST_F(JobTest, ASupervisedJobReportsTheLossOfHeldOutRowsAndKeepsTheBestCheckpoint) {
  JobConfig config = Supervise(6);
  config.checkpoint_every_steps = 100;
  config.eval_every_steps = 2;
  config.eval_sources = config.sources;
  config.eval_sources[0].path = digits_ + "/heldout.jsonl";
  const std::unique_ptr<TrainingJob> job = Start(config);
  const TrainingJob::Standing end = AwaitEnd();
  EXPECT_EQ(end.phase, "done") << end.cause;

  // A report carries the evaluation of the version from which its step began, and the last report
  // that of the last version.
  MutexLock lock(&seen_.mu);
  std::map<int64_t, double> losses;
  for (const auto& [k, report] : seen_.steps) {
    const auto version = report.values().find("eval/version");
    if (version == report.values().end()) continue;
    EXPECT_EQ(version->second, k == 5 ? 6 : k);
    EXPECT_EQ(report.values().at("eval/score"), report.values().at("eval/digits/loss"));
    EXPECT_GT(report.values().at("eval/digits/rows"), 0);
    losses[static_cast<int64_t>(version->second)] = report.values().at("eval/digits/loss");
  }
  ASSERT_THAT(losses, SizeIs(4));  // Of the versions 0, 2, 4 and 6.
  EXPECT_LT(losses.at(6), losses.at(0));

  EXPECT_EQ(end.evaluated.versions, 4);
  EXPECT_EQ(end.evaluated.first, losses.at(0));
  EXPECT_EQ(end.evaluated.last, losses.at(6));
  EXPECT_EQ(end.evaluated.best, std::min({losses.at(2), losses.at(4), losses.at(6)}));
  EXPECT_EQ(LinkedVersion(dir_, kBestLink), end.evaluated.best_version);
  EXPECT_EQ(StepsOfHistory(), Steps(6));
}

// Rounding makes sums depend on the parts that are added up, and results must not depend on the
// machine.
TEST_F(JobTest, HeldOutRowsAreScoredInTheSamePartsWhateverMicroBatchesAndRanks) {
  JobConfig config = Supervise(1);
  config.eval_sources = config.sources;
  config.eval_sources[0].path = digits_ + "/heldout.jsonl";
  std::vector<std::vector<size_t>> parts;
  for (const int world : {1, 3}) {
    config.settings.micro_batch_tokens = world == 1 ? 9216 : 1;
    config.ranks.world = world;
    const absl::StatusOr<HeldOutRows> rows = HeldOutRows::Read(*ReadModelDir(digits_), config);
    ASSERT_TRUE(rows.ok()) << rows.status();
    std::vector<size_t>& sizes = parts.emplace_back();
    const auto score = [&](const std::vector<Group>& part) -> absl::StatusOr<HeldOutSums> {
      sizes.push_back(part.size());
      return HeldOutSums{.rows = 1, .tokens = 1, .loss = 1};
    };
    ASSERT_TRUE(rows->Evaluate(score, *Clock::Real()).ok());
  }
  EXPECT_EQ(parts[0], parts[1]);
}

TEST_F(JobTest, HeldOutRowsThatCannotBeReadAreCountedAsLeftOut) {
  JobConfig config = Supervise(1);
  config.skip_bad_rows = true;
  config.eval_sources = config.sources;
  config.eval_sources[0].path = dir_ + "/rows.jsonl";
  ASSERT_TRUE(WriteFileAtomic(config.eval_sources[0].path,
                              "{\"digits\": \"0794\"}\nnone\n{\"digits\": \"1\"}\n{\n")
                  .ok());
  const absl::StatusOr<HeldOutRows> rows = HeldOutRows::Read(*ReadModelDir(digits_), config);
  ASSERT_TRUE(rows.ok()) << rows.status();
  const auto score = [](const std::vector<Group>& part) -> absl::StatusOr<HeldOutSums> {
    return HeldOutSums{.rows = static_cast<int64_t>(part.size()), .tokens = 1, .loss = 1};
  };
  const absl::StatusOr<Evaluation> evaluation = rows->Evaluate(score, *Clock::Real());
  ASSERT_TRUE(evaluation.ok()) << evaluation.status();
  EXPECT_EQ(evaluation->values.at("eval/digits/rows"), 2);
  EXPECT_EQ(evaluation->values.at("eval/digits/left_out"), 2);
}

TEST_F(JobTest, ASupervisedJobWhoseHeldOutRowsCannotBeScoredFailsAtItsStart) {
  JobConfig config = Supervise(4);
  config.eval_every_steps = 2;
  config.eval_sources = config.sources;
  config.eval_sources[0].path = digits_ + "/heldout.jsonl";
  config.eval_sources[0].columns = {{"prompt", "digits"}};  // There is no answer.
  const std::unique_ptr<TrainingJob> job = Start(config);
  const TrainingJob::Standing end = AwaitEnd();
  EXPECT_EQ(end.phase, "failed");
  EXPECT_THAT(end.cause, HasSubstr("row 0 of digits"));
  MutexLock lock(&seen_.mu);
  EXPECT_TRUE(seen_.steps.empty()) << "nothing was trained";
}

TEST_F(JobTest, AJobRunsToItsLastStepAtEachStaleness) {
  for (uint32_t staleness : {0u, 1u, 4u}) {
    SCOPED_TRACE(staleness);
    LoopQueue queue;
    queue::v1::QueueSpec spec = LoopQueue::Spec(digits_ + "/train.jsonl", 4, staleness);
    spec.set_max_steps(6);
    queue.SetJob(spec, 1);

    JobConfig config = Config(1, 6);
    config.queue = queue.address();
    config.checkpoint_dir = FreshDir();
    config.settings.max_staleness = staleness;
    config.settings.algorithm.loss.entropy = 0.01;

    {
      MutexLock lock(&seen_.mu);
      seen_.standings.clear();
      seen_.steps.clear();
    }

    LoopActor actor(queue);
    const std::unique_ptr<TrainingJob> job = Start(config);

    const TrainingJob::Standing end = AwaitEnd();
    EXPECT_EQ(end.phase, "done") << end.cause;

    const common::v1::Ledger ledger = queue.Stats().ledger();
    EXPECT_EQ(ledger.durable(), 6 * 16);  // A step has four groups of four members.
    ExpectBalanced(ledger);

    MutexLock lock(&seen_.mu);
    ASSERT_EQ(seen_.steps.size(), 6u);
    for (const auto& [k, report] : seen_.steps) {
      EXPECT_EQ(report.values().at("reward_count"), 16);
      for (const auto& [lag, tokens] : report.staleness())
        EXPECT_LE(std::stoll(lag), staleness) << "step " << k;
    }
  }
}

TEST_F(JobTest, LeavingWithACheckpointEndsTheStepAndASuccessorGoesOn) {
  const queue::v1::QueueSpec spec = LoopQueue::Spec(digits_ + "/train.jsonl", 4, 1);
  queue_.SetJob(spec, 1);
  LoopActor actor(queue_);

  // The job has more steps than it can train: it ends because it is told to leave.
  std::unique_ptr<TrainingJob> job = Start(Config(1, 1'000'000));
  ASSERT_TRUE(AwaitStep(2));
  job->Leave(/*checkpoint=*/true);
  EXPECT_EQ(AwaitEnd().phase, "left");

  job.reset();
  const std::optional<Checkpoint> left = Newest();
  ASSERT_TRUE(left.has_value());
  EXPECT_GE(left->state.version.number, 3);
  EXPECT_EQ(queue_.Stats().ledger().durable_version(), left->state.version.number);

  {
    MutexLock lock(&seen_.mu);
    seen_.standings.clear();
  }
  queue_.SetJob(spec, 2);
  const int64_t last = left->state.version.number + 4;
  job = Start(Config(2, last));

  const TrainingJob::Standing end = AwaitEnd();
  EXPECT_EQ(end.phase, "done") << end.cause;
  EXPECT_EQ(Newest()->state.version, (PolicyVersion{2, last}));
  EXPECT_EQ(queue_.Stats().ledger().hash(), Newest()->state.ledger_hash);
  ExpectBalanced(queue_.Stats().ledger());
}

TEST_F(JobTest, ACriticBeginsWithTheWeightsOfItsDirectoryAndAnUnfitOneFailsTheJob) {
  queue_.SetJob(LoopQueue::Spec(digits_ + "/train.jsonl", 4, 1), 1);
  LoopActor actor(queue_);
  const ModelDir model = *ReadModelDir(digits_);
  const TensorSet weights = *InitWeights(model.config, 77);
  const std::string critic = FreshDir() + "/critic";
  ASSERT_TRUE(WriteModelDir(critic, model, weights).ok());
  JobConfig config = Config(1, 1);
  config.settings.algorithm.advantage.kind = "gae";
  config.settings.algorithm.loss.kind = "ppo";
  config.settings.critic.lr = 1e-9;  // The weights stay nearly what they are.
  config.critic_dir = critic;
  std::unique_ptr<TrainingJob> job = Start(config);
  const TrainingJob::Standing end = AwaitEnd();
  EXPECT_EQ(end.phase, "done") << end.cause;
  job.reset();

  const TensorSet found = *ReadAll(*Newest()->critic);
  const std::string name = "model.norm.weight", other = "model.layers.0.mlp.up_proj.weight";
  for (const std::string& tensor : {name, other}) {
    const auto is = found.as<float>(static_cast<size_t>(found.Find(tensor)));
    const auto was = weights.as<float>(static_cast<size_t>(weights.Find(tensor)));
    EXPECT_THAT(is, testing::Pointwise(testing::FloatNear(1e-6f), was)) << tensor;
  }

  config.critic_dir = digits_;  // It has no weights.
  config.checkpoint_dir = FreshDir();
  {
    MutexLock lock(&seen_.mu);
    seen_.standings.clear();
  }
  job = Start(config);
  const TrainingJob::Standing refused = AwaitEnd();
  EXPECT_EQ(refused.phase, "failed");
  EXPECT_THAT(refused.cause, HasSubstr("trainer.critic.path"));
}

TEST_F(JobTest, ACriticAndTheKlCoefficientGoOnFromTheCheckpointAndAreInNoPublication) {
  const queue::v1::QueueSpec spec = LoopQueue::Spec(digits_ + "/train.jsonl", 4, 1);
  queue_.SetJob(spec, 1);
  LoopActor actor(queue_);
  const auto config = [&](int64_t incarnation, int64_t max_steps) {
    JobConfig with = Config(incarnation, max_steps);
    with.settings.algorithm = FindRow(PresetRows(), "ppo_critic")->value;
    with.settings.algorithm.advantage.kl_target = 1e-3;
    with.settings.algorithm.advantage.kl_horizon = 100;
    with.settings.reference = true;
    with.settings.critic.lr = 1e-3;
    with.settings.critic.warmup = 1;
    return with;
  };
  std::unique_ptr<TrainingJob> job = Start(config(1, 4));
  EXPECT_EQ(AwaitEnd().phase, "done");
  job.reset();
  const std::optional<Checkpoint> left = Newest();
  ASSERT_TRUE(left.has_value() && left->critic != nullptr);
  EXPECT_EQ(left->state.critic_updates, 4);
  EXPECT_EQ(left->state.updates, 3);
  EXPECT_NE(left->state.reward_kl, 0.001);
  EXPECT_EQ(left->model.Find("value_head.weight"), -1);

  double coefficient = 0;
  {
    MutexLock lock(&seen_.mu);
    // In the warm-up no number of the policy's update has a meaning.
    EXPECT_EQ(seen_.steps[0].values().count("lr"), 0u);
    EXPECT_EQ(seen_.steps[0].values().at("skipped"), 0);
    for (const char* name : {"value_loss", "value_grad_norm", "value_lr", "reward_kl_coef"}) {
      EXPECT_EQ(seen_.steps[0].values().count(name), 1u) << name;
      EXPECT_EQ(seen_.steps[3].values().count(name), 1u) << name;
    }
    coefficient = seen_.steps[3].values().at("reward_kl_coef");
    seen_.standings.clear();
  }
  EXPECT_NE(coefficient, left->state.reward_kl) << "it is that of the step, before it is adapted";
  queue_.SetJob(spec, 2);
  job = Start(config(2, 6));
  const TrainingJob::Standing end = AwaitEnd();
  EXPECT_EQ(end.phase, "done") << end.cause;
  EXPECT_EQ(Newest()->state.critic_updates, 6);
  MutexLock lock(&seen_.mu);
  EXPECT_EQ(seen_.steps[4].values().at("reward_kl_coef"), left->state.reward_kl);
}

TEST_F(JobTest, ATrainerWhoseLeasesEndGoesOnAndTrainsEachTrajectoryOnce) {
  queue::v1::QueueSpec spec = LoopQueue::Spec(digits_ + "/train.jsonl", 4, 1);
  spec.set_max_steps(30);
  queue_.SetJob(spec, 1);
  LoopActor actor(queue_);
  const std::unique_ptr<TrainingJob> job = Start(Config(1, 30));
  // In each step, so that a lease ends before, while and after its batch is read or trained.
  for (int64_t k = 0; k < 29 && AwaitStep(k); ++k) queue_.EndTrainerLeases(1);

  const TrainingJob::Standing end = AwaitEnd();
  EXPECT_EQ(end.phase, "done") << end.cause;
  EXPECT_EQ(end.version, (PolicyVersion{1, 30}));
  EXPECT_GT(queue_.ended_leases(), 0);

  const absl::StatusOr<LineageSummary> lineage =
      CheckLineage(*ReadFile(Newest()->path + "/lineage.jsonl"), 30);
  ASSERT_TRUE(lineage.ok()) << lineage.status();
  EXPECT_EQ(lineage->trajectories, 30 * 16);
  EXPECT_EQ(lineage->hash, queue_.Stats().ledger().hash());
  ExpectBalanced(queue_.Stats().ledger());
}

TEST_F(JobTest, CoresAreLentWhileTheJobWaitsForData) {
  const std::string path = dir_ + "-cores";
  ASSERT_TRUE(WriteCorePlan(path, {2, {{"rollout-0", 1}, {"trainer-0", 1}}}).ok());
  const auto rollout = *CoreShare::Open(path, "rollout-0"),
             trainer = *CoreShare::Open(path, "trainer-0");
  unlink(path.c_str());
  const CoreShare::Busy sampling(rollout.get());

  TrainingJob::Hooks hooks;
  std::atomic<int> while_loading = 0;
  hooks.on_standing = [&](const TrainingJob::Standing& standing) {
    if (standing.phase == "loading") while_loading = rollout->threads();
  };
  queue_.SetJob(LoopQueue::Spec(digits_ + "/train.jsonl", 4, 1), 1);
  TrainingJob job(Config(1, 10), "trainer-0", trainer.get(), &weights_, nullptr, std::move(hooks));

  // Nobody samples, so that no data comes and the trainer lends its core.
  while (while_loading == 0 || rollout->threads() != 2) std::this_thread::yield();
  EXPECT_EQ(while_loading, 1);
  job.Leave(false);
  job.Wait();
  EXPECT_EQ(rollout->threads(), 2);
}

#ifdef SLUICE_FAILPOINTS
TEST_F(JobTest, WhereverItBreaksASuccessorTrainsEachTrajectoryOnce) {
  queue::v1::QueueSpec spec = LoopQueue::Spec(digits_ + "/train.jsonl", 4, 1);
  spec.set_max_steps(20);
  queue_.SetJob(spec, 1);
  LoopActor actor(queue_);
  int64_t trainer_incarnation = 1;
  for (const char* failpoint :
       {"trainer.step.before_apply", "trainer.step.after_apply", "trainer.checkpoint.before_rename",
        "trainer.durable.before", "trainer.publish.before"}) {
    SCOPED_TRACE(failpoint);
    ASSERT_TRUE(ArmFailpoint(failpoint, "error", /*nth=*/3).ok());
    std::unique_ptr<TrainingJob> job = Start(Config(trainer_incarnation, 20));
    EXPECT_EQ(AwaitEnd().phase, "failed");  // The failpoint was hit.

    job.reset();
    queue_.SetJob(spec, ++trainer_incarnation);
    MutexLock lock(&seen_.mu);
    seen_.standings.clear();
  }

  const std::unique_ptr<TrainingJob> job = Start(Config(trainer_incarnation, 20));
  const TrainingJob::Standing end = AwaitEnd();
  EXPECT_EQ(end.phase, "done") << end.cause;

  const std::optional<Checkpoint> checkpoint = Newest();
  ASSERT_TRUE(checkpoint.has_value());

  const absl::StatusOr<LineageSummary> lineage =
      CheckLineage(*ReadFile(checkpoint->path + "/lineage.jsonl"), 20);
  ASSERT_TRUE(lineage.ok()) << lineage.status();
  EXPECT_EQ(lineage->trajectories, 20 * 16);
  EXPECT_EQ(StepsOfHistory(), Steps(20));
  EXPECT_THAT(*ListDir(dir_ + "/tensorboard"), SizeIs(trainer_incarnation));
  EXPECT_EQ(lineage->hash, queue_.Stats().ledger().hash());
  EXPECT_EQ(queue_.Stats().ledger().durable(), 20 * 16);
  ExpectBalanced(queue_.Stats().ledger());
}
#endif

TEST_F(JobTest, ALineageThatIsDamagedUnderItSendsTheTrainerBackToAWholeCheckpoint) {
  queue::v1::QueueSpec spec = LoopQueue::Spec(digits_ + "/train.jsonl", 4, 1);
  spec.set_max_steps(12);
  queue_.SetJob(spec, 1);
  LoopActor actor(queue_);

  std::string damaged;
  // The event comes before the next checkpoint begins.
  on_event_ = [&](const common::v1::Event& event) {
    if (event.code() != "checkpoint" || !absl::EndsWith(event.message(), "step-4") ||
        !damaged.empty())
      return;
    damaged = event.message();
    EXPECT_TRUE(WriteFileAtomic(damaged + "/lineage.jsonl", "").ok());
  };

  std::unique_ptr<TrainingJob> job = Start(Config(1, 12));
  const TrainingJob::Standing first = AwaitEnd();
  EXPECT_EQ(first.phase, "restore");
  EXPECT_THAT(first.cause, HasSubstr(damaged + "/lineage.jsonl"));
  EXPECT_THAT(first.cause, HasSubstr("goes back to the newest checkpoint that verifies"));

  job.reset();
  {
    MutexLock lock(&seen_.mu);
    seen_.standings.clear();
  }
  queue_.SetJob(spec, 2);
  job = Start(Config(2, 12));

  const TrainingJob::Standing end = AwaitEnd();
  EXPECT_EQ(end.phase, "done") << end.cause;

  const auto newest = CheckpointStore({.dir = dir_}).ReadNewest(nullptr);
  ASSERT_TRUE(newest.ok() && newest->has_value());
  EXPECT_EQ((*newest)->state.version, (PolicyVersion{2, 12}));
  EXPECT_EQ(queue_.Stats().ledger().hash(), (*newest)->state.ledger_hash);
  ExpectBalanced(queue_.Stats().ledger());
}

TEST_F(JobTest, ACheckpointOfAnotherJobIsRefusedAtTheStart) {
  std::unique_ptr<TrainingJob> job = Start(Supervise(2));
  EXPECT_EQ(AwaitEnd().phase, "done");

  job.reset();
  {
    MutexLock lock(&seen_.mu);
    seen_.standings.clear();
  }
  JobConfig other = Config(1, 4);
  other.id = "ffffffffffffffffffffffffffffffff";
  job = Start(other);

  const TrainingJob::Standing end = AwaitEnd();
  EXPECT_EQ(end.phase, "failed");
  EXPECT_THAT(end.cause, HasSubstr(kJob));
  EXPECT_THAT(end.cause, HasSubstr(other.id));
}

TEST_F(JobTest, AJobWhoseNameWasUsedBeforeSaysThatItStartsFromTheModel) {
  JobConfig config = Supervise(2);
  config.checkpoint_dir = dir_ + "/loop-01234567";
  std::unique_ptr<TrainingJob> job = Start(config);
  EXPECT_EQ(AwaitEnd().phase, "done");
  job.reset();

  std::vector<std::string> told;
  on_event_ = [&](const common::v1::Event& event) {
    if (event.code() == "earlier_job") told.push_back(event.message());
  };
  config.checkpoint_dir = dir_ + "/loop-ffffffff";
  job = Start(config);
  job->Wait();

  ASSERT_EQ(told.size(), 1u);
  EXPECT_THAT(told[0], HasSubstr(dir_ + "/loop-01234567/step-2"));
  EXPECT_THAT(told[0], HasSubstr(kJob));
}

TEST_F(JobTest, ATrainerWhoseSuccessorIsListedEndsAsFenced) {
  queue::v1::QueueSpec spec = LoopQueue::Spec(digits_ + "/train.jsonl", 4, 1);
  queue_.SetJob(spec, 1);
  LoopActor actor(queue_);
  const std::unique_ptr<TrainingJob> job = Start(Config(1, 1000));
  ASSERT_TRUE(AwaitStep(1));
  queue_.SetJob(spec, 2);
  EXPECT_EQ(AwaitEnd().phase, "fenced");
}

TEST_F(JobTest, AQueueThatNeverHeardOfTheJobGoesOnFromTheCheckpointsCursor) {
  const queue::v1::QueueSpec spec = LoopQueue::Spec(digits_ + "/train.jsonl", 4, 1);
  auto queue = std::make_unique<LoopQueue>();
  queue->SetJob(spec, 1);
  auto actor = std::make_unique<LoopActor>(*queue);
  JobConfig config = Config(1, 4);
  config.queue = queue->address();
  std::unique_ptr<TrainingJob> job = Start(config);

  EXPECT_EQ(AwaitEnd().phase, "done");

  job.reset();
  actor.reset();
  queue.reset();
  {
    MutexLock lock(&seen_.mu);
    seen_.standings.clear();
  }
  queue_.SetJob(spec, 2);  // Another queue, which never heard of the job, starts from the cursor.
  LoopActor anew(queue_);
  job = Start(Config(2, 7));

  const TrainingJob::Standing end = AwaitEnd();
  EXPECT_EQ(end.phase, "done") << end.cause;
  EXPECT_EQ(queue_.Stats().ledger().hash(), Newest()->state.ledger_hash);
  EXPECT_EQ(queue_.Stats().ledger().durable(), 7 * 16);
  ExpectBalanced(queue_.Stats().ledger());
}

TEST_F(JobTest, KeysOfTheConfigThatAreNotActedOnAreLogged) {
  JobConfig config = Supervise(1);
  config.model_dir = FreshDir() + "/model";
  std::filesystem::copy(digits_, config.model_dir);
  std::string text = *ReadFile(config.model_dir + "/config.json");
  text.insert(text.find('{') + 1, R"("auto_map": {"AutoModelForCausalLM": "modeling.Model"},)");
  ASSERT_TRUE(WriteFileAtomic(config.model_dir + "/config.json", text).ok());

  testing::internal::CaptureStderr();
  std::unique_ptr<TrainingJob> job = Start(config);
  const TrainingJob::Standing end = AwaitEnd();
  job.reset();

  const std::string logged = testing::internal::GetCapturedStderr();
  EXPECT_EQ(end.phase, "done") << end.cause;
  EXPECT_THAT(logged, HasSubstr("\"model_keys_ignored\""));
  EXPECT_THAT(logged, HasSubstr("\"keys\":\"auto_map\""));
}

TEST_F(JobTest, AMissingModelIsAFailureThatNamesIt) {
  queue_.SetJob(LoopQueue::Spec(digits_ + "/train.jsonl", 4, 1), 1);
  JobConfig config = Config(1, 4);
  config.model_dir = "/nowhere/model";
  const std::unique_ptr<TrainingJob> job = Start(config);

  const TrainingJob::Standing end = AwaitEnd();
  EXPECT_EQ(end.phase, "failed");
  EXPECT_THAT(end.cause, HasSubstr("/nowhere/model"));
}

}  // namespace
}  // namespace sluice::trainer
