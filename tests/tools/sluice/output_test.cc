#include "tools/sluice/output.h"

#include <gtest/gtest.h>
#include <yaml-cpp/yaml.h>

#include <nlohmann/json.hpp>

#include "tools/sluice/app.h"

namespace sluice::cli {
namespace {

using Json = nlohmann::ordered_json;

const Json& Sample() {
  static const Json sample = Json::parse(R"({
    "name": "digits", "step": 61, "share": 0.25, "done": false, "result": null,
    "conditions": [], "args": {}, "path": "/models/tiny-1",
    "message": "waits: \"no\" row is left\nhint: #1", "yes": "true", "0": "12",
    "daemons": ["queue-0", "- x"], "steps": [{"k": 0, "values": {"reward": 0.5}}, {"k": 1}],
    "nested": [[1, 2], [3]]})");
  return sample;
}

TEST(Output, YamlIsAsPeopleWriteIt) {
  EXPECT_EQ(FormatData(Sample(), "yaml"), R"(name: digits
step: 61
share: 0.25
done: false
result: null
conditions: []
args: {}
path: /models/tiny-1
message: "waits: \"no\" row is left\nhint: #1"
"yes": "true"
"0": "12"
daemons:
  - queue-0
  - "- x"
steps:
  -
    k: 0
    values:
      reward: 0.5
  -
    k: 1
nested:
  -
    - 1
    - 2
  -
    - 3
)");
}

// The value that YAML reads, as JSON. A scalar without quotes is a number, a truth value or null
// if JSON says so.
Json FromYaml(const YAML::Node& node) {
  if (node.IsMap()) {
    Json out = Json::object();
    for (const auto& entry : node) out[entry.first.Scalar()] = FromYaml(entry.second);
    return out;
  }
  if (node.IsSequence()) {
    Json out = Json::array();
    for (const YAML::Node& value : node) out.push_back(FromYaml(value));
    return out;
  }
  if (node.IsNull()) return nullptr;
  const Json scalar = Json::parse(node.Scalar(), nullptr, false);
  return node.Tag() == "!" || scalar.is_discarded() ? Json(node.Scalar()) : scalar;
}

TEST(Output, YamlReadsBackAsTheSameValue) {
  EXPECT_EQ(FromYaml(YAML::Load(FormatData(Sample(), "yaml"))), Sample());
  for (const char* text :
       {"null", "No", "~",  "1.5", ".inf", "a: b", "# x",      "",           " ",    "-",
        "*a",   "&a", "!t", "%",   "@",    "`",    "\xc3\xa4", "2026-01-01", "0x10", "1_000"}) {
    const Json json = {{"v", text}};
    EXPECT_EQ(FromYaml(YAML::Load(FormatData(json, "yaml"))), json) << text;
  }
}

TEST(Output, JsonLinesHaveALineForEachRow) {
  EXPECT_EQ(FormatData(Json::parse(R"([{"k": 0}, {"k": 1}])"), "jsonl"), "{\"k\":0}\n{\"k\":1}\n");
  EXPECT_EQ(FormatData(Json::parse(R"({"k": [1, 2]})"), "jsonl"), "{\"k\":[1,2]}\n");
  EXPECT_EQ(FormatData(Json::array(), "jsonl"), "");
}

TEST(Output, JsonLinesOfAnObjectWithListsAreTheirElements) {
  const Json json = Json::parse(R"({"jobs": [{"k": 0}, {"k": 1}], "next": "", "other": [2]})");
  EXPECT_EQ(FormatRows(json, {"jobs", "other"}, "jsonl"), "{\"k\":0}\n{\"k\":1}\n2\n");
  EXPECT_EQ(FormatRows(json, {"jobs"}, "json"), FormatData(json, "json"));
}

// A command with a list has its rows in jsonl, and any other one its object in a line.
TEST(Output, EachCommandWithDataHasJsonLines) {
  std::vector<CLI::App*> apps;
  SluiceApp app;
  apps.push_back(&app.parser());
  int checked = 0;
  while (!apps.empty()) {
    CLI::App* const command = apps.back();
    apps.pop_back();
    for (CLI::App* sub : command->get_subcommands([](const CLI::App*) { return true; }))
      apps.push_back(sub);
    const CLI::Option* const output = command->get_option_no_throw("--output");
    if (output == nullptr) continue;
    EXPECT_NE(output->get_type_name().find("jsonl"), std::string::npos) << command->get_name();
    ++checked;
  }
  EXPECT_GT(checked, 20);
}

TEST(Output, BytesThatAreNotUtf8AreReplaced) {
  const Json json = {{"v", "a\xff"}};
  for (const char* format : {"json", "jsonl", "yaml"})
    EXPECT_NE(FormatData(json, format).find("a\xef\xbf\xbd"), std::string::npos) << format;
}

}  // namespace
}  // namespace sluice::cli
