#include "services/rollout/core/eval/row_scoring.h"

#include <map>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice {
namespace {

using ::testing::ElementsAre;

const std::vector<EvalText> kAnswers = {{.text = "a"}, {.text = "b"}};

// A scorer that gives these results for both answers, one after the other, then scores of 1.
class Script {
 public:
  explicit Script(std::vector<absl::Status> results) : results_(std::move(results)) {}
  RowScores Run() {
    const size_t call = calls_++;
    RowScores scores;
    for (size_t i = 0; i < kAnswers.size(); ++i) {
      if (call < results_.size() && !results_[call].ok()) scores.verdicts.push_back(results_[call]);
      else scores.verdicts.push_back(EvalVerdict{.score = 1});
    }
    return scores;
  }
  size_t calls() const { return calls_; }

 private:
  const std::vector<absl::Status> results_;
  size_t calls_ = 0;
};

struct Outcome {
  RowScores scores;
  size_t calls = 0;
  std::vector<absl::Duration> rests;
};

Outcome Score(std::vector<absl::Status> results, bool ends = false) {
  Script script(std::move(results));
  Outcome outcome;
  outcome.scores = ScoreWithRetries(
      [&](absl::Span<const EvalText>, const std::string&) { return script.Run(); }, kAnswers, "{}",
      [&](absl::Duration duration) {
        outcome.rests.push_back(duration);
        return !ends;
      });
  outcome.calls = script.calls();
  return outcome;
}

TEST(RowScoringTest, AFaultIsTriedThreeTimesWithLongerRests) {
  const absl::Status fault = absl::UnavailableError("the judge is gone");
  Outcome healed = Score({fault, fault});
  EXPECT_TRUE(healed.scores.verdicts[0].ok());
  EXPECT_THAT(healed.rests, ElementsAre(absl::Seconds(2), absl::Seconds(8)));

  const Outcome lasting = Score({fault, fault, fault});
  EXPECT_EQ(lasting.calls, 3u);
  EXPECT_EQ(lasting.scores.verdicts[1].status(), fault) << "it never becomes a number";
}

TEST(RowScoringTest, WhatIsBusyIsAskedForTenMinutes) {
  const absl::Status busy = absl::ResourceExhaustedError("429");
  EXPECT_TRUE(Score(std::vector<absl::Status>(600, busy)).scores.verdicts[0].ok());

  const Outcome given_up = Score(std::vector<absl::Status>(10000, busy));
  EXPECT_EQ(given_up.calls, 601u);
  EXPECT_EQ(given_up.scores.verdicts[0].status(), busy);
}

TEST(RowScoringTest, WhatHasNoScoreForGoodIsAskedOnce) {
  EXPECT_EQ(Score({absl::InvalidArgumentError("no gold")}).calls, 1u);
  EXPECT_EQ(Score({absl::CancelledError("ends")}).calls, 1u);
}

TEST(RowScoringTest, TheEndOfTheEvaluationEndsTheTries) {
  EXPECT_EQ(Score({absl::UnavailableError("gone")}, /*ends=*/true).calls, 1u);
}

TEST(RowScoringTest, AFaultOfOneAnswerIsTriedThoughAnotherIsOnlyBusy) {
  int calls = 0;
  const RowScores scores = ScoreWithRetries(
      [&](absl::Span<const EvalText>, const std::string&) {
        ++calls;
        return RowScores{
            .generation = 1,
            .verdicts = {absl::ResourceExhaustedError("busy"), absl::InternalError("broken")}};
      },
      kAnswers, "{}", [](absl::Duration) { return true; });
  EXPECT_EQ(calls, 3);
  EXPECT_EQ(scores.verdicts[1].status().code(), absl::StatusCode::kInternal);
}

TEST(RowScoringTest, RowsAreScoredOnThreadsAndTakenByTheCaller) {
  Mutex mu;
  CondVar changed;
  int together = 0;
  // Each of two rows is scored only once the other one has begun.
  const EvalScorer scorer = [&](absl::Span<const EvalText>, const std::string& row) {
    MutexLock lock(&mu);
    ++together;
    changed.NotifyAll();
    while (together < 2) changed.Wait(&mu);
    return RowScores{.generation = row == "1" ? 1u : 2u, .verdicts = {EvalVerdict{}}};
  };
  std::map<std::string, uint32_t> taken;
  RowScoring scoring(2, &scorer);
  for (const std::string row : {"1", "2"}) {
    scoring.Score({{.text = "a"}}, row,
                  [&taken, row](const RowScores& scores) { taken[row] = scores.generation; });
  }
  EXPECT_EQ(scoring.waiting(), 2u);
  while (scoring.waiting() > 0) {
    scoring.Await(absl::Seconds(10));
    scoring.Collect();
  }
  EXPECT_EQ(taken, (std::map<std::string, uint32_t>{{"1", 1}, {"2", 2}}));
}

}  // namespace
}  // namespace sluice
