#include <gtest/gtest.h>

#include <gmpxx.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/splitmix.h"
#include "tests/common/verifiers/math/cases.h"

namespace sluice::math {
namespace {

// A random formula of rational numbers: as LaTeX in one of several forms, with its value.
struct Formula {
  std::string latex;
  mpq_class value;
};

Formula MakeNumeral(SplitMix64& random) {
  const unsigned long whole = random.Below(50) + 1, below = random.Below(12) + 1;
  mpq_class value(whole, below);
  value.canonicalize();
  switch (random.Below(4)) {
    case 0: return {absl::StrCat(whole), mpq_class(whole)};
    case 1: return {absl::StrCat("\\frac{", whole, "}{", below, "}"), value};
    case 2: return {absl::StrCat("\\left(", whole, "/", below, "\\right)"), value};
    default:
      return {absl::StrCat(whole, ".", below % 10), mpq_class(whole) + mpq_class(below % 10, 10)};
  }
}

Formula MakeFormula(SplitMix64& random, int depth) {
  if (depth == 0 || random.Below(4) == 0) {
    Formula numeral = MakeNumeral(random);
    numeral.value.canonicalize();
    return numeral;
  }
  const Formula a = MakeFormula(random, depth - 1), b = MakeFormula(random, depth - 1);
  switch (random.Below(5)) {
    case 0: return {absl::StrCat("(", a.latex, "+", b.latex, ")"), a.value + b.value};
    case 1:
      return {absl::StrCat("\\left(", a.latex, " - ", b.latex, "\\right)"), a.value - b.value};
    case 2: return {absl::StrCat("(", a.latex, ")\\cdot(", b.latex, ")"), a.value * b.value};
    case 3:
      if (b.value == 0) return a;
      return {absl::StrCat("\\dfrac{", a.latex, "}{", b.latex, "}"), a.value / b.value};
    default: return {absl::StrCat("(", a.latex, ")^{2}"), a.value * a.value};
  }
}

std::string WriteValue(const mpq_class& value) {
  const std::string size = mpz_class(abs(value.get_num())).get_str();
  const char* const sign = value < 0 ? "-" : "";
  if (value.get_den() == 1) return sign + size;
  return absl::StrCat(sign, "\\frac{", size, "}{", value.get_den().get_str(), "}");
}

TEST(MathPropertyTest, ARationalFormulaEqualsItsValueAndNothingBesideIt) {
  for (uint64_t seed = 0; seed < 400; ++seed) {
    SplitMix64 random(seed);
    const Formula formula = MakeFormula(random, 4);
    const std::string value = WriteValue(formula.value);
    const std::string boxed = absl::StrCat("\\boxed{", formula.latex, "}");
    EXPECT_TRUE(Equal(value, boxed)) << "seed " << seed << ": " << formula.latex;
    EXPECT_TRUE(Equal(formula.latex, absl::StrCat("\\boxed{", value, "}"))) << "seed " << seed;

    for (const mpq_class& other :
         {mpq_class(formula.value + 1), mpq_class(-formula.value - 1),
          mpq_class(formula.value * 2 + 1), mpq_class(formula.value + mpq_class(1, 1'000'003))}) {
      if (other == formula.value) continue;
      EXPECT_FALSE(Equal(WriteValue(other), boxed)) << "seed " << seed << ": " << formula.latex;
    }
  }
}

// A polynomial in x as a sum in a random order, and as a product of its linear factors.
TEST(MathPropertyTest, APolynomialEqualsTheProductOfItsFactorsAndNoOther) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SplitMix64 random(seed);
    std::vector<long> coefficients = {1};
    std::string product;
    for (uint64_t n = 1 + random.Below(4); n > 0; --n) {
      const long root = static_cast<long>(random.Below(19)) - 9;
      absl::StrAppend(&product, "(x", root < 0 ? "" : "+", root, ")");
      std::vector<long> next(coefficients.size() + 1);
      for (size_t i = 0; i < coefficients.size(); ++i) {
        next[i] += coefficients[i] * root;
        next[i + 1] += coefficients[i];
      }
      coefficients = next;
    }
    const auto write = [&](long change) {
      std::string sum;
      for (size_t i = 0; i < coefficients.size(); ++i) {
        const long c = coefficients[i] + (i == 0 ? change : 0);
        absl::StrAppend(&sum, c < 0 ? "" : "+", c, "x^{", i, "}");
      }
      return absl::StrCat("\\boxed{", sum, "}");
    };
    EXPECT_TRUE(Equal(product, write(0))) << "seed " << seed << ": " << product;
    EXPECT_FALSE(Equal(product, write(1))) << "seed " << seed << ": " << product;
  }
}

TEST(MathPropertyTest, EveryAnswerEqualsItselfWhateverItsWhiteSpace) {
  for (const std::string answer :
       {"42", "\\frac{1}{2}", "(1, 2]", "\\{1, 2, 3\\}", "x = 5", "y = 2x + 3", "1 < x < 2",
        "\\sqrt{2} + \\pi", "\\begin{pmatrix} 1 & 2 \\\\ 3 & 4 \\end{pmatrix}", "5 \\text{ cm}",
        "\\text{Tuesday}", "50 \\%", "x^2 + 2 x", "0/0", "\\sum_{k=1}^{n} k^2"}) {
    const std::string wide = absl::StrReplaceAll(answer, {{" ", "   "}});
    EXPECT_TRUE(Equal(answer, absl::StrCat("\\boxed{", answer, "}"))) << answer;
    EXPECT_TRUE(Equal(answer, absl::StrCat("\\boxed{ ", wide, " }"))) << answer;
    EXPECT_TRUE(Equal(absl::StrCat("$", wide, "$"), absl::StrCat("\\boxed{", answer, "}")));
  }
}

TEST(MathPropertyTest, EqualNumbersAreEqualInBothDirections) {
  const char* const values[] = {"1/2",       "0.5",       "\\frac{2}{4}", "50\\%",     "2^{-1}",
                                "\\sqrt{2}", "1.4142136", "2^{1/2}",      "\\pi",      "3.1415927",
                                "x",         "x+1",       "(1,2)",        "\\{1,2\\}", "-1",
                                "e^{i\\pi}"};
  for (const std::string a : values) {
    for (const std::string b : values) {
      EXPECT_EQ(Equal(a, absl::StrCat("\\boxed{", b, "}")),
                Equal(b, absl::StrCat("\\boxed{", a, "}")))
          << a << " / " << b;
    }
  }
}

TEST(MathPropertyTest, TheVerdictDoesNotDependOnEarlierOnes) {
  const std::string gold = "\\sin x+\\frac{1}{y}", right = "\\boxed{\\frac{1}{y}+\\sin x}";
  for (int i = 0; i < 5; ++i) {
    Budget budget, again;
    EXPECT_EQ(Judge(right, gold, {}, budget), Outcome::kRight);
    Equal(gold, "\\boxed{79**88**95}");
    EXPECT_EQ(Judge(right, gold, {}, again), Outcome::kRight);
    EXPECT_EQ(budget.used(), again.used());
  }
}

}  // namespace
}  // namespace sluice::math
