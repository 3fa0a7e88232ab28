#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/verifiers/verifier.h"
#include "nlohmann/json.hpp"
#include "tests/common/verifiers/math/cases.h"

namespace sluice::math {
namespace {

struct Pair {
  const char* gold;
  const char* answer;
};

void ExpectEqual(std::initializer_list<Pair> pairs) {
  for (const Pair& pair : pairs) EXPECT_TRUE(Equal(pair.gold, pair.answer)) << pair.answer;
}
void ExpectDifferent(std::initializer_list<Pair> pairs) {
  for (const Pair& pair : pairs)
    EXPECT_FALSE(Equal(pair.gold, pair.answer)) << pair.gold << " / " << pair.answer;
}

TEST(MathEqualityTest, NumbersAreComparedExactly) {
  ExpectEqual({{"1/2", "0.5"},
               {"1.5", "1 1/2"},
               {"1.5", "1\\frac12"},
               {"-1.5", "-1\\frac{1}{2}"},
               {"1234567", "1,234,567"},
               {"1234567", "1\\,234\\,567"},
               {"1/6", "0.1\\overline{6}"},
               {"1000.99", "1000,99"},
               {"2.74", "2,74"},
               {"6.02\\times 10^{23}", "6.02e23"},
               {"5", "101_2"},
               {"10", "\\binom{5}{2}"},
               {"120", "5!"},
               {"4", "\\sqrt{16}"},
               {"-2", "\\sqrt[3]{-8}"},
               {"2", "17 \\bmod 5"},
               {"3", "\\lfloor\\pi\\rfloor"},
               {"2^{1000}", "4^{500}"}});
  ExpectDifferent({{"12345", "12346"},
                   {"32349", "32, 349"},
                   {"1234567", "123,456,7"},
                   {"2^{1000}", "2^{1000}+1"},
                   {"0.1", "0.01"},
                   {"100", "1"},
                   {"1/3", "3"},
                   {"5", "101"},
                   {"640320^3+744", "e^{\\pi\\sqrt{163}}"},
                   {"12", "1 2"},
                   {"0", "10^{-40}"},
                   {"0", "0/0"}});
}

TEST(MathEqualityTest, ADecimalMayBeTheRoundingOfTheOtherSide) {
  ExpectEqual({{"1/3", "0.3333"},
               {"0.3333", "1/3"},
               {"\\sqrt{17}", "4.1231"},
               {"\\pi", "3.14159"},
               {"2/3", "0.6667"},
               {"1.00005", "1.0001"},
               {"1/432", "2.314814815 \\times 10^{-3}"}});
  ExpectDifferent({{"1/3", "0.333"},
                   {"1/3", "0.3334"},
                   {"2.5", "2.49"},
                   {"2/3", "0.6666"},
                   {"\\pi", "3.14"},
                   {"12345", "12345.4"},
                   {"1", "0.99999"},
                   {"\\sqrt{2}", "1.4143"}});
  const JudgeOptions two{.equal = {.decimals = 2}};
  EXPECT_TRUE(Equal("0.33", "1/3", two));
  EXPECT_TRUE(Equal("1/3", "0.33", two));
  EXPECT_FALSE(Equal("0.33", "0.34", two));
}

TEST(MathEqualityTest, FormulasAreEqualWhereTheGoldHasAValue) {
  ExpectEqual({{"x^2+2x+1", "(x+1)^2"},
               {"\\frac{1}{x-1}-\\frac{1}{x+1}", "\\frac{2}{x^2-1}"},
               {"\\sin 2x", "2\\sin x\\cos x"},
               {"\\tan^2 x+1", "\\sec^2 x"},
               {"\\ln 8", "3\\ln 2"},
               {"\\log_4 8", "\\frac{3}{2}"},
               {"e^{i\\pi}", "-1"},
               {"i\\sqrt{3}", "\\sqrt{-3}"},
               {"(-1)^n", "\\cos(n\\pi)"},
               {"\\sqrt{x}^2", "x"},
               {"2\\sqrt{3}", "\\frac{6}{\\sqrt{3}}"},
               {"\\sqrt{5+2\\sqrt{6}}", "\\sqrt{2}+\\sqrt{3}"},
               {"x^{n+1}", "x\\cdot x^n"},
               {"\\sin^{-1} x", "\\arcsin x"},
               {"(n+1)!", "\\boxed{(n+1)\\cdot n!}"},
               {"3ab", "3ba"}});
  ExpectDifferent({{"x", "\\sqrt{x^2}"},
                   {"\\frac{1}{x}", "\\frac{|x|}{x^2}"},
                   {"x", "y"},
                   {"x", "x+10^{-60}"},
                   {"\\sqrt{2}", "\\sqrt{2}+10^{-30}"},
                   {"\\sqrt{2}", "\\sqrt{2}+1+10^{70}-10^{70}"},
                   {"\\sqrt{2}+1", "\\sqrt{2}+10^{90}\\pi-10^{90}\\pi"},
                   {"x^2", "x^3"},
                   {"e^x", "x^e"},
                   {"\\frac{x^2}{x}+1", "x+2"},
                   {"f(x)", "f(y)"},
                   {"ABC", "ABD"},
                   {"x_1", "x_2"},
                   {"\\sin x", "x"},
                   {"\\infty", "-\\infty"},
                   {"n!", "\\boxed{(n+1)!}"},
                   {"\\overline{AB}", "\\overline{CD}"}});
}

TEST(MathEqualityTest, PercentAndUnitsCountWhereBothSidesHaveThem) {
  ExpectEqual({{"10\\%", "0.1"},
               {"10\\%", "10"},
               {"0.28", "28\\%"},
               {"5\\text{ cm}", "5"},
               {"5\\text{ cm}", "50\\text{ mm}"},
               {"1\\text{ km/h}", "\\frac{1000}{3600}\\text{ m/s}"},
               {"2\\text{ square feet}", "2\\text{ ft}^2"},
               {"90^\\circ", "90"},
               {"90^\\circ", "\\frac{\\pi}{2}"},
               {"\\$18.50", "18.5"},
               {"3", "3 apples"},
               {"3/4 cup", "3/4"},
               {"4\\text{ quarts}", "1\\text{ gallon}"},
               {"10 \\mathrm{~cm}", "\\boxed{10}"},
               {"8 \\mathrm{~m} / \\mathrm{s}", "\\boxed{8\\text{ m/s}}"},
               {"11:30 \\text{ a.m.}", "\\boxed{11:30}"},
               {"7 \\text{ dollars}", "7 \\text{ yuan}"},
               {"12", "12 \\text{ square units}"}});
  ExpectDifferent({{"5\\text{ cm}", "5\\text{ m}"},
                   {"5\\text{ cm}", "5\\text{ kg}"},
                   {"5\\text{ cm}^2", "5\\text{ cm}^3"},
                   {"50\\text{ cents}", "50\\text{ dollars}"},
                   {"10\\%", "10000"},
                   {"5", "5\\text{ or more}"},
                   {"5", "\\text{at least }5"},
                   {"5", "5\\text{ not}"},
                   {"10\\%", "0.1\\%"},
                   {"3\\text{ apples}", "3\\text{ pears}"}});
}

TEST(MathEqualityTest, TheStructureOfTheGoldCounts) {
  ExpectEqual({{"1, 2, 3", "3, 2, 1"},
               {"\\{1,2\\}", "2, 1"},
               {"x=2 \\text{ or } x=-3", "-3, 2"},
               {"(0.5, 2)", "(1/2, 2)"},
               {"\\pm 2", "2, -2"},
               {"1\\pm\\sqrt{5}", "\\{1-\\sqrt5, 1+\\sqrt5\\}"},
               {"-793 < a < 10", "(-793, 10)"},
               {"x > 5", "(5, \\infty)"},
               {"x<1 \\text{ or } x>3", "(-\\infty,1)\\cup(3,\\infty)"},
               {"(-\\infty,1)\\cup(3,\\infty)", "(3,\\infty)\\cup(-\\infty,1)"},
               {"y=2x+3", "2x-y+3=0"},
               {"x \\le 5", "5 \\ge x"},
               {"x<1", "-x>-1"},
               {"\\begin{pmatrix}1\\\\2\\end{pmatrix}", "\\begin{bmatrix}1\\\\2\\end{bmatrix}"},
               {"x \\in [1,2]", "[1,2]"},
               {"\\text{Tuesday}", "\\text{tuesday}"},
               {"June 20", "\\boxed{\\text{June 20}}"},
               {"\\emptyset", "\\{\\}"},
               {"100,200,300", "300, 200, 100"},
               {"x=2, y=3", "2, 3"},
               {"x_1=2, x_2=3", "3, 2"},
               {"1:2", "\\frac{1}{2}"},
               {"14:6", "14:6"},
               {"(p,q)=(3,2)", "(3,2)"}});
  ExpectDifferent({{"1, 2, 3", "1, 2"},
                   {"1, 2", "1, 2, 3"},
                   {"1, 1, 2", "1, 2"},
                   {"(1,2)", "(2,1)"},
                   {"(1,2)", "[1,2]"},
                   {"(1,2)", "1, 2"},
                   {"(1,2)", "\\{1,2\\}"},
                   {"(1,2)", "1<x<2"},
                   {"x>5", "x<5"},
                   {"x>5", "x\\ge 5"},
                   {"x>5", "(-\\infty,5)"},
                   {"x=5", "y=5"},
                   {"x=5", "2x=10"},
                   {"x<1", "2x+3<5"},
                   {"a^2+b=0", "0"},
                   {"2x+z=1", "1"},
                   {"\\{1,2\\}", "\\{1,3\\}"},
                   {"x=2, y=3", "3, 2"},
                   {"1,000", "1,0"},
                   {"1, 0", "1,000"},
                   {"7", "7:1"},
                   {"12:30", "2:5"},
                   {"\\text{Tuesday}", "5"},
                   {"June 20", "\\boxed{20}"},
                   {"5", "\\text{five}"},
                   {"\\emptyset", "\\{0\\}"},
                   {"\\emptyset", "0"},
                   {"\\begin{pmatrix}1&2\\end{pmatrix}", "\\begin{pmatrix}1\\\\2\\end{pmatrix}"}});
  const JudgeOptions ordered{.equal = {.ordered = true}};
  EXPECT_FALSE(Equal("1, 2, 3", "3, 2, 1", ordered));
  EXPECT_TRUE(Equal("1, 2, 3", "1, 2, 3", ordered));
}

TEST(MathEqualityTest, TheFinalFormIsAFinishedNumber) {
  const JudgeOptions final{.final_form = true};
  for (const char* const answer :
       {"\\boxed{391}", "\\boxed{391.0}", "\\boxed{782/2}", "\\boxed{x = 391}",
        "\\boxed{17\\cdot 23 = 391}", "\\boxed{3.91\\times 10^2}", "\\boxed{391\\text{ m}}"})
    EXPECT_EQ(JudgeCase("391", answer, final), Outcome::kRight) << answer;
  for (const char* const answer :
       {"\\boxed{17\\cdot 23}", "\\boxed{390+1}", "\\boxed{\\sqrt{152881}}", "\\boxed{--391}",
        "\\boxed{391\\cdot 1}", "\\boxed{\\frac{391}{0.5\\cdot 2}}"}) {
    EXPECT_EQ(JudgeCase("391", answer, final),
              answer == std::string("\\boxed{--391}") ? Outcome::kRight : Outcome::kNotFinal)
        << answer;
  }
  EXPECT_EQ(JudgeCase("2\\sqrt3", "\\boxed{\\sqrt{12}}", final), Outcome::kRight);
  EXPECT_EQ(JudgeCase("3, 4", "\\boxed{1+2, 4}", final), Outcome::kNotFinal);

  const JudgeOptions reduced{.require_reduced = true};
  EXPECT_EQ(JudgeCase("1/2", "\\boxed{\\frac{1}{2}}", reduced), Outcome::kRight);
  EXPECT_EQ(JudgeCase("1/2", "\\boxed{\\frac{2}{4}}", reduced), Outcome::kNotFinal);
}

TEST(MathEqualityTest, ArgumentsAndRowsThatAreWrongAreNamed) {
  using nlohmann::json;
  const auto message = [](const json& args) {
    return std::string(MakeVerifier("math", args).status().message());
  };
  EXPECT_THAT(message({{"extract", "all"}}), testing::HasSubstr("boxed, tagged, auto"));
  EXPECT_THAT(message({{"form", "x"}}), testing::HasSubstr("value, final"));
  EXPECT_THAT(message({{"decimals", 101}}), testing::HasSubstr("args.decimals is 101"));
  EXPECT_THAT(message({{"tolerance", 1}}), testing::HasSubstr("args.tolerance is unknown"));

  const auto math = *MakeVerifier("math", json::object());
  EXPECT_THAT(std::string(math->CheckRow({{"answer", " "}}).message()),
              testing::HasSubstr("has no answer"));
  EXPECT_FALSE(math->CheckRow({{"answer", "1"}, {"decimals", "two"}}).ok());
  EXPECT_FALSE(math->CheckRow({{"answer", std::string(3000, '1')}}).ok());
  EXPECT_TRUE(math->CheckRow({{"answer", 12}}).ok());
  EXPECT_TRUE(math->CheckRow({{"answer", "\\text{no solution}"}}).ok());
  EXPECT_EQ(math->Score({.text = "<think>\\boxed{1}"}, {{"answer", 1}})->reason, "unfinished");
  EXPECT_EQ(math->Score({.text = "<think>\\boxed{2}</think> \\boxed{1}"}, {{"answer", 1}})->score,
            1);
}

}  // namespace
}  // namespace sluice::math
