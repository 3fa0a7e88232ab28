#include <optional>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/verifiers/code/literal.h"
#include "common/verifiers/code/tests.h"

namespace sluice::code {
namespace {

using Json = nlohmann::json;

// Functions that may stand around the call of the program. Their result must equal a literal, so it
// does not matter what a program makes of them.
constexpr absl::string_view kWrappers[] = {"set",   "frozenset", "sorted", "list",
                                           "tuple", "len",       "dict",   "str",
                                           "int",   "float",     "bool",   "round"};

bool IsNameStart(char c) { return absl::ascii_isalpha(c) || c == '_'; }

// Consumes a name, as f or Solution.
absl::string_view ConsumeName(absl::string_view* text) {
  *text = absl::StripLeadingAsciiWhitespace(*text);
  size_t length = 0;
  while (length < text->size() &&
         (IsNameStart((*text)[length]) || (length > 0 && absl::ascii_isdigit((*text)[length]))))
    ++length;
  const absl::string_view name = text->substr(0, length);
  text->remove_prefix(length);
  return name;
}

bool ConsumeChar(absl::string_view* text, char c) {
  *text = absl::StripLeadingAsciiWhitespace(*text);
  if (text->empty() || text->front() != c) return false;
  text->remove_prefix(1);
  return true;
}

// Consumes literals, perhaps with names (a=1), up to the closing parenthesis.
bool ConsumeArguments(absl::string_view* text) {
  while (!ConsumeChar(text, ')')) {
    absl::string_view named = *text;
    if (!ConsumeName(&named).empty() && ConsumeChar(&named, '=') && !absl::StartsWith(named, "="))
      *text = named;
    if (!ConsumeLiteral(text).has_value()) return false;
    if (!ConsumeChar(text, ',') && !absl::StartsWith(absl::StripLeadingAsciiWhitespace(*text), ")"))
      return false;
  }
  return true;
}

// Consumes a call of the program with literals, perhaps within wrappers. Returns its text.
std::optional<std::string> ConsumeCall(absl::string_view* text) {
  const absl::string_view begin = *text = absl::StripLeadingAsciiWhitespace(*text);
  const absl::string_view name = ConsumeName(text);
  if (name.empty() || !ConsumeChar(text, '(')) return std::nullopt;
  bool wrapper = false;
  for (const absl::string_view known : kWrappers) wrapper = wrapper || name == known;
  if (wrapper) {
    if (!ConsumeCall(text).has_value()) return std::nullopt;
    if (ConsumeChar(text, ',') && !ConsumeLiteral(text).has_value()) return std::nullopt;
    if (!ConsumeChar(text, ')')) return std::nullopt;
  } else if (!ConsumeArguments(text)) {
    return std::nullopt;
  }
  return std::string(begin.substr(0, begin.size() - text->size()));
}

// Whether only a message may follow.
bool IsEnd(absl::string_view text) {
  text = absl::StripLeadingAsciiWhitespace(text);
  return text.empty() || text[0] == ',' || text[0] == '#';
}

Test Of(std::string call, Expectation::Kind kind, Json value = nullptr) {
  return {.kind = CodeTask::Kind::kExpr,
          .input = std::move(call),
          .expected = {.kind = kind, .value = std::move(value)}};
}

// CALL, CALL == LITERAL, CALL is LITERAL, CALL in LITERAL
std::optional<Test> CallFirst(absl::string_view text) {
  const std::optional<std::string> call = ConsumeCall(&text);
  if (!call.has_value()) return std::nullopt;
  if (IsEnd(text)) return Of(*call, Expectation::Kind::kTrue);
  text = absl::StripLeadingAsciiWhitespace(text);
  Expectation::Kind kind = Expectation::Kind::kEqual;
  if (absl::ConsumePrefix(&text, "in ")) kind = Expectation::Kind::kAnyOf;
  else if (!absl::ConsumePrefix(&text, "==") && !absl::ConsumePrefix(&text, "is "))
    return std::nullopt;
  std::optional<Json> value = ConsumeLiteral(&text);
  if (!value.has_value() || !IsEnd(text)) return std::nullopt;
  if (kind == Expectation::Kind::kAnyOf && value->is_object() && value->contains("set"))
    value = Json((*value)["set"]);
  if (kind == Expectation::Kind::kAnyOf && !value->is_array()) return std::nullopt;
  return Of(*call, kind, *std::move(value));
}

// LITERAL == CALL
std::optional<Test> LiteralFirst(absl::string_view text) {
  std::optional<Json> value = ConsumeLiteral(&text);
  text = absl::StripLeadingAsciiWhitespace(text);
  if (!value.has_value() || !absl::ConsumePrefix(&text, "==")) return std::nullopt;
  const std::optional<std::string> call = ConsumeCall(&text);
  if (!call.has_value() || !IsEnd(text)) return std::nullopt;
  return Of(*call, Expectation::Kind::kEqual, *std::move(value));
}

// math.isclose(CALL, LITERAL, rel_tol=.., abs_tol=..)
std::optional<Test> IsClose(absl::string_view text) {
  if (!absl::ConsumePrefix(&text, "math.isclose(") && !absl::ConsumePrefix(&text, "isclose("))
    return std::nullopt;
  const std::optional<std::string> call = ConsumeCall(&text);
  if (!call.has_value() || !ConsumeChar(&text, ',')) return std::nullopt;
  const std::optional<Json> value = ConsumeLiteral(&text);
  if (!value.has_value()) return std::nullopt;
  Test test = Of(*call, Expectation::Kind::kClose, *value);
  test.expected.relative = 1e-9;
  while (ConsumeChar(&text, ',')) {
    const absl::string_view name = ConsumeName(&text);
    if (!ConsumeChar(&text, '=')) return std::nullopt;
    const std::optional<Json> tolerance = ConsumeLiteral(&text);
    const std::optional<double> number =
        tolerance.has_value() ? NumberOf(*tolerance) : std::nullopt;
    if (!number.has_value()) return std::nullopt;
    if (name == "rel_tol") test.expected.relative = *number;
    else if (name == "abs_tol") test.expected.absolute = *number;
    else return std::nullopt;
  }
  if (!ConsumeChar(&text, ')') || !IsEnd(text)) return std::nullopt;
  return test;
}

// abs(CALL - LITERAL) < LITERAL
std::optional<Test> AbsoluteDifference(absl::string_view text) {
  if (!absl::ConsumePrefix(&text, "abs(")) return std::nullopt;
  const std::optional<std::string> call = ConsumeCall(&text);
  if (!call.has_value() || !ConsumeChar(&text, '-')) return std::nullopt;
  const std::optional<Json> value = ConsumeLiteral(&text);
  if (!value.has_value() || !ConsumeChar(&text, ')') || !ConsumeChar(&text, '<'))
    return std::nullopt;
  ConsumeChar(&text, '=');
  const std::optional<Json> bound = ConsumeLiteral(&text);
  const std::optional<double> number = bound.has_value() ? NumberOf(*bound) : std::nullopt;
  if (!number.has_value() || !IsEnd(text)) return std::nullopt;
  Test test = Of(*call, Expectation::Kind::kClose, *value);
  test.expected.absolute = *number;
  return test;
}

// not CALL
std::optional<Test> Negated(absl::string_view text) {
  if (!absl::ConsumePrefix(&text, "not ")) return std::nullopt;
  const std::optional<std::string> call = ConsumeCall(&text);
  if (!call.has_value() || !IsEnd(text)) return std::nullopt;
  return Of(*call, Expectation::Kind::kFalse);
}

}  // namespace

std::optional<Test> TakeApart(absl::string_view assertion) {
  absl::string_view text = absl::StripAsciiWhitespace(assertion);
  if (!absl::ConsumePrefix(&text, "assert ") && !absl::StartsWith(text, "assert("))
    return std::nullopt;
  absl::ConsumePrefix(&text, "assert");
  text = absl::StripAsciiWhitespace(text);
  // Parentheses around all of it.
  if (absl::StartsWith(text, "(") && absl::EndsWith(text, ")")) {
    if (auto test = TakeApart(absl::StrCat("assert ", text.substr(1, text.size() - 2))))
      return test;
  }
  for (const auto form : {Negated, IsClose, AbsoluteDifference, CallFirst, LiteralFirst}) {
    if (std::optional<Test> test = form(text)) return test;
  }
  return std::nullopt;
}

}  // namespace sluice::code
