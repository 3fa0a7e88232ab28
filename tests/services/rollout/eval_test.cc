#include "services/rollout/core/eval/eval.h"

#include <algorithm>
#include <functional>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/checkpoint/init.h"
#include "common/checkpoint/model_dir.h"
#include "common/testing/data.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "services/rollout/core/eval/pass_at_k.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;

class EvalTest : public testing::Test {
 protected:
  static constexpr char kModel[] = SLUICE_SOURCE_DIR "/configs/examples/digits";

  // The example's config with random weights, on `rows` lines of four digits.
  EvalOptions Options(int rows) {
    const std::string path = testing_data::TempPath("eval_rows.jsonl");
    std::string text;
    for (int i = 0; i < rows; ++i)
      absl::StrAppend(&text, "{\"digits\": \"", 1000 + 37 * i, "\"}\n");
    EXPECT_TRUE(WriteFileAtomic(path, text).ok());

    EvalOptions options;
    options.engine.model_path = kModel;
    options.engine.random_init = true;
    options.engine.init_seed = 1;
    options.engine.slots = 16;
    options.engine.max_context = 16;
    options.format = "{digits}=";
    options.data_path = path;
    options.fields = {{"prompt", "digits"}, {"answer", "digits"}};
    options.sampling.max_tokens = 7;
    return options;
  }
};

// A scorer that scores each answer of a row alone.
EvalScorer OneByOne(
    std::function<absl::StatusOr<EvalVerdict>(absl::string_view text, const std::string& row)>
        score) {
  return [score = std::move(score)](absl::Span<const EvalText> answers, const std::string& row) {
    RowScores scores{.generation = 7, .verdicts = {}};
    for (const EvalText& answer : answers) scores.verdicts.push_back(score(answer.text, row));
    return scores;
  };
}

// Scores an answer by its length, of at most 7 characters.
const EvalScorer& Length() {
  static const auto* const scorer =
      new EvalScorer(OneByOne([](absl::string_view text, const std::string&) {
        return EvalVerdict{.score = static_cast<double>(text.size()) / 7,
                           .passes = text.size() >= 7};
      }));
  return *scorer;
}

TEST_F(EvalTest, EveryRowIsAnsweredAndTheResultDoesNotDependOnSlots) {
  EvalOptions options = Options(100);
  options.samples = 3;
  options.sampling.temperature = 1;
  options.keep = 100;

  const absl::StatusOr<EvalResult> many = Evaluate(options, Length());
  ASSERT_TRUE(many.ok()) << many.status();
  EXPECT_EQ(many->rows, 100u);
  EXPECT_EQ(many->answers, 300u);
  ASSERT_EQ(many->kept.size(), 300u);

  std::set<std::string> texts;
  for (const EvalAnswer& answer : many->kept) texts.insert(answer.text);
  EXPECT_GT(texts.size(), 200u);

  options.engine.slots = 1;
  const absl::StatusOr<EvalResult> few = Evaluate(options, Length());
  ASSERT_TRUE(few.ok());
  for (size_t i = 0; i < 300; ++i) ASSERT_EQ(few->kept[i].text, many->kept[i].text) << i;
  EXPECT_EQ(few->score_mean, many->score_mean);
  EXPECT_EQ(few->score_interval->low, many->score_interval->low);
  EXPECT_EQ(few->score_interval->high, many->score_interval->high);
  EXPECT_LT(many->score_interval->low, many->score_mean);
  EXPECT_GT(many->score_interval->high, many->score_mean);
  EXPECT_THAT(many->generations, testing::ElementsAre(7u));
}

TEST_F(EvalTest, ScorersOnThreadsGiveTheSameResultAsBetweenSteps) {
  EvalOptions options = Options(60);
  options.samples = 2;
  options.sampling.temperature = 1;
  options.keep = 60;
  // Half of the rows have no score, so that which of them is the first is seen.
  const EvalScorer scorer = OneByOne([](absl::string_view text,
                                        const std::string& row) -> absl::StatusOr<EvalVerdict> {
    if (row.find('3') != std::string::npos) return absl::InvalidArgumentError(row);
    return EvalVerdict{.score = static_cast<double>(text.size()) / 7, .passes = text.size() > 5};
  });
  const absl::StatusOr<EvalResult> alone = Evaluate(options, scorer);
  ASSERT_TRUE(alone.ok()) << alone.status();
  EXPECT_GT(alone->unscorable, 0u);

  options.scoring_threads = 4;
  const absl::StatusOr<EvalResult> threads = Evaluate(options, scorer);
  ASSERT_TRUE(threads.ok()) << threads.status();
  EXPECT_EQ(threads->score_mean, alone->score_mean);
  EXPECT_EQ(threads->pass, alone->pass);
  EXPECT_EQ(threads->unscorable, alone->unscorable);
  EXPECT_EQ(threads->first_unscorable, alone->first_unscorable);
  ASSERT_EQ(threads->kept.size(), alone->kept.size());
  for (size_t i = 0; i < alone->kept.size(); ++i)
    EXPECT_EQ(threads->kept[i].score, alone->kept[i].score);
}

TEST_F(EvalTest, AScorerGetsAllAnswersToARowAtOnce) {
  EvalOptions options = Options(5);
  options.samples = 3;
  options.sampling.temperature = 1;
  std::set<std::string> rows;
  const EvalScorer best = [&](absl::Span<const EvalText> answers, const std::string& row) {
    EXPECT_TRUE(rows.insert(row).second) << row << " was scored twice";
    EXPECT_EQ(answers.size(), 3u);
    size_t longest = 0;
    for (const EvalText& answer : answers) longest = std::max(longest, answer.text.size());
    RowScores scores;
    for (const EvalText& answer : answers)
      scores.verdicts.push_back(EvalVerdict{.score = answer.text.size() == longest ? 1.0 : 0.0});
    return scores;
  };
  ASSERT_TRUE(Evaluate(options, best).ok());
  EXPECT_EQ(rows.size(), 5u);
}

TEST_F(EvalTest, AnEvaluationThatAwaitsScoresCanBeCancelled) {
  EvalOptions options = Options(4);
  options.scoring_threads = 2;
  Mutex mu;
  CondVar changed;
  bool asked = false, ended = false;
  const EvalScorer waits = [&](absl::Span<const EvalText> answers, const std::string&) {
    MutexLock lock(&mu);
    asked = true;
    while (!ended) changed.Wait(&mu);
    return RowScores{.generation = 1,
                     .verdicts = std::vector<absl::StatusOr<EvalVerdict>>(
                         answers.size(), absl::CancelledError("ended"))};
  };
  options.cancelled = [&] {
    MutexLock lock(&mu);
    ended = asked;
    changed.NotifyAll();
    return ended;
  };
  EXPECT_EQ(Evaluate(options, waits).status().code(), absl::StatusCode::kCancelled);
}

// The scorer waits for nothing but stop_scoring, so that this test ends only if that is called.
TEST_F(EvalTest, AnEvaluationThatFailsEndsTheCallsThatItHasBegun) {
  EvalOptions options = Options(4);
  options.scoring_threads = 2;
  Mutex mu;
  CondVar changed;
  bool asked = false, stopped = false;
  const EvalScorer waits = [&](absl::Span<const EvalText> answers, const std::string&) {
    MutexLock lock(&mu);
    asked = true;
    while (!stopped) changed.Wait(&mu);
    return RowScores{.generation = 1,
                     .verdicts = std::vector<absl::StatusOr<EvalVerdict>>(
                         answers.size(), absl::CancelledError("ended"))};
  };
  options.cancelled = [&] {
    MutexLock lock(&mu);
    return asked;
  };
  options.stop_scoring = [&] {
    MutexLock lock(&mu);
    stopped = true;
    changed.NotifyAll();
  };
  EXPECT_FALSE(Evaluate(options, waits).ok());
}

TEST_F(EvalTest, AMeanCountsEachRowOnceThoughAnswersOfItHaveNoScore) {
  EvalOptions options = Options(2);
  options.samples = 3;
  options.sampling.temperature = 1;
  options.engine.slots = 1;
  int asked = 0;
  // The first row has one score, 1; the second one three, all 0.
  const EvalScorer score =
      OneByOne([&](absl::string_view, const std::string& row) -> absl::StatusOr<EvalVerdict> {
        const bool first = nlohmann::json::parse(row)["answer"] == "1000";
        if (first && asked++ > 0) return absl::InvalidArgumentError("no gold");
        return EvalVerdict{.score = first ? 1.0 : 0.0};
      });
  EXPECT_EQ(Evaluate(options, score)->score_mean, 0.5);
}

TEST_F(EvalTest, GreedyAnswersOfOneRowAreEqual) {
  EvalOptions options = Options(5);
  options.samples = 2;
  const absl::StatusOr<EvalResult> result = Evaluate(options, Length());
  ASSERT_TRUE(result.ok()) << result.status();
  for (size_t i = 0; i < result->kept.size(); i += 2)
    EXPECT_EQ(result->kept[i].text, result->kept[i + 1].text);
}

// Goes through all sets of k of n answers, of which the first c pass.
double BruteForcePassAtK(uint32_t n, uint32_t c, uint32_t k) {
  uint32_t draws = 0, passing = 0;
  for (uint32_t set = 0; set < 1u << n; ++set) {
    if (static_cast<uint32_t>(__builtin_popcount(set)) != k) continue;
    ++draws;
    passing += (set & ((1u << c) - 1)) != 0;
  }
  return static_cast<double>(passing) / draws;
}

TEST(PassAtKTest, IsTheShareOfAllDrawsOfKAnswersWithOneThatPasses) {
  for (uint32_t n = 1; n <= 8; ++n) {
    for (uint32_t c = 0; c <= n; ++c) {
      for (uint32_t k = 1; k <= n; ++k)
        EXPECT_NEAR(PassAtK(n, c, k), BruteForcePassAtK(n, c, k), 1e-12)
            << n << " " << c << " " << k;
    }
  }
}

TEST_F(EvalTest, PassAtKIsTheMeanOverRowsOfItsEstimator) {
  EvalOptions options = Options(3);
  options.samples = 4;
  options.pass_k = {1, 2, 4};

  int asked = 0;
  // One answer of the first row passes, two of the second and none of the third. The last answer of
  // the third row cannot be scored.
  const EvalScorer score = OneByOne([&](absl::string_view,
                                        const std::string& row) -> absl::StatusOr<EvalVerdict> {
    const std::string digits = nlohmann::json::parse(row)["answer"];
    const int nth = asked++ % 4;
    if (digits == "1074" && nth == 3) return absl::InvalidArgumentError("no gold");
    return EvalVerdict{.score = 0.9,
                       .passes = (digits == "1000" && nth == 0) || (digits == "1037" && nth < 2)};
  });
  options.engine.slots = 1;  // The rows are then answered one after the other.

  const absl::StatusOr<EvalResult> result = Evaluate(options, score);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_NEAR(result->pass.at(1), (0.25 + 0.5 + 0) / 3, 1e-12);
  EXPECT_NEAR(result->pass.at(2), (0.5 + 5.0 / 6 + 0) / 3, 1e-12);
  EXPECT_NEAR(result->pass.at(4), 1, 1e-12)
      << "the third row has only three scored answers and is left out";

  options.pass_k = {5};
  EXPECT_THAT(std::string(Evaluate(options, score).status().message()),
              HasSubstr("pass@5 needs k in 1..4"));
}

TEST_F(EvalTest, WeightsFromElsewhereAnswerAndAreNamed) {
  EvalOptions options = Options(5);
  options.engine.init_seed = 7;
  const absl::StatusOr<EvalResult> other = Evaluate(options, Length());
  ASSERT_TRUE(other.ok());

  options.engine.init_seed = 1;
  options.weights = [&](absl::Span<const TensorSpec> layout) -> absl::StatusOr<StagedWeights> {
    auto tensors = std::make_shared<const TensorSet>(*InitWeights(ReadModelDir(kModel)->config, 7));
    EXPECT_EQ(tensors->layout_id(), LayoutId(layout));
    return StagedWeights{.version = {2, 9}, .state = FingerprintOf(*tensors), .tensors = tensors};
  };

  const absl::StatusOr<EvalResult> result = Evaluate(options, Length());
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->version, (PolicyVersion{2, 9}));
  EXPECT_EQ(result->fingerprint, other->fingerprint);
  for (size_t i = 0; i < result->kept.size(); ++i)
    EXPECT_EQ(result->kept[i].text, other->kept[i].text);
}

TEST_F(EvalTest, RowsThatAreTooLongOrUnscorableAreCounted) {
  EvalOptions options = Options(10);
  const EvalScorer refuse =
      OneByOne([](absl::string_view, const std::string& row) -> absl::StatusOr<EvalVerdict> {
        if (nlohmann::json::parse(row)["answer"] == "1037")
          return absl::InvalidArgumentError("no gold");
        return EvalVerdict{.score = 1, .passes = true};
      });

  const absl::StatusOr<EvalResult> result = Evaluate(options, refuse);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->unscorable, 1u);
  EXPECT_EQ(result->first_unscorable, "no gold");
  EXPECT_EQ(result->answers, 9u);
  EXPECT_EQ(result->pass.at(1), 1);

  options.max_prompt = 2;
  EXPECT_THAT(Evaluate(options, refuse).status().message(), HasSubstr("10 are too long"));
}

TEST_F(EvalTest, AFirstRowBeyondTheFileIsRefusedWithTheRowsItHas) {
  EvalOptions options = Options(4);
  options.first_row = 3;
  for (const uint64_t rows : {uint64_t{0}, uint64_t{1}, UINT64_MAX}) {
    options.rows = rows;
    EXPECT_EQ(Evaluate(options, Length())->rows, 1u) << rows;
  }

  options.first_row = 4;
  EXPECT_THAT(std::string(Evaluate(options, Length()).status().message()),
              HasSubstr("has 4 rows, 0 to 3; the first row asked for is 4"));
}

TEST_F(EvalTest, AnEvaluationThatIsCalledOffEndsBeforeItsNextStep) {
  EvalOptions options = Options(100);
  int steps = 0;
  options.cancelled = [&] { return ++steps == 3; };
  EXPECT_EQ(Evaluate(options, Length()).status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(steps, 3);
}

TEST_F(EvalTest, APromptThatIsNoTextIsRefusedWithItsLineAndWhatToDo) {
  EvalOptions options = Options(1);
  ASSERT_TRUE(WriteFileAtomic(options.data_path, "{\"digits\": \"12\"}\n{\"digits\": 5}\n").ok());
  const absl::Status status = Evaluate(options, Length()).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr(":2: the prompt, column \"digits\", is 5"));
  EXPECT_THAT(DetailOf(status).hint, HasSubstr("--prompt"));
}

TEST_F(EvalTest, KeysOfTheConfigThatAreNotActedOnAreTold) {
  const std::string dir = testing_data::TempPath("eval_model");
  ASSERT_TRUE(MakeDirs(dir).ok());
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"})
    ASSERT_TRUE(WriteFileAtomic(dir + "/" + name, *ReadFile(absl::StrCat(kModel, "/", name))).ok());
  nlohmann::json config = nlohmann::json::parse(*ReadFile(absl::StrCat(kModel, "/config.json")));
  config["auto_map"] = {{"AutoModelForCausalLM", "modeling.Model"}};
  ASSERT_TRUE(WriteFileAtomic(dir + "/config.json", config.dump()).ok());

  EvalOptions options = Options(1);
  EXPECT_THAT(Evaluate(options, Length())->ignored, testing::IsEmpty());

  options.engine.model_path = dir;
  EXPECT_THAT(Evaluate(options, Length())->ignored, testing::ElementsAre("auto_map"));
}

TEST_F(EvalTest, AMissingModelIsNamed) {
  EvalOptions options = Options(1);
  options.engine.model_path = "/nowhere/model";
  EXPECT_THAT(Evaluate(options, Length()).status().message(), HasSubstr("/nowhere/model"));

  options = Options(1);
  options.engine.kind = "sglang";
  EXPECT_EQ(Evaluate(options, Length()).status().code(), absl::StatusCode::kUnimplemented);
}

TEST_F(EvalTest, ATrainedModelContinuesItsStoriesGreedilyAsTheReferenceDoes) {
  SLUICE_NEEDS_TEST_DATA("models/stories260k");
  EvalOptions options;
  options.engine.model_path = testing_data::Path("models/stories260k");
  options.data_path = testing_data::TempPath("story.jsonl");
  ASSERT_TRUE(WriteFileAtomic(options.data_path, "{\"prompt\": \"Once upon a time\"}\n").ok());
  options.fields = {{"prompt", "prompt"}};
  options.sampling.max_tokens = 40;

  const absl::StatusOr<EvalResult> result = Evaluate(options, Length());
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_THAT(result->kept.at(0).text, HasSubstr("there was a"));
}

}  // namespace
}  // namespace sluice
