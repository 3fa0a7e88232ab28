#include "services/rollout/http/tool_calls.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice::rollout::http {
namespace {

struct Parsed {
  std::string text;
  std::vector<std::string> calls;  // "name arguments"
  bool operator==(const Parsed&) const = default;
};
void PrintTo(const Parsed& parsed, std::ostream* out) {
  *out << '"' << parsed.text << "\" " << testing::PrintToString(parsed.calls);
}

// Parses the answer in pieces of `piece` bytes, as tokens bring it.
Parsed Parse(const std::string& answer, size_t piece) {
  const auto parser = MakeToolCallParser("hermes");
  Parsed parsed;
  std::vector<ToolCall> calls;
  for (size_t at = 0; at < answer.size(); at += piece)
    parser->Push(absl::string_view(answer).substr(at, piece), &parsed.text, &calls);
  parser->Finish(&parsed.text);
  for (const ToolCall& call : calls) parsed.calls.push_back(call.name + " " + call.arguments);
  return parsed;
}

TEST(ToolCallsTest, CallsAreTakenOutAndAllElseStaysTextHoweverItComes) {
  const std::string weather =
      "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Bern\"}}\n</tool_call>";
  const std::string call = "weather {\"city\": \"Bern\"}";
  const std::pair<std::string, Parsed> cases[] = {
      {"plain text\n", {"plain text\n", {}}},
      {weather, {"", {call}}},
      {"I look.\n" + weather + "\n", {"I look.", {call}}},
      {weather + "\n" + weather, {"", {call, call}}},
      {"a " + weather + " b", {"a b", {call}}},
      {"a < b <tool_ <tool_call", {"a < b <tool_ <tool_call", {}}},
      {"<tool_call>{\"name\": \"f\"}</tool_call>",
       {"<tool_call>{\"name\": \"f\"}</tool_call>", {}}},
      {"<tool_call>{\"name\": \"f\", \"parameters\": {\"a\": 1}}</tool_call>",
       {"<tool_call>{\"name\": \"f\", \"parameters\": {\"a\": 1}}</tool_call>", {}}},
      {"<tool_call>{\"arguments\": {}}</tool_call>",
       {"<tool_call>{\"arguments\": {}}</tool_call>", {}}},
      {"x\n<tool_call>not json</tool_call>", {"x\n<tool_call>not json</tool_call>", {}}},
      {"<tool_call>{\"name\": 3}</tool_call>", {"<tool_call>{\"name\": 3}</tool_call>", {}}},
      {"<tool_call>{\"name\": \"f\", \"arguments\": \"x\"}</tool_call>",
       {"<tool_call>{\"name\": \"f\", \"arguments\": \"x\"}</tool_call>", {}}},
      {"<tool_call>{\"name\": \"f\", \"argu", {"<tool_call>{\"name\": \"f\", \"argu", {}}},
      {"<tool_call>bad</tool_call>" + weather, {"<tool_call>bad</tool_call>", {call}}},
      {"\n\n", {"\n\n", {}}},
  };

  for (const auto& [answer, expected] : cases) {
    for (const size_t piece : {size_t{1}, size_t{3}, size_t{1000}})
      EXPECT_EQ(Parse(answer, piece), expected) << answer << " by " << piece;
  }
}

TEST(ToolCallsTest, ArgumentsGoOnAsTheModelWroteThem) {
  const std::string written[] = {
      "{}",
      "{ }",
      R"({"n": 12345678901234567890123, "x": 1.10, "e": 1E5, "z": -0.0})",
      R"({"text": "}, \"arguments\": {\\", "more": [{"a": [1, 2]}, ","], "\u00e9": "\u00e9 é"})",
      "{\n  \"a\": {\"b\": null}\n}",
  };

  for (const std::string& arguments : written) {
    for (const std::string& call :
         {R"({"name": "f", "arguments": )" + arguments + "}",
          R"({"id": ["arguments", {"arguments": {}}], "\u0061rguments" : )" + arguments +
              R"( ,"name": "f"})"}) {
      for (const size_t piece : {size_t{1}, size_t{1000}})
        EXPECT_EQ(Parse("<tool_call>" + call + "</tool_call>", piece),
                  (Parsed{"", {"f " + arguments}}))
            << call;
    }
  }
}

TEST(ToolCallsTest, ACallWithoutEndIsTextAtItsLimit) {
  const std::string endless = "<tool_call>" + std::string(3 << 20, '[');
  EXPECT_EQ(Parse(endless, 1 << 16), (Parsed{endless, {}}));
  const std::string deep = "<tool_call>" + std::string(100000, '[') + "</tool_call>";
  EXPECT_EQ(Parse(deep, 1 << 16), (Parsed{deep, {}}));
}

TEST(ToolCallsTest, TheTemplateTellsTheParser) {
  EXPECT_EQ(ToolCallParserOf("{{ '<tool_call>\n' + x }}"), "hermes");
  EXPECT_EQ(ToolCallParserOf("{{ messages }}"), "");
  EXPECT_EQ(MakeToolCallParser(""), nullptr);
}

}  // namespace
}  // namespace sluice::rollout::http
