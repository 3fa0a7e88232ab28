// regex, format, multiple_choice, countdown and json_schema.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <numeric>
#include <random>

#include "absl/strings/str_cat.h"
#include "common/verifiers/verifier.h"
#include "nlohmann/json.hpp"

namespace sluice {
namespace {

using nlohmann::json;
using testing::HasSubstr;

struct Case {
  std::string text;
  std::string reason;
};

Verdict Judge(const std::string& name, const json& args, const json& row, const std::string& text) {
  const auto verifier = MakeVerifier(name, args);
  if (!verifier.ok()) return {.score = -1, .reason = std::string(verifier.status().message())};
  EXPECT_EQ((*verifier)->CheckRow(row), absl::OkStatus());
  const auto verdict = (*verifier)->Score({.text = text}, row);
  return verdict.ok() ? *verdict
                      : Verdict{.score = -1, .reason = std::string(verdict.status().message())};
}

// Expects these reasons, and a score of 1 for `good` alone.
void ExpectReasons(const std::string& name, const json& args, const json& row,
                   const std::string& good, const std::vector<Case>& cases) {
  for (const Case& c : cases) {
    const Verdict verdict = Judge(name, args, row, c.text);
    EXPECT_EQ(verdict.reason, c.reason) << name << ": " << c.text.substr(0, 200);
    EXPECT_EQ(verdict.score, c.reason == good ? 1 : 0) << name << ": " << c.text.substr(0, 200);
  }
}

std::string Refusal(const std::string& name, const json& args) {
  return std::string(MakeVerifier(name, args).status().message());
}

absl::Status RowRefusal(const std::string& name, const json& row) {
  const auto verifier = MakeVerifier(name, json::object());
  const absl::Status scored = (*verifier)->Score({.text = "1"}, row).status();
  EXPECT_EQ((*verifier)->CheckRow(row), scored);
  return scored;
}

TEST(RegexTest, APartOfTheAnswerMatchesOrAllOfIt) {
  ExpectReasons("regex", {{"pattern", "[0-9]{3}"}}, {}, "match",
                {{"it is 123.", "match"},
                 {"12", "no_match"},
                 {"<think>123</think>12", "no_match"},
                 {"<think>123", "unfinished"},
                 {"\xff 123", "match"}});
  ExpectReasons("regex", {{"pattern", "[0-9]{3}"}, {"match", "full"}}, {}, "match",
                {{" 123\n", "match"}, {"it is 123", "no_match"}});
}

TEST(RegexTest, NoPatternNeedsMoreThanLinearTime) {
  const std::string text(1 << 20, 'a');
  EXPECT_EQ(Judge("regex", {{"pattern", "^(a+)+$"}}, {}, text + "b").reason, "no_match");
  EXPECT_EQ(Judge("regex", {{"pattern", "a[ab]{900}c"}}, {}, text).reason, "too_complex");
  EXPECT_THAT(Refusal("regex", {{"pattern", "(((a{1000}){1000}){1000})"}}), HasSubstr("pattern"));
  EXPECT_THAT(Refusal("regex", {{"pattern", "("}}), HasSubstr("args.pattern: \"(\" is no pattern"));
  EXPECT_THAT(Refusal("regex", json::object()), HasSubstr("args.pattern: the pattern has 0 bytes"));
  EXPECT_THAT(Refusal("regex", {{"pattern", "a"}, {"match", "some"}}), HasSubstr("search or full"));
}

TEST(FormatTest, EachTagIsThereOnceAndInOrder) {
  const json args = {{"tags", {"think", "answer"}}};
  ExpectReasons("format", args, {}, "right",
                {{"<think>a</think><answer>b</answer>", "right"},
                 {"so <think>a</think>\n<answer>b</answer> done", "right"},
                 {"<answer>b</answer><think>a</think>", "out_of_order:answer"},
                 {"<think>a</think>", "not_once:answer"},
                 {"<think>a</think><answer>b</answer><answer>c</answer>", "not_once:answer"},
                 {"<think>a<answer>b</answer></think>", "out_of_order:answer"},
                 {"</think><think>a<answer>b</answer>", "out_of_order:think"},
                 {"<think> \n</think><answer>b</answer>", "blank:think"},
                 {"", "not_once:think"}});
  ExpectReasons("format", {{"tags", {"think", "answer"}}, {"strict", true}}, {}, "right",
                {{" <think>a</think>\n<answer>b</answer>\n", "right"},
                 {"so <think>a</think><answer>b</answer>", "text_outside"},
                 {"<think>a</think> so <answer>b</answer>", "text_outside"},
                 {"<think>a</think><answer>b</answer>!", "text_outside"}});
  EXPECT_THAT(Refusal("format", json::object()), HasSubstr("args.tags has 0 names"));
  EXPECT_THAT(Refusal("format", {{"tags", {"a", "a"}}}), HasSubstr("names \"a\" twice"));
  EXPECT_THAT(Refusal("format", {{"tags", {"<a>"}}}), HasSubstr("without < and >"));
}

TEST(MultipleChoiceTest, TheLetterIsFoundWhereModelsPutIt) {
  const json row = {{"answer", "C"}};
  ExpectReasons("multiple_choice", json::object(), row, "right",
                {{"\\boxed{C}", "right"},
                 {"\\boxed{\\text{C}}", "right"},
                 {"\\boxed{(C)}", "right"},
                 {"\\boxed{A} no, \\boxed{C}", "right"},
                 {"<answer> c </answer>", "right"},
                 {"The answer is (C).", "right"},
                 {"the answer is C", "right"},
                 {"Answer: **C**", "right"},
                 {"The correct choice is C because of B.", "right"},
                 {"So **C) Paris** it is", "right"},
                 {"Let me see.\nC", "right"},
                 {"Let me see.\nC. Paris", "right"},
                 {"Let me see.\n(c)", "right"},
                 {"The answer is B", "wrong"},
                 {"The answer is B. The answer is C.", "right"},
                 {"The answer is C. The answer is B.", "wrong"},
                 {"The answer is B, or the answer is C.", "ambiguous"},
                 {"Option A is wrong because it is hot. Option B contradicts the text. So the "
                  "answer is C.",
                  "right"},
                 {"The correct answer is C. Option A is incorrect.", "right"},
                 {"\\boxed{B} but C", "wrong"},
                 {"Cats are nice", "no_answer"},
                 {"A dog", "no_answer"},
                 {"the answer is a bit long", "no_answer"},
                 {"", "no_answer"},
                 {"<think>C", "unfinished"}});
}

TEST(MultipleChoiceTest, AChoiceMayBeNamedByItsText) {
  const json row = {{"answer", "Paris"}, {"choices", {"Rome", "Berlin", "Paris"}}};
  ExpectReasons("multiple_choice", json::object(), row, "right",
                {{"\\boxed{paris}", "right"},
                 {"I think of France.\nParis.", "right"},
                 {"The answer is C", "right"},
                 {"\\boxed{Rome}", "wrong"},
                 {"\\boxed{Z}", "no_answer"},
                 {"Paris or Rome", "no_answer"}});
}

TEST(MultipleChoiceTest, AGoldThatIsNoLetterIsTheDatasFault) {
  for (const json& row : {json{{"answer", "Paris"}}, json{{"answer", ""}}, json{{"answer", "3"}},
                          json{{"answer", "D"}, {"choices", {"a", "b"}}}, json::object(),
                          json{{"answer", "A"}, {"choices", "a"}},
                          json{{"answer", "B"}, {"choices", {"C", "A", "D", "B"}}}})
    EXPECT_TRUE(absl::IsInvalidArgument(RowRefusal("multiple_choice", row))) << row;
}

const json kGame = {{"numbers", {3, 5, 7, 2}}, {"answer", 24}};

TEST(CountdownTest, AnExpressionOfTheNumbersHasTheTarget) {
  ExpectReasons("countdown", json::object(), kGame, "right",
                {{"<answer>(7 - 3) * (5 + 2) - 4</answer>", "other_numbers"},
                 {"<answer>7 * 5 - 3 * 2</answer>", "wrong"},
                 {"<answer>(5 + 7) * (3 - 2) * 2</answer>", "other_numbers"},
                 {"<answer>3 * 7 + 5 - 2 = 24</answer>", "right"},
                 {"Let me try.\n3 × 7 + 5 \xe2\x88\x92 2", "right"},
                 {"\\boxed{3 \\times 7 + 5 - 2}", "right"},
                 {"<answer>37 - 5 - 2</answer>", "other_numbers"},
                 {"<answer>3 * 7 + 5 - 2 + 0</answer>", "other_numbers"},
                 {"<answer>24</answer>", "other_numbers"},
                 {"<answer>3**7</answer>", "unreadable"},
                 {"<answer>3 7</answer>", "unreadable"},
                 {"<answer>3.0 * 7</answer>", "unreadable"},
                 {"<answer>7 / (5 - 3 - 2)</answer>", "division_by_zero"},
                 {"<answer>__import__('os')</answer>", "unreadable"},
                 {"<answer>(3 * 7</answer>", "unreadable"},
                 {"<answer>9999999999 * 3</answer>", "too_large"},
                 {"<answer></answer>", "no_answer"},
                 {"", "no_answer"},
                 {"<think>3*7+5-2", "unfinished"},
                 {absl::StrCat("<answer>", std::string(990, '('), "1</answer>"), "too_deep"},
                 {absl::StrCat("<answer>", std::string(990, '-'), "1</answer>"), "too_deep"},
                 {absl::StrCat("<answer>", std::string(100'000, '1'), "</answer>"), "too_long"}});
  EXPECT_EQ(Judge("countdown", {{"use", "subset"}}, kGame, "<answer>5*7-2*3-5</answer>").reason,
            "other_numbers");
  EXPECT_EQ(Judge("countdown", {{"use", "subset"}}, {{"numbers", {4, 6, 9}}, {"answer", 24}},
                  "<answer>4*6</answer>")
                .score,
            1);
  EXPECT_EQ(Judge("countdown", {{"valid", 0.1}}, kGame, "<answer>7*5-3*2</answer>").score, 0.1);
}

TEST(CountdownTest, OtherNumbersEarnAShareOfPartialByHowManyAreRight) {
  const json args = {{"valid", 0.5}, {"partial", 0.4}};
  const struct {
    const char* answer;
    double score;
  } cases[] = {
      {"3*7+5-2", 1}, {"3+7+5+2", 0.5}, {"3+7+5+4", 0.4 * 3 / 4},   {"3+3+3+3", 0.1},
      {"8+9", 0},     {"3", 0.1},       {"3+7+5+2+2", 0.4 * 4 / 5}, {"3+5+7+2+1+4+6+8", 0.2},
      {"3 7 5 2", 0}};
  for (const auto& test : cases) {
    EXPECT_NEAR(Judge("countdown", args, kGame, test.answer).score, test.score, 1e-12)
        << test.answer;
  }
  EXPECT_EQ(Judge("countdown", {{"valid", 0.5}}, kGame, "3+7+5+4").score, 0);
  EXPECT_THAT(
      std::string(MakeVerifier("countdown", {{"partial", 0.2}, {"valid", 0.1}}).status().message()),
      testing::HasSubstr("args.partial is 0.2"));
}

// Random expressions, built beside their value in fractions of doubles' exact integers.
TEST(CountdownTest, RandomExpressionsHaveTheirValue) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    std::mt19937_64 random(seed);
    const auto draw = [&](int n) { return static_cast<int>(random() % static_cast<uint64_t>(n)); };
    std::vector<int64_t> numbers;
    bool defined = true;
    // A value as numerator and denominator.
    using Value = std::pair<int64_t, int64_t>;
    const std::function<Value(int, std::string*)> grow = [&](int depth,
                                                             std::string* text) -> Value {
      if (depth == 0 || numbers.size() > 4) {
        const int64_t number = 1 + draw(12);
        numbers.push_back(number);
        absl::StrAppend(text, number);
        return {number, 1};
      }
      absl::StrAppend(text, "(");
      const Value a = grow(depth - 1, text);
      const char op = "+-*/"[draw(4)];
      absl::StrAppend(text, draw(2) ? " " : "", std::string(1, op), draw(2) ? " " : "");
      const Value b = grow(depth - 1, text);
      absl::StrAppend(text, ")");
      Value value;
      if (op == '+') value = {a.first * b.second + b.first * a.second, a.second * b.second};
      if (op == '-') value = {a.first * b.second - b.first * a.second, a.second * b.second};
      if (op == '*') value = {a.first * b.first, a.second * b.second};
      if (op == '/') value = {a.first * b.second, a.second * b.first};
      if (value.second == 0) {
        defined = false;
        return {1, 1};
      }
      const int64_t divisor = std::gcd(value.first, value.second) * (value.second < 0 ? -1 : 1);
      return {value.first / divisor, value.second / divisor};
    };
    std::string text;
    const Value value = grow(2, &text);
    const auto row = [&](int64_t numerator) {
      return json{{"numbers", numbers}, {"answer", absl::StrCat(numerator, "/", value.second)}};
    };
    const std::string answer = absl::StrCat("<answer>", text, "</answer>");
    const Verdict right = Judge("countdown", json::object(), row(value.first), answer);
    EXPECT_EQ(right.reason, defined ? "right" : "division_by_zero") << text << " seed " << seed;
    if (defined) {
      EXPECT_EQ(Judge("countdown", json::object(), row(value.first + 1), answer).score, 0) << text;
    }
  }
}

TEST(CountdownTest, ARowWithoutNumbersIsTheDatasFault) {
  for (const json& row :
       {json{{"answer", 3}}, json{{"numbers", json::array()}, {"answer", 3}},
        json{{"numbers", {1.5}}, {"answer", 3}}, json{{"numbers", {-1}}, {"answer", 3}},
        json{{"numbers", {"1"}}, {"answer", 3}}, json{{"numbers", {1}}},
        json{{"numbers", {1}}, {"answer", "x"}}})
    EXPECT_TRUE(absl::IsInvalidArgument(RowRefusal("countdown", row))) << row;
}

// Schema, and texts that it accepts or does not.
struct SchemaCase {
  const char* schema;
  std::vector<const char*> right, wrong;
};

TEST(JsonSchemaTest, KeywordsMeanWhatTheStandardSays) {
  const SchemaCase cases[] = {
      {R"({"type": "integer"})", {"3", "3.0", "-1e2"}, {"3.5", "\"3\"", "null", "true"}},
      {R"({"type": ["string", "null"]})", {"\"a\"", "null"}, {"1"}},
      {R"({"enum": [1, "a", [2]]})", {"1", "1.0", "\"a\"", "[2]"}, {"2", "[1]"}},
      {R"({"const": {"a": 1}})", {R"({"a": 1})"}, {R"({"a": 2})", R"({"a": 1, "b": 1})"}},
      {R"({"properties": {"a": {"type": "string"}}, "required": ["a"],
           "additionalProperties": false})",
       {R"({"a": "x"})"},
       {R"({"a": 1})", "{}", R"({"a": "x", "b": 1})"}},
      {R"({"type": "object", "minProperties": 1, "maxProperties": 2})",
       {R"({"a": 1})"},
       {"{}", R"({"a": 1, "b": 2, "c": 3})"}},
      {R"({"prefixItems": [{"type": "string"}], "items": {"type": "number"}})",
       {R"(["a", 1, 2])", "[]", "[\"a\"]"},
       {"[1]", R"(["a", "b"])"}},
      {R"({"minItems": 1, "maxItems": 2, "uniqueItems": true})",
       {"[1]", "[1, 2]", "\"no list\""},
       {"[]", "[1, 2, 3]", "[1, 1.0]"}},
      {R"({"minLength": 2, "maxLength": 3, "pattern": "^[a-zé]+$"})",
       {"\"ab\"", "\"éé\""},
       {"\"a\"", "\"abcd\"", "\"A1\""}},
      {R"({"minimum": 1, "exclusiveMaximum": 3, "multipleOf": 0.1})",
       {"1", "2.9", "1.3"},
       {"0.9", "3", "1.25"}},
      {R"({"multipleOf": 1})", {"1000000000", "3.0"}, {"1000000000.5", "0.5"}},
      {R"({"multipleOf": 10})", {"5000000000"}, {"5000000001"}},
      {R"({"exclusiveMinimum": 1, "maximum": 3})", {"3", "1.01"}, {"1", "3.01"}},
      {R"({"anyOf": [{"type": "string"}, {"minimum": 5}]})", {"\"a\"", "5"}, {"4"}},
      {R"({"allOf": [{"minimum": 1}, {"maximum": 2}]})", {"1", "2"}, {"0", "3"}},
      {R"({"oneOf": [{"minimum": 1}, {"maximum": 2}]})", {"0", "3"}, {"1", "2"}},
      {R"({"not": {"type": "null"}})", {"1"}, {"null"}},
      {R"({"$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}},
                              "additionalProperties": false}}, "$ref": "#/$defs/node"})",
       {"{}", R"({"next": {"next": {}}})"},
       {R"({"next": 1})", R"({"next": {"nxt": {}}})"}},
      {"true", {"1"}, {}},
      {"false", {}, {"1", "{}"}},
  };
  for (const SchemaCase& c : cases) {
    const json args = {{"schema", json::parse(c.schema)}};
    for (const char* const text : c.right)
      EXPECT_EQ(Judge("json_schema", args, {}, text).reason, "right") << c.schema << " " << text;
    for (const char* const text : c.wrong)
      EXPECT_EQ(Judge("json_schema", args, {}, text).reason, "wrong") << c.schema << " " << text;
    // A row's own schema means the same.
    for (const char* const text : c.right)
      EXPECT_EQ(Judge("json_schema", json::object(), args, text).score, 1);
  }
}

TEST(JsonSchemaTest, TheJsonIsStrictAndFoundInAFence) {
  ExpectReasons("json_schema", {{"schema", {{"type", "object"}}}}, {}, "right",
                {{"Here:\n```json\n{\"a\": 1}\n```\nDone.", "right"},
                 {"<answer>{}</answer>", "right"},
                 {"<think>x</think> {}", "right"},
                 {"<think>{}", "unfinished"},
                 {"{\"a\": 1, \"a\": 2}", "key_twice"},
                 {"{\"b\": {\"a\": 1}, \"a\": 2}", "right"},
                 {"{\"a\": 1,}", "no_json"},
                 {"{} {}", "no_json"},
                 {"{'a': 1}", "no_json"},
                 {"// x\n{}", "no_json"},
                 {"so {}", "no_json"},
                 {"{\"a\": NaN}", "no_json"},
                 {"\xff", "no_json"},
                 {std::string("{}\0 and more", 11), "no_json"},
                 {std::string(100'000, '['), "too_complex"},
                 {"", "no_json"}});
}

TEST(JsonSchemaTest, HostileAnswersAndSchemasAreBounded) {
  // Each level asks two questions about the next: 2^60 in all.
  json schema = {
      {"$defs",
       {{"t",
         {{"anyOf", {{{"items", {{"$ref", "#/$defs/t"}}}}, {{"items", {{"$ref", "#/$defs/t"}}}}}},
          {"not", {{"type", "null"}}}}}}},
      {"$ref", "#/$defs/t"}};
  std::string text = std::string(20, '[') + "null" + std::string(20, ']');
  EXPECT_EQ(Judge("json_schema", {{"schema", schema}}, {}, text).reason, "too_complex");
  // A reference to itself never ends.
  EXPECT_EQ(Judge("json_schema", {{"schema", {{"$ref", "#"}}}}, {}, "1").reason, "too_complex");
  const auto list = [](int n) {
    std::string text = "[0";
    for (int i = 1; i < n; ++i) absl::StrAppend(&text, ",", i);
    return absl::StrCat(text, "]");
  };
  const json unique = {{"schema", {{"uniqueItems", true}}}};
  EXPECT_EQ(Judge("json_schema", unique, {}, list(5000)).reason, "right");
  // Each comparison costs what the text is long.
  const std::string words = absl::StrCat("[\"", std::string(1 << 20, 'a'), "\"]");
  json names = json::array();
  for (int i = 0; i < 100; ++i) names.push_back(absl::StrCat("b", i));
  EXPECT_EQ(Judge("json_schema", {{"schema", {{"items", {{"enum", names}}}}}}, {}, words).reason,
            "too_complex");
  EXPECT_EQ(Judge("json_schema", unique, {}, list(10'000)).reason, "too_complex");
}

TEST(JsonSchemaTest, ASchemaThatCannotBeCheckedIsRefused) {
  const std::pair<json, const char*> cases[] = {
      {{{"format", "date"}}, "#/format: this build does not check \"format\""},
      {{{"properties", {{"a", {{"tipe", "string"}}}}}}, "#/properties/a/tipe"},
      {{{"type", "text"}}, "#/type is \"text\""},
      {{{"pattern", "("}}, "#/pattern"},
      {{{"$ref", "http://a/b"}}, "no schema within this one"},
      {{{"$ref", "#/$defs/none"}}, "no schema within this one"},
      {{{"$ref", "#/~"}}, "no schema within this one"},
      // Values that no keyword reads as schemas.
      {{{"$ref", "#/default"}, {"default", {{"$ref", "#/x"}}}}, "names no schema"},
      {{{"$ref", "#/examples/0"}, {"examples", {{{"pattern", "a"}}}}}, "names no schema"},
      {{{"$ref", "#/$defs"}, {"$defs", {{"pattern", {{"type", "string"}}}}}}, "names no schema"},
      {{{"multipleOf", 0}}, "above 0"},
      {{{"minLength", -1}}, "#/minLength is -1"},
      {3, "is no object"},
  };
  for (const auto& [schema, message] : cases)
    EXPECT_THAT(Refusal("json_schema", {{"schema", schema}}), HasSubstr(message)) << schema;
  EXPECT_THAT(Refusal("json_schema", {{"shema", json::object()}}),
              HasSubstr("args.shema is unknown"));
  EXPECT_TRUE(absl::IsInvalidArgument(RowRefusal("json_schema", json::object())));
}

}  // namespace
}  // namespace sluice
