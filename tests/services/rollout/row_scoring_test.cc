#include "services/rollout/core/eval/row_scoring.h"

#include <map>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
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
  ManualClock clock;
  Outcome outcome;
  outcome.scores = ScoreWithRetries(
      [&](absl::Span<const EvalText>, const std::string&) { return script.Run(); }, kAnswers, "{}",
      /*whole_rows=*/true,
      [&](absl::Duration duration) {
        clock.Advance(duration);
        outcome.rests.push_back(duration);
        return !ends;
      },
      &clock);
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
      kAnswers, "{}", /*whole_rows=*/true, [](absl::Duration) { return true; });
  EXPECT_EQ(calls, 3);
  EXPECT_EQ(scores.verdicts[1].status().code(), absl::StatusCode::kInternal);
}

TEST(RowScoringTest, TheTimeOfCallsThatFindABusyScorerCountsToo) {
  ManualClock clock;
  int calls = 0;
  const RowScores scores = ScoreWithRetries(
      [&](absl::Span<const EvalText> answers, const std::string&) {
        ++calls;
        clock.Advance(absl::Minutes(3));
        return RowScores{.verdicts = std::vector<absl::StatusOr<EvalVerdict>>(
                             answers.size(), absl::ResourceExhaustedError("busy"))};
      },
      kAnswers, "{}", /*whole_rows=*/false,
      [&](absl::Duration duration) {
        clock.Advance(duration);
        return true;
      },
      &clock);
  EXPECT_EQ(calls, 5) << "at 3, 6, 9, 12 and 15 minutes; ten minutes after the first it gives up";
  EXPECT_TRUE(absl::IsResourceExhausted(scores.verdicts[0].status()));
}

// A scorer whose first call scores "a" and fails on "b". Later ones score all by `generation`.
class HalfScorer {
 public:
  explicit HalfScorer(uint32_t generation) : generation_(generation) {}
  RowScores Run(bool whole_rows) {
    return ScoreWithRetries(
        [this](absl::Span<const EvalText> answers, const std::string&) {
          asked_.push_back(answers.size());
          const bool first = asked_.size() == 1;
          RowScores scores{.generation = first ? 1 : generation_, .verdicts = {}};
          for (const EvalText& answer : answers) {
            if (first && answer.text == "b") scores.verdicts.push_back(absl::UnavailableError("b"));
            else
              scores.verdicts.push_back(EvalVerdict{.score = static_cast<double>(asked_.size())});
          }
          return scores;
        },
        kAnswers, "{}", whole_rows, [](absl::Duration) { return true; });
  }
  const std::vector<size_t>& asked() const { return asked_; }

 private:
  const uint32_t generation_;
  std::vector<size_t> asked_;  // Answers in each call.
};

TEST(RowScoringTest, OnlyAnswersWithoutAVerdictAreAskedAgain) {
  HalfScorer scorer(/*generation=*/1);
  const RowScores scores = scorer.Run(/*whole_rows=*/false);
  EXPECT_THAT(scorer.asked(), ElementsAre(2, 1));
  EXPECT_EQ(scores.verdicts[0]->score, 1) << "its score stays";
  EXPECT_EQ(scores.verdicts[1]->score, 2);
}

TEST(RowScoringTest, RewardsOfGroupsGetTheWholeRowAgain) {
  HalfScorer scorer(/*generation=*/1);
  const RowScores scores = scorer.Run(/*whole_rows=*/true);
  EXPECT_THAT(scorer.asked(), ElementsAre(2, 2));
  EXPECT_EQ(scores.verdicts[0]->score, 2);
}

TEST(RowScoringTest, TheScoresOfARowAreOfOneGeneration) {
  HalfScorer scorer(/*generation=*/2);
  const RowScores scores = scorer.Run(/*whole_rows=*/false);
  EXPECT_THAT(scorer.asked(), ElementsAre(2, 1, 2));
  EXPECT_EQ(scores.generation, 2u);
  EXPECT_EQ(scores.verdicts[0]->score, 3);
  EXPECT_EQ(scores.verdicts[1]->score, 3);
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
