#include "common/verifiers/countdown.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "common/base/status.h"
#include "common/base/utf8.h"
#include "common/verifiers/answer_part.h"
#include "common/verifiers/args.h"
#include "common/verifiers/decimal.h"

namespace sluice {
namespace {

constexpr size_t kMaxNumbers = 16, kMaxExpression = 1000;
constexpr int kMaxNesting = 64;
constexpr int64_t kMaxNumber = 1'000'000'000;

// Exact; nothing if a number gets too large, or for a division by 0.
std::optional<Rational> Reduced(__int128 numerator, __int128 denominator) {
  constexpr __int128 kLimit = __int128{1} << 62;  // Products of two stay within __int128.
  if (denominator == 0) return std::nullopt;
  if (denominator < 0) {
    numerator = -numerator;
    denominator = -denominator;
  }
  __int128 a = numerator < 0 ? -numerator : numerator, b = denominator;
  while (b != 0) a = std::exchange(b, a % b);
  if (a > 1) {
    numerator /= a;
    denominator /= a;
  }
  if (numerator > kLimit || numerator < -kLimit || denominator > kLimit) return std::nullopt;
  return Rational{numerator, denominator};
}

// Parses and computes in one pass: a sum of products of numbers and brackets.
class Parser {
 public:
  explicit Parser(absl::string_view text) : text_(text) {}

  // Nothing if the text is not an expression; why() says so.
  std::optional<Rational> Parse() {
    std::optional<Rational> value = Sum(0);
    Skip();
    if (value && at_ < text_.size()) return Fail("unreadable");
    return value;
  }
  const std::vector<int64_t>& numbers() const { return numbers_; }
  const char* why() const { return why_; }

 private:
  std::optional<Rational> Fail(const char* why) {
    if (why_ == nullptr) why_ = why;
    return std::nullopt;
  }
  void Skip() {
    while (at_ < text_.size() && absl::ascii_isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
  }
  // Takes one of these operators; 0 if none is next.
  char Take(absl::string_view operators) {
    Skip();
    if (at_ == text_.size() || operators.find(text_[at_]) == absl::string_view::npos) return 0;
    return text_[at_++];
  }

  std::optional<Rational> Sum(int depth) {
    std::optional<Rational> left = Product(depth);
    while (left) {
      const char op = Take("+-");
      if (op == 0) return left;
      const std::optional<Rational> right = Product(depth);
      if (!right) return std::nullopt;
      const __int128 term = right->numerator * left->denominator;
      left = Reduced(left->numerator * right->denominator + (op == '+' ? term : -term),
                     left->denominator * right->denominator);
      if (!left) return Fail("too_large");
    }
    return left;
  }

  std::optional<Rational> Product(int depth) {
    std::optional<Rational> left = Factor(depth);
    while (left) {
      const char op = Take("*/");
      if (op == 0) return left;
      const std::optional<Rational> right = Factor(depth);
      if (!right) return std::nullopt;
      if (op == '/' && right->numerator == 0) return Fail("division_by_zero");
      left =
          op == '*'
              ? Reduced(left->numerator * right->numerator, left->denominator * right->denominator)
              : Reduced(left->numerator * right->denominator, left->denominator * right->numerator);
      if (!left) return Fail("too_large");
    }
    return left;
  }

  std::optional<Rational> Factor(int depth) {
    if (depth > kMaxNesting) return Fail("too_deep");
    if (Take("-") != 0) {
      std::optional<Rational> value = Factor(depth + 1);
      if (value) value->numerator = -value->numerator;
      return value;
    }
    if (Take("(") != 0) {
      const std::optional<Rational> value = Sum(depth + 1);
      if (value && Take(")") == 0) return Fail("unreadable");
      return value;
    }
    Skip();
    const size_t begin = at_;
    while (at_ < text_.size() && absl::ascii_isdigit(static_cast<unsigned char>(text_[at_]))) ++at_;
    int64_t number = 0;
    if (at_ == begin) return Fail("unreadable");
    if (!absl::SimpleAtoi(text_.substr(begin, at_ - begin), &number) || number > kMaxNumber)
      return Fail("too_large");
    numbers_.push_back(number);
    return Rational{number, 1};
  }

  const absl::string_view text_;
  size_t at_ = 0;
  std::vector<int64_t> numbers_;
  const char* why_ = nullptr;
};

// The expression that the answer finally states, with ASCII operators.
std::string ExpressionOf(absl::string_view text) {
  std::optional<absl::string_view> part = LastTag(text, "answer");
  if (!part) part = LastBox(text);
  if (!part) part = LastLine(text);
  std::string plain = absl::StrReplaceAll(*part, {{"\u00d7", "*"},
                                                  {"\u00b7", "*"},
                                                  {"\u2217", "*"},
                                                  {"\u22c5", "*"},
                                                  {"\\times", "*"},
                                                  {"\\cdot", "*"},
                                                  {"\u00f7", "/"},
                                                  {"\u2215", "/"},
                                                  {"\\div", "/"},
                                                  {"\u2212", "-"},
                                                  {"\u2013", "-"},
                                                  {"\\left", ""},
                                                  {"\\right", ""},
                                                  {"$", ""}});
  plain.resize(std::min(plain.size(), plain.find('=')));
  return plain;
}

struct Task {
  std::vector<int64_t> numbers;  // Sorted.
  Rational target;
};

class Countdown : public Verifier {
 public:
  Countdown(bool all, double valid, double partial) : all_(all), valid_(valid), partial_(partial) {}

  absl::StatusOr<Verdict> Score(const Answer& answer, const nlohmann::json& row) const override {
    SLUICE_ASSIGN_OR_RETURN(const Task task, TaskOf(row));
    absl::string_view text;
    if (!AfterThinking(answer.text, &text)) return Verdict{.reason = "unfinished"};
    const std::string expression = ExpressionOf(text);
    if (absl::StripAsciiWhitespace(expression).empty()) return Verdict{.reason = "no_answer"};
    if (expression.size() > kMaxExpression) return Verdict{.reason = "too_long"};
    Parser parser(expression);
    const std::optional<Rational> value = parser.Parse();
    if (!value) return Verdict{.reason = parser.why()};

    std::vector<int64_t> used = parser.numbers();
    std::sort(used.begin(), used.end());
    const bool fits =
        all_ ? used == task.numbers
             : std::includes(task.numbers.begin(), task.numbers.end(), used.begin(), used.end());
    if (!fits) return Verdict{.score = partial_ * ShareUsed(used, task), .reason = "other_numbers"};
    if (*value == task.target) return Verdict{.score = 1, .reason = "right"};
    return Verdict{.score = valid_, .reason = "wrong"};
  }
  absl::Status CheckRow(const nlohmann::json& row) const override { return TaskOf(row).status(); }

 private:
  // How many of the numbers are the task's, as a share of those of the task or of the expression,
  // whichever are more: so an expression gains nothing by trying many. `used` is sorted.
  static double ShareUsed(const std::vector<int64_t>& used, const Task& task) {
    std::vector<int64_t> both;
    std::set_intersection(used.begin(), used.end(), task.numbers.begin(), task.numbers.end(),
                          std::back_inserter(both));
    return static_cast<double>(both.size()) /
           static_cast<double>(std::max(used.size(), task.numbers.size()));
  }

  static absl::StatusOr<Task> TaskOf(const nlohmann::json& row) {
    Task task;
    const auto numbers = row.find("numbers");
    if (numbers == row.end() || !numbers->is_array() || numbers->empty() ||
        numbers->size() > kMaxNumbers)
      return absl::InvalidArgumentError("field `numbers` must be a list of 1 to 16 whole numbers");
    for (const nlohmann::json& number : *numbers) {
      // A whole number above int64_t becomes negative here.
      const int64_t value = number.is_number_integer() ? number.get<int64_t>() : -1;
      if (value < 0 || value > kMaxNumber) {
        return absl::InvalidArgumentError(
            absl::StrCat("field `numbers` has ", Utf8Prefix(number.dump(), 40),
                         ", wanted: a whole number from 0 to ", kMaxNumber));
      }
      task.numbers.push_back(value);
    }
    std::sort(task.numbers.begin(), task.numbers.end());
    SLUICE_ASSIGN_OR_RETURN(const std::string gold, GoldOf(row));
    const std::optional<Rational> target = ParseRational(gold);
    if (!target)
      return absl::InvalidArgumentError(
          absl::StrCat("field `answer` is \"", Utf8Prefix(gold, 40), "\", wanted: a number"));
    task.target = *target;
    return task;
  }

  const bool all_;
  const double valid_, partial_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Verifier>> MakeCountdown(const nlohmann::json& args) {
  ArgReader reader("countdown", args);
  const std::string use = reader.String("use", "all");
  const double valid = reader.Number("valid", 0, 0, 0.999);
  const double partial = reader.Number("partial", 0, 0, 0.999);
  SLUICE_RETURN_IF_ERROR(reader.Finish());
  if (partial > valid) {
    return absl::InvalidArgumentError(absl::StrCat(
        "countdown: args.partial is ", partial, ", but an expression of the right numbers with ",
        "another value only gets args.valid, which is ", valid, "; wanted: at most that"));
  }
  if (use != "all" && use != "subset")
    return absl::InvalidArgumentError(
        absl::StrCat("countdown: args.use is \"", use, "\", wanted: all or subset"));
  return std::make_unique<Countdown>(use == "all", valid, partial);
}

}  // namespace sluice
