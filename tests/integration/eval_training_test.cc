#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/file.h"
#include "common/rpc/stream.h"
#include "common/testing/data.h"
#include "tests/integration/faults.h"

// A job whose versions are evaluated while it trains (its `eval` block).
namespace sluice::integration {
namespace {

using testing::HasSubstr;
using testing::IsSupersetOf;

constexpr int kEvery = 20;
constexpr int kLast = 100;

class EvalTrainingTest : public FaultsTest {
 protected:
  // Starts the example. It is evaluated every kEvery versions, on 200 rows it does not train on.
  void StartEvaluated(ClusterOptions options = {}, std::vector<std::string> more = {}) {
    ASSERT_NO_FATAL_FAILURE(WriteRows());
    std::vector<std::string> sets = {
        absl::StrCat("eval.every_steps=", kEvery),
        absl::StrCat("eval.datasets=[{name: heldout, path: ", rows_,
                     ", prompt: digits, answer: digits, format: \"{digits}=\"}]"),
        "checkpoint.keep_last=100"};
    sets.insert(sets.end(), more.begin(), more.end());
    ASSERT_NO_FATAL_FAILURE(StartJob(options, sets, kLast));
  }

  void WriteRows() {
    const auto all = ReadFile(SLUICE_SOURCE_DIR "/configs/examples/digits/heldout.jsonl");
    ASSERT_EQ(all.status(), absl::OkStatus());
    std::vector<std::string> lines = absl::StrSplit(*all, '\n');
    lines.resize(200);
    rows_ = testing_data::TempPath("rows.jsonl");
    ASSERT_EQ(WriteFileAtomic(rows_, absl::StrJoin(lines, "\n") + "\n"), absl::OkStatus());
  }

  // The steps as the controller has stored them. A watch that was open all along does not get again
  // the steps that a trainer repeats.
  std::map<int64_t, job::v1::StepReport> History() {
    job::v1::WatchRequest request;
    request.set_job(job_->id());
    rpc::ClientStream stream(cluster_->controller(), *request.GetDescriptor());
    stream.Write(request);
    stream.WritesDone();
    std::map<int64_t, job::v1::StepReport> history;
    for (job::v1::WatchResponse item; stream.Read(&item);) {
      if (item.has_step()) history[item.step().k()] = item.step();
    }
    EXPECT_EQ(stream.Finish(), absl::OkStatus());
    return history;
  }

  // The values of each evaluated version in that history.
  std::map<int64_t, std::map<std::string, double>> Evaluated() {
    const std::map<int64_t, job::v1::StepReport> history = History();
    EXPECT_EQ(history.size(), size_t{kLast});
    std::map<int64_t, std::map<std::string, double>> evaluated;
    for (const auto& [k, report] : history) {
      const auto version = report.values().find("eval/version");
      if (version == report.values().end()) continue;
      const bool first = evaluated
                             .try_emplace(static_cast<int64_t>(version->second),
                                          report.values().begin(), report.values().end())
                             .second;
      EXPECT_TRUE(first) << "version " << version->second << " is in the history twice";
      EXPECT_GE(k + 1, version->second);
    }
    return evaluated;
  }

  // Each version that was due is in the history, or an event says that it was skipped. The values
  // in the history are, in bits, those that `sluice eval` computes from the version's checkpoint.
  void ExpectEvaluatedExactly(const job::v1::JobStatus& end) {
    const auto evaluated = Evaluated();
    std::set<int64_t> known;
    for (const auto& [version, values] : evaluated) known.insert(version);
    EXPECT_THAT(known, IsSupersetOf({0, kLast}));

    for (const common::v1::Event& event : job_->events()) {
      int64_t version = 0;
      if (event.code() != "eval_skipped") continue;
      ASSERT_EQ(std::sscanf(event.message().c_str(), "version %ld", &version), 1)
          << event.message();
      known.insert(version);
    }
    for (int64_t version = 0; version <= kLast; version += kEvery)
      EXPECT_TRUE(known.contains(version)) << version;

    const std::string folder = std::filesystem::path(end.result().checkpoint()).parent_path();
    double best = -1;
    int64_t best_version = -1;
    for (const auto& [version, values] : evaluated) {
      if (version == 0) continue;
      const auto alone = cluster_->Sluice({"eval",
                                           absl::StrCat(folder, "/step-", version),
                                           "--data",
                                           rows_,
                                           "--prompt",
                                           "digits",
                                           "--answer",
                                           "digits",
                                           "--format",
                                           "{digits}=",
                                           "--chat-template",
                                           "none",
                                           "--verifier",
                                           "text",
                                           "--args",
                                           R"({"property": "reversed"})",
                                           "--max-tokens",
                                           "7",
                                           "-o",
                                           "json"});
      ASSERT_EQ(alone.status(), absl::OkStatus());
      ASSERT_EQ(alone->exit, 0) << alone->err;
      const nlohmann::json result = nlohmann::json::parse(alone->out);
      EXPECT_EQ(values.at("eval/heldout/reward"), result["score_mean"]) << "version " << version;
      EXPECT_EQ(values.at("eval/heldout/pass@1"), result["pass"]["1"]) << "version " << version;
      EXPECT_EQ(values.at("eval/heldout/rows"), 200);

      if (values.at("eval/score") <= best) continue;
      best = values.at("eval/score");
      best_version = version;
    }

    const job::v1::EvalSummary& summary = end.result().eval();
    EXPECT_EQ(summary.versions(), evaluated.size());
    EXPECT_EQ(summary.first(), evaluated.at(0).at("eval/score"));
    EXPECT_EQ(summary.last(), evaluated.at(kLast).at("eval/score"));
    EXPECT_EQ(summary.best(), best);
    EXPECT_EQ(summary.best_version(), best_version);
    EXPECT_EQ(summary.best_checkpoint(), absl::StrCat(folder, "/step-", best_version));
    EXPECT_FALSE(PathExists(folder + "/evaluating"));
  }

  job::v1::JobStatus AwaitSuccess() {
    const auto end = job_->AwaitEnd(kLong);
    EXPECT_EQ(end.status(), absl::OkStatus());
    if (!end.ok()) return {};
    EXPECT_EQ(end->state(), job::v1::JOB_STATE_SUCCEEDED) << Text(*end);
    EXPECT_EQ(CheckLedgerBalances(*end), absl::OkStatus());
    return *end;
  }

  int CountEvents(absl::string_view code) {
    int count = 0;
    for (const common::v1::Event& event : job_->events()) count += event.code() == code;
    return count;
  }

  std::string rows_;
};

TEST_F(EvalTrainingTest, VersionsAreEvaluatedWhileTheJobTrainsAndTheBestCheckpointIsKept) {
  ASSERT_NO_FATAL_FAILURE(StartEvaluated());
  const job::v1::JobStatus end = AwaitSuccess();
  ASSERT_NO_FATAL_FAILURE(ExpectEvaluatedExactly(end));

  const std::string out = cluster_->dir() + "/best";
  const auto exported = cluster_->Sluice({"job", "export", job_->id(), "--best", "-o", out});
  ASSERT_EQ(exported.status(), absl::OkStatus());
  EXPECT_EQ(exported->exit, 0) << exported->err;
  EXPECT_THAT(exported->err, HasSubstr(end.result().eval().best_checkpoint()));
  EXPECT_EQ(*ReadFile(out + "/model.safetensors"),
            *ReadFile(end.result().eval().best_checkpoint() + "/model.safetensors"));
}

TEST_F(EvalTrainingTest, AnEvaluationThatGoesOnInTheLastStepsIsInTheHistoryToo) {
  ASSERT_NO_FATAL_FAILURE(StartEvaluated({}, {absl::StrCat("eval.every_steps=", kLast - 2)}));
  AwaitSuccess();
  std::vector<int64_t> versions;
  for (const auto& [version, values] : Evaluated()) versions.push_back(version);
  EXPECT_THAT(versions, testing::ElementsAre(0, kLast - 2, kLast));
}

TEST_F(EvalTrainingTest, TheBestCheckpointIsNotPruned) {
  ASSERT_NO_FATAL_FAILURE(
      StartEvaluated({}, {"checkpoint.keep_last=1", "checkpoint.keep_every_steps=0"}));
  const job::v1::JobStatus end = AwaitSuccess();
  const job::v1::EvalSummary& eval = end.result().eval();
  EXPECT_TRUE(PathExists(eval.best_checkpoint() + "/model.safetensors"));

  const std::filesystem::path folder = std::filesystem::path(eval.best_checkpoint()).parent_path();
  EXPECT_EQ(std::filesystem::read_symlink(folder / "best").string(),
            absl::StrCat("step-", eval.best_version()));
}

TEST_F(EvalTrainingTest, ARolloutKilledAmidAnEvaluationChangesNoResult) {
  ASSERT_NO_FATAL_FAILURE(StartEvaluated());
  ASSERT_EQ(cluster_->Arm("rollout-0", "rollout.evaluate.step", "kill", 12), absl::OkStatus());
  ASSERT_EQ(cluster_->AwaitKilled("rollout-0", kLong), absl::OkStatus());
  ASSERT_EQ(cluster_->Start("rollout-0"), absl::OkStatus());

  const job::v1::JobStatus end = AwaitSuccess();
  EXPECT_EQ(CountEvents("eval_again"), 1);
  ExpectEvaluatedExactly(end);
}

TEST_F(EvalTrainingTest, ATrainerKilledAmidAnEvaluationGoesOnWithIt) {
  ASSERT_NO_FATAL_FAILURE(StartEvaluated());
  ASSERT_EQ(cluster_->Arm("trainer-0", "trainer.evaluation.asked", "kill", 1), absl::OkStatus());
  ASSERT_EQ(cluster_->AwaitKilled("trainer-0", kLong), absl::OkStatus());
  ASSERT_EQ(cluster_->Start("trainer-0"), absl::OkStatus());
  ExpectEvaluatedExactly(AwaitSuccess());
}

TEST_F(EvalTrainingTest, ATrainerKilledAsItHasStoredAnEvaluationTellsItStill) {
  ASSERT_NO_FATAL_FAILURE(StartEvaluated());
  ASSERT_EQ(cluster_->Arm("trainer-0", "trainer.evaluation.stored", "kill", 2), absl::OkStatus());
  ASSERT_EQ(cluster_->AwaitKilled("trainer-0", kLong), absl::OkStatus());
  ASSERT_EQ(cluster_->Start("trainer-0"), absl::OkStatus());
  ExpectEvaluatedExactly(AwaitSuccess());
}

TEST_F(EvalTrainingTest, AControllerKilledMeanwhileForgetsNothing) {
  ASSERT_NO_FATAL_FAILURE(StartEvaluated());
  ASSERT_EQ(job_->AwaitEvent("evaluation", kLong), absl::OkStatus());
  ASSERT_EQ(cluster_->Kill("controller-0"), absl::OkStatus());
  ASSERT_EQ(cluster_->Start("controller-0"), absl::OkStatus());
  ExpectEvaluatedExactly(AwaitSuccess());
}

}  // namespace
}  // namespace sluice::integration
