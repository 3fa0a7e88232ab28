// Compares published templates, and small programs of one feature each, with what Python rendered
// from the same sources.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/chat/chat_template.h"
#include "common/chat/text.h"
#include "common/testing/data.h"
#include "nlohmann/json.hpp"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;
using testing::HasSubstr;

std::vector<Json> Rows(const std::string& name) {
  std::vector<Json> rows;
  const std::string text = *ReadFile(testing_data::Path("chat_templates/" + name));
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty()))
    rows.push_back(Json::parse(line.begin(), line.end()));
  return rows;
}

absl::Time At(int year, int month, int day, int hour, int minute, int second) {
  return absl::FromCivil(absl::CivilSecond(year, month, day, hour, minute, second),
                         absl::UTCTimeZone());
}
const absl::Time kNow = At(2026, 11, 21, 12, 34, 56);

using Rendered = absl::StatusOr<ChatTemplate::Rendered>;

// Renders one case. Each source is compiled once and kept for its other cases.
Rendered RenderCase(const std::string& source, const Json& variables, absl::Time now) {
  static auto* const compiled = new std::map<std::string, std::unique_ptr<ChatTemplate>>();
  auto& slot = (*compiled)[source];
  if (slot == nullptr) {
    auto fresh = ChatTemplate::Compile(source);
    if (!fresh.ok()) return fresh.status();
    slot = *std::move(fresh);
  }

  ManualClock clock;  // Stands still, so that a busy machine meets no time limit.
  return slot->RenderWithMask(variables, {.clock = &clock, .now = now});
}

// Returns whether `rendered` is the text or the error that the row wants. Fails with the
// difference.
bool Equals(const Json& row, const Rendered& rendered, const std::string& name) {
  if (row.contains("error")) {
    EXPECT_FALSE(rendered.ok()) << name;
    EXPECT_THAT(std::string(rendered.status().message()),
                HasSubstr(row["error"].get<std::string>()))
        << name;
    return !rendered.ok();
  }

  EXPECT_TRUE(rendered.ok()) << name << ": " << rendered.status();
  if (!rendered.ok()) return false;
  EXPECT_EQ(rendered->text, row["expected"].get<std::string>()) << name;

  return rendered->text == row["expected"];
}

TEST(ChatCasesTest, EveryPublishedTemplateRendersEveryConversationAsPythonDoes) {
  SLUICE_NEEDS_TEST_DATA("chat_templates/cases.jsonl");
  int equal = 0;
  const std::vector<Json> rows = Rows("cases.jsonl");
  for (const Json& row : rows) {
    const std::string name = row["template"];
    Json variables = {{"messages", row["messages"]},
                      {"tools", row["tools"]},
                      {"documents", nullptr},
                      {"add_generation_prompt", row["add_generation_prompt"]}};
    if (row["extra"].is_object()) variables.update(row["extra"]);

    const std::string source = *ReadFile(testing_data::Path(
        "chat_templates/templates/" + name + (name.ends_with(".jinja") ? "" : ".jinja")));
    const Rendered rendered = RenderCase(source, variables, kNow);
    equal += Equals(row, rendered, absl::StrCat(name, ", ", row["scenario"].get<std::string>()));

    if (!row.contains("generation_spans") || !rendered.ok()) continue;
    Json spans = Json::array();
    for (const auto& [begin, end] : rendered->generated) {
      const absl::string_view text = rendered->text;
      spans.push_back({chat::CountCodePoints(text.substr(0, begin)),
                       chat::CountCodePoints(text.substr(0, end))});
    }

    EXPECT_EQ(spans, row["generation_spans"]) << name;
  }

  EXPECT_EQ(equal, static_cast<int>(rows.size()));
  EXPECT_GT(equal, 500);  // A file that was cut short must not pass.
}

TEST(ChatCasesTest, EveryHubTemplateRendersAsPythonDoes) {
  SLUICE_NEEDS_TEST_DATA("chat_templates/hub.jsonl");
  for (const Json& row : Rows("hub.jsonl")) {
    Equals(row, RenderCase(row["template_text"], row["vars"], At(2025, 7, 10, 12, 0, 0)),
           row.value("name", ""));
  }
}

TEST(ChatCasesTest, EverySmallProgramRendersAsPythonDoes) {
  SLUICE_NEEDS_TEST_DATA("chat_templates/syntax.jsonl");
  for (const Json& row : Rows("syntax.jsonl")) {
    Equals(row, RenderCase(row["template_text"], row["vars"], kNow), row["template_text"]);
  }
}

}  // namespace
}  // namespace sluice
