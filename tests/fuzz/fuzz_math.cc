// Fuzzes the comparison of two answers to a mathematics question.
//
// Input: the gold, a zero byte, the response.
//
// Promises: nothing crashes; the work stays within the budget, and an outcome says so if it ended
// there; the same inputs give the same outcome with the same work; an answer that a smaller budget
// finds right is right; a response that is the gold itself in a box is never wrong.
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/base/utf8.h"
#include "common/verifiers/math/judge.h"
#include "common/verifiers/math/plain.h"
#include "tests/fuzz/target.h"

namespace sluice::fuzz {
namespace {

using math::Budget;
using math::Outcome;

Outcome JudgeTwice(absl::string_view response, absl::string_view gold,
                   const math::JudgeOptions& options) {
  Budget once, again, small(2000);
  const Outcome outcome = math::Judge(response, gold, options, once);
  SLUICE_CHECK(outcome == math::Judge(response, gold, options, again));
  SLUICE_CHECK(once.used() == again.used());
  SLUICE_CHECK(once.spent() == (outcome == Outcome::kTooComplex));
  // What is asked for beyond the budget is not done.
  SLUICE_CHECK(once.spent() || once.used() <= Budget::kSteps);

  const Outcome early = math::Judge(response, gold, options, small);
  SLUICE_CHECK(early == outcome || early == Outcome::kTooComplex);
  return outcome;
}

}  // namespace

void Run(absl::string_view input) {
  const size_t zero = input.find('\0');
  const absl::string_view gold = input.substr(0, zero);
  const absl::string_view response =
      zero == absl::string_view::npos ? absl::string_view() : input.substr(zero + 1);
  SLUICE_CHECK(IsUtf8(math::PlainText(input)));
  JudgeTwice(response, gold, {});
  JudgeTwice(response, gold, {.final_form = true, .equal = {.ordered = true, .decimals = 2}});

  // A gold that is read as a whole equals itself.
  Budget budget;
  const std::optional<std::string> whole = math::ExtractGold(gold, budget);
  if (!whole || budget.spent()) return;
  const std::string boxed = absl::StrCat("\\boxed{", *whole, "}");
  Budget other;
  const std::optional<std::string> inside =
      math::ExtractAnswer(boxed, math::Extraction::kBoxed, other);
  if (inside && *inside == *whole && math::CheckGold(*whole).empty()) {
    const Outcome outcome = JudgeTwice(boxed, *whole, {});
    Budget reread;
    const std::optional<std::string> again = math::ExtractGold(*whole, reread);
    if (again && *again == *whole)
      SLUICE_CHECK_MSG(outcome != Outcome::kWrong && outcome != Outcome::kUnreadable, boxed);
  }
}

std::vector<std::string> Seeds() {
  struct Seed {
    absl::string_view gold, response;
  };
  constexpr Seed kSeeds[] = {
      {"\\frac{1}{2}", "so \\boxed{\\tfrac12} or \\boxed{0.5}. The final answer is $x = .5$."},
      {"1,234.5", "<answer>**1{,}234.50**</answer>\n#### 1 234\xe2\x80\x89\xef\xbc\x95"},
      {"x^2+2x+1", "The answer is $(x+1)^{2}$, as $\\sqrt[3]{x}\\cdot\\sin^2 3x\\ne|x|!$"},
      {"\\{1\\pm\\sqrt{5}, -2\\}", "\\[\\boxed{-2 \\text{ and } 1\\pm\\sqrt5}\\]"},
      {"-1<x\\le 2", "$x\\in\\left(-1,2\\right]\\cup[3,\\infty)$"},
      {"\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}",
       "\\boxed{\\begin{bmatrix}1&0\\\\0&1\\end{bmatrix}\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}}"},
      {"10\\%", "R\xc3\xa9ponse: il y a 0,1 $ ou 10 \\text{ cm}^2 / 5^\\circ"},
      {"e^{i\\pi}+\\binom{5}{2}", "\\boxed{-1+\\frac{10!}{9!}+\\lfloor 0.\\overline{3}\\rfloor}"},
      {"y=2x+3", "\\\\boxed{2x-y+3=0 \\\\text{ or } 101_2:7 \\bmod 3}"},
      {"\\sum_{k=1}^{n} k^2", "\\boxed{\\lim_{x\\to 0}\\frac{\\sin x}{x}=1, f'(x)=a_{n-1}}"},
  };
  std::vector<std::string> seeds;
  for (const Seed& seed : kSeeds)
    seeds.push_back(absl::StrCat(seed.gold, absl::string_view("\0", 1), seed.response));
  return seeds;
}

}  // namespace sluice::fuzz
