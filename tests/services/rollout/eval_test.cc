#include "services/rollout/core/eval/eval.h"

#include <set>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/testing/data.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

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
    for (int i = 0; i < rows; ++i) absl::StrAppend(&text, "{\"digits\": \"", 1000 + 37 * i, "\"}\n");
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

absl::StatusOr<double> Length(absl::string_view text, bool, absl::string_view) { return static_cast<double>(text.size()) / 7; }

TEST_F(EvalTest, EveryRowIsAnsweredAndTheResultDoesNotDependOnSlots) {
  EvalOptions options = Options(100);
  options.samples = 3;
  options.sampling.temperature = 1;
  options.keep = 100;
  const absl::StatusOr<EvalResult> many = Evaluate(options, Length);
  ASSERT_TRUE(many.ok()) << many.status();
  EXPECT_EQ(many->rows, 100u);
  EXPECT_EQ(many->answers, 300u);
  ASSERT_EQ(many->kept.size(), 300u);
  std::set<std::string> texts;
  for (const EvalAnswer& answer : many->kept) texts.insert(answer.text);
  EXPECT_GT(texts.size(), 200u);
  options.engine.slots = 1;
  const absl::StatusOr<EvalResult> few = Evaluate(options, Length);
  ASSERT_TRUE(few.ok());
  for (size_t i = 0; i < 300; ++i) ASSERT_EQ(few->kept[i].text, many->kept[i].text) << i;
  EXPECT_EQ(few->score_mean, many->score_mean);
}

TEST_F(EvalTest, GreedyAnswersOfOneRowAreEqual) {
  EvalOptions options = Options(5);
  options.samples = 2;
  const absl::StatusOr<EvalResult> result = Evaluate(options, Length);
  ASSERT_TRUE(result.ok()) << result.status();
  for (size_t i = 0; i < result->kept.size(); i += 2) EXPECT_EQ(result->kept[i].text, result->kept[i + 1].text);
}

TEST_F(EvalTest, RowsThatAreTooLongOrUnscorableAreCounted) {
  EvalOptions options = Options(10);
  const auto refuse = [](absl::string_view, bool, absl::string_view row) -> absl::StatusOr<double> {
    if (nlohmann::json::parse(row)["answer"] == "1037") return absl::InvalidArgumentError("no gold");
    return 1;
  };
  const absl::StatusOr<EvalResult> result = Evaluate(options, refuse);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->unscorable, 1u);
  EXPECT_EQ(result->first_unscorable, "no gold");
  EXPECT_EQ(result->answers, 9u);
  EXPECT_EQ(result->exact, 1);
  options.max_prompt = 2;
  EXPECT_THAT(Evaluate(options, refuse).status().message(), HasSubstr("10 are too long"));
}

TEST_F(EvalTest, AMissingModelIsNamed) {
  EvalOptions options = Options(1);
  options.engine.model_path = "/nowhere/model";
  EXPECT_THAT(Evaluate(options, Length).status().message(), HasSubstr("/nowhere/model"));
  options = Options(1);
  options.engine.kind = "sglang";
  EXPECT_EQ(Evaluate(options, Length).status().code(), absl::StatusCode::kUnimplemented);
}

TEST_F(EvalTest, ATrainedModelContinuesItsStoriesGreedilyAsTheReferenceDoes) {
  SLUICE_NEEDS_TEST_DATA("models/stories260k");
  EvalOptions options;
  options.engine.model_path = testing_data::Path("models/stories260k");
  options.data_path = testing_data::TempPath("story.jsonl");
  ASSERT_TRUE(WriteFileAtomic(options.data_path, "{\"prompt\": \"Once upon a time\"}\n").ok());
  options.fields = {{"prompt", "prompt"}};
  options.sampling.max_tokens = 40;
  const absl::StatusOr<EvalResult> result = Evaluate(options, Length);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_THAT(result->kept.at(0).text, HasSubstr("there was a"));
}

}  // namespace
}  // namespace sluice
