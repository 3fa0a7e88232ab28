#include "common/verifiers/code/tests.h"

#include <optional>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/base/json_depth.h"
#include "common/base/status.h"
#include "common/verifiers/code/literal.h"

namespace sluice::code {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxJsonDepth = 100;
constexpr size_t kMaxInput = 8 << 20;

absl::Status Bad(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("field `answer` has no tests: ", what));
}

// The first of the row's fields of these names, if it is a text.
std::string TextField(const Json& row, std::initializer_list<const char*> names) {
  for (const char* const name : names) {
    const auto it = row.find(name);
    if (it != row.end() && it->is_string()) return it->get<std::string>();
  }
  return "";
}

// Texts of inputs and outputs may come as lists of lines (APPS).
std::optional<std::string> LinesOf(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number()) return value.dump();
  if (!value.is_array()) return std::nullopt;
  std::string text;
  for (const Json& line : value) {
    const std::optional<std::string> one = LinesOf(line);
    if (!one.has_value()) return std::nullopt;
    absl::StrAppend(&text, *one, "\n");
  }
  return text;
}

// The arguments of a call: a list, or a text with one JSON value on each line (LiveCodeBench).
absl::StatusOr<Json> ArgumentsOf(const Json& input) {
  if (input.is_array()) return input;
  if (!input.is_string()) return Bad("the input of a call is neither a list nor a text");
  Json arguments = Json::array();
  const std::string text = input.get<std::string>();
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipWhitespace())) {
    if (JsonDepth(line) > kMaxJsonDepth) return Bad("an argument is nested too deeply");
    Json value = Json::parse(line.begin(), line.end(), nullptr, false);
    if (value.is_discarded())
      return Bad(absl::StrCat("the argument ", line.substr(0, 40), " is not JSON"));
    arguments.push_back(std::move(value));
  }
  return arguments;
}

absl::StatusOr<Test> CallTest(const Json& input, const Json& output) {
  SLUICE_ASSIGN_OR_RETURN(const Json arguments, ArgumentsOf(input));
  Json gold = output;
  // Where arguments are JSON in a text, so is the result.
  if (input.is_string() && output.is_string()) {
    const std::string text = output.get<std::string>();
    gold = JsonDepth(text) > kMaxJsonDepth ? Json() : Json::parse(text, nullptr, false);
    if (gold.is_discarded()) return Bad(absl::StrCat("the output ", text, " is not JSON"));
  }
  return Test{.kind = CodeTask::Kind::kCall,
              .input = arguments.dump(-1, ' ', false, Json::error_handler_t::replace),
              .expected = {.kind = Expectation::Kind::kEqual, .value = FromJson(gold)}};
}

absl::StatusOr<Test> StdioTest(const Json& input, const Json& output) {
  const std::optional<std::string> in = LinesOf(input), out = LinesOf(output);
  if (!in.has_value() || !out.has_value()) return Bad("an input or an output is not a text");
  return Test{.kind = CodeTask::Kind::kStdio,
              .input = *in,
              .expected = {.kind = Expectation::Kind::kOutput, .text = *out}};
}

absl::Status AddPair(const Json& input, const Json& output, Tests* tests) {
  absl::StatusOr<Test> test =
      tests->function.empty() ? StdioTest(input, output) : CallTest(input, output);
  SLUICE_RETURN_IF_ERROR(test.status());
  tests->tests.push_back(*std::move(test));
  return absl::OkStatus();
}

// An assertion as it is, within the process of the program.
Test InProcess(const std::string& code) {
  return {.kind = CodeTask::Kind::kAssert,
          .input = code,
          .expected = {.kind = Expectation::Kind::kNoError}};
}

void AddAssertion(const std::string& setup, const std::string& assertion, Tests* tests) {
  // What the setup defines may be used by the assertion, so it stays as it is.
  std::optional<Test> test;
  if (setup.empty()) test = TakeApart(assertion);
  if (!test.has_value()) {
    test = InProcess(absl::StrCat(setup, setup.empty() ? "" : "\n", assertion));
    tests->forgeable = true;
  }
  tests->tests.push_back(*std::move(test));
}

// Takes apart a function `check(candidate)` of assertions alone, one a line.
std::optional<std::vector<Test>> TakeCheckApart(absl::string_view code,
                                                const std::string& entry_point) {
  std::vector<Test> tests;
  bool in_check = false;
  for (absl::string_view line : absl::StrSplit(code, '\n')) {
    const bool indented = absl::StartsWith(line, " ") || absl::StartsWith(line, "\t");
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || line[0] == '#') continue;
    if (absl::StartsWith(line, "def check(candidate)")) {
      in_check = true;
    } else if (in_check && indented) {
      if (line == "assert True" || line == "pass") continue;
      const std::optional<Test> test =
          TakeApart(absl::StrReplaceAll(line, {{"candidate(", absl::StrCat(entry_point, "(")}}));
      if (!test.has_value()) return std::nullopt;
      tests.push_back(*test);
    } else if (in_check || !(absl::StartsWith(line, "METADATA") || absl::StartsWith(line, "'") ||
                             absl::StartsWith(line, "}"))) {
      return std::nullopt;
    }
  }
  if (tests.empty()) return std::nullopt;
  return tests;
}

absl::Status AddCode(const Json& row, const std::string& setup, const std::string& code,
                     Tests* tests) {
  const std::string entry_point = TextField(row, {"entry_point"});
  const bool check = absl::StrContains(code, "def check(");
  if (check && entry_point.empty())
    return Bad("it defines `check`, and the row has no field `entry_point`");
  if (check && setup.empty()) {
    if (auto apart = TakeCheckApart(code, entry_point)) {
      tests->tests = *std::move(apart);
      return absl::OkStatus();
    }
  }
  if (!absl::StrContains(code, "assert")) return Bad("the text has no assertion");
  // Lines of assertions are tests of their own; other code is one test.
  std::vector<std::string> lines;
  bool plain = !check;
  for (const absl::string_view line : absl::StrSplit(code, '\n', absl::SkipWhitespace())) {
    plain = plain && absl::StartsWith(line, "assert");
    lines.emplace_back(line);
  }
  if (plain) {
    for (const std::string& line : lines) AddAssertion(setup, line, tests);
    return absl::OkStatus();
  }
  tests->tests.push_back(InProcess(absl::StrCat(
      setup, "\n", code, check ? absl::StrCat("\ncheck(", entry_point, ")\n") : "\n")));
  tests->forgeable = true;
  return absl::OkStatus();
}

absl::Status AddLists(const Json& answer, Tests* tests) {
  if (const auto name = answer.find("fn_name"); name != answer.end() && name->is_string())
    tests->function = name->get<std::string>();
  const auto inputs = answer.find("inputs"), outputs = answer.find("outputs");
  if (inputs == answer.end() || outputs == answer.end() || !inputs->is_array() ||
      !outputs->is_array())
    return Bad("the object lacks the lists `inputs` and `outputs`");
  if (inputs->size() != outputs->size()) {
    return Bad(
        absl::StrCat("it has ", inputs->size(), " inputs and ", outputs->size(), " outputs"));
  }
  for (size_t i = 0; i < inputs->size(); ++i)
    SLUICE_RETURN_IF_ERROR(
        Annotate(AddPair((*inputs)[i], (*outputs)[i], tests), absl::StrCat("test ", i + 1)));
  return absl::OkStatus();
}

absl::Status AddItems(const Json& list, const std::string& setup, Tests* tests) {
  for (const Json& item : list) {
    if (item.is_string()) {
      AddAssertion(setup, item.get<std::string>(), tests);
    } else if (item.is_object() && item.contains("input") && item.contains("output")) {
      SLUICE_RETURN_IF_ERROR(AddPair(item["input"], item["output"], tests));
    } else {
      return Bad("an element is neither a text nor an object with `input` and `output`");
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Tests> ReadTests(const Json& row, size_t most) {
  const auto field = row.find("answer");
  if (field == row.end()) {
    return absl::InvalidArgumentError(
        "the row has no field `answer`; name the column that holds the tests: "
        "data.train.N.answer");
  }
  Tests tests{.function = TextField(row, {"fn_name", "func_name"})};
  const std::string setup = TextField(row, {"setup", "test_setup_code"});
  Json answer = *field;
  if (answer.is_string()) {
    const std::string text = answer.get<std::string>();
    Json parsed;
    if (JsonDepth(text) <= kMaxJsonDepth) parsed = Json::parse(text, nullptr, false);
    if (parsed.is_object() || parsed.is_array()) answer = std::move(parsed);
    else SLUICE_RETURN_IF_ERROR(AddCode(row, setup, text, &tests));
  }
  if (answer.is_object()) SLUICE_RETURN_IF_ERROR(AddLists(answer, &tests));
  else if (answer.is_array()) SLUICE_RETURN_IF_ERROR(AddItems(answer, setup, &tests));
  else if (!answer.is_string()) return Bad("it is neither a text, nor a list, nor an object");

  if (tests.tests.empty()) return Bad("the list is empty");
  tests.checker = TextField(row, {"checker"});
  const auto is_stdio = [](const Test& test) { return test.kind == CodeTask::Kind::kStdio; };
  if (!tests.checker.empty() && !absl::c_all_of(tests.tests, is_stdio)) {
    return absl::InvalidArgumentError(
        "field `checker` judges what programs print, but the row's tests are calls or assertions");
  }
  for (const Test& test : tests.tests) {
    if (test.input.size() <= kMaxInput) continue;
    return Bad(
        absl::StrCat("an input has ", test.input.size(), " bytes; the limit is ", kMaxInput));
  }
  if (tests.tests.size() > most) tests.tests.resize(most);
  return tests;
}

}  // namespace sluice::code
