#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/base/splitmix.h"
#include "tests/common/verifiers/math/cases.h"

namespace sluice::math {
namespace {

std::string Repeat(absl::string_view text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) absl::StrAppend(&out, text);
  return out;
}
std::string Boxed(const std::string& inside) { return absl::StrCat("\\boxed{", inside, "}"); }

std::vector<std::string> HostileAnswers() {
  std::vector<std::string> out = {
      "79**88**95",
      "9^9^9",
      "9^{9^{9^{9}}}",
      "10^{10^9}",
      "((((9!)!)!)!)!",
      "3" + std::string(1900, '!'),
      Repeat("3000!+", 100) + "1",
      std::string(100'000, '9'),
      std::string(100'000, '('),
      std::string(990, '(') + "1" + std::string(990, ')'),
      Repeat("\\frac", 50'000),
      Repeat("\\frac{1}{", 150) + "2" + Repeat("}", 150),
      Repeat("1\\frac{1}{", 60) + "2" + Repeat("}", 60),
      std::string(1 << 20, '1'),
      Repeat("\\boxed{", 100'000),
      Repeat("{", 1'000'000),
      std::string(1 << 20, '\xff'),
      std::string("\0\0\0", 3),
      Repeat("$", 1 << 20),
      Repeat("\\(", 1 << 19),
      Repeat("1 ", 1 << 20),
      Repeat("answer is 3 or ", 1 << 16),
      Repeat("2^{99999}/3^{60000}+", 90) + "1",
      Repeat("3^{2999}/7^{1999}+", 100) + "1",
      "(a+b+c+d+f+g)^{64}",
      Repeat("(a+b+c+d+f+g+h+j+k)", 100),
      Repeat("\\frac{1}{x+y+z}+", 100) + "1",
      Repeat("\\sin(", 50) + "x" + Repeat(")", 50),
      "\\sin(2^{99999})",
      "e^{e^{e^{e^{9}}}}",
      Repeat("\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}", 40),
      Repeat("\\sin x,", 200) + "x",
      Repeat("\\pm 1", 300),
      std::string(1900, '-') + "1",
      Repeat("2^", 900) + "2",
      Repeat("\\sqrt{7^{9999}}+", 80) + "1",
      "\\binom{10^9}{5\\cdot 10^8}",
      "((((x^{64})^{64})^{64})^{64})^{64}",
      "x^{x^{x^{x^{x^{x}}}}}",
      "1e9999",
      Repeat("(", 60) + "x" + Repeat("!!!!!!!!)", 60),
      Repeat("\\sin(3^{59999}x)+", 100) + "1",
      Repeat("f(3^{59999})+", 100) + "1",
      Repeat("\\sin(\\{", 40) + "x" + Repeat("\\})", 40),
      "0/0",
      "\\tan\\frac{\\pi}{2}",
      "\\infty-\\infty",
  };
  return out;
}

const char* const kGolds[] = {"42",
                              "\\frac{3}{7}",
                              "\\sqrt{2}+\\pi",
                              "x^2+3x+1",
                              "(1,2)",
                              "1, 2, 3",
                              "y=2x+3",
                              "x<3",
                              "\\{1,2\\}",
                              "\\text{yes}",
                              "2^{1000}",
                              "\\sin x+\\frac{1}{y}",
                              "\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}"};

TEST(MathHostileTest, NoneScoresAndTheWorkIsBounded) {
  for (const std::string& answer : HostileAnswers()) {
    for (const char* const gold : kGolds) {
      for (const std::string& text : {answer, Boxed(answer), absl::StrCat("#### ", answer)})
        EXPECT_FALSE(Equal(gold, text)) << gold << " / " << text.substr(0, 100);
    }
  }
}

TEST(MathHostileTest, WhatIsTooComplexIsGivenUpAndNotWrong) {
  for (const char* const answer :
       {"79**88**95", "9^9^9", "10^{10^9}", "((((9!)!)!)!)!", "1e9999", "(a+b+c+d+f+g)^{64}"})
    EXPECT_EQ(JudgeCase("x", Boxed(answer)), Outcome::kTooComplex) << answer;
}

TEST(MathHostileTest, TheSameHostileTextOnBothSidesEndsToo) {
  for (const std::string& answer : HostileAnswers()) JudgeCase(answer, answer);
}

TEST(MathHostileTest, ABudgetThatEndsAnywhereGivesNoScore) {
  const std::string gold = "\\frac{\\sin x}{x}+\\sqrt{2}", answer = "\\sqrt{2}+\\frac{\\sin x}{x}";
  Budget whole;
  ASSERT_EQ(Judge(Boxed(answer), gold, {}, whole), Outcome::kRight);
  for (int64_t steps = 0; steps < whole.used(); steps += 7) {
    Budget budget(steps);
    EXPECT_EQ(Judge(Boxed(answer), gold, {}, budget), Outcome::kTooComplex) << steps;
  }
}

// Changes an answer at some places. The result may by chance be another form of the same answer,
// so the pieces and golds are chosen such that this cannot be.
TEST(MathHostileTest, FiveHundredMutatedAnswersDoNotScore) {
  const std::vector<std::string> pieces = {"\\frac",
                                           "{",
                                           "}",
                                           "(",
                                           ")",
                                           "^",
                                           "_",
                                           "\\sqrt",
                                           "99",
                                           "!",
                                           "\\boxed{",
                                           "$",
                                           "\\\\",
                                           "&",
                                           ",",
                                           "\xff",
                                           "\\text{",
                                           "\\begin{pmatrix}",
                                           "\\end{pmatrix}",
                                           "\xe2\x88\x92",
                                           "**",
                                           "<answer>",
                                           "#### ",
                                           "answer is ",
                                           " or ",
                                           "\\pm",
                                           "%",
                                           "|",
                                           "=",
                                           "<",
                                           "e",
                                           "i",
                                           "\\infty",
                                           "\n",
                                           "\\left("};
  const std::string gold = "7919";
  for (uint64_t seed = 0; seed < 500; ++seed) {
    SplitMix64 random(seed);
    std::string text = random.Below(2) == 0 ? "\\boxed{\\frac{12}{5}+x}" : "The answer is $12$.";
    for (uint64_t n = 1 + random.Below(30); n > 0; --n)
      text.insert(random.Below(text.size() + 1), pieces[random.Below(pieces.size())]);
    EXPECT_FALSE(Equal(gold, text)) << "seed " << seed << ": " << text;
    JudgeCase(text, "\\boxed{1}");  // As a gold.
    JudgeCase(text, text);
  }
}

}  // namespace
}  // namespace sluice::math
