#include "common/chat/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_split.h"
#include "common/base/file.h"
#include "common/testing/data.h"
#include "nlohmann/json.hpp"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;
using testing::HasSubstr;

std::string Render(const std::string& source, const Json& variables = Json::object()) {
  const auto compiled = ChatTemplate::Compile(source);
  if (!compiled.ok()) return std::string(compiled.status().message());
  const auto text = (*compiled)->Render(variables);
  return text.ok() ? *text : std::string(text.status().message());
}

TEST(ChatTemplateTest, RendersTheTemplateOfTheSharedModels) {
  SLUICE_NEEDS_TEST_DATA("models/qwen3-tiny");
  const Json config = Json::parse(*ReadFile(testing_data::Path("models/qwen3-tiny/tokenizer_config.json")));
  EXPECT_EQ(Render(config["chat_template"], {{"messages", {{{"role", "system"}, {"content", "Be brief."}}, {{"role", "user"}, {"content", "1+1?"}}}}, {"add_generation_prompt", true}}),
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\n");
}

// Programs of one feature each, with what jinja2 renders; those that use a construct this build refuses are counted apart.
TEST(ChatTemplateTest, EverySharedSyntaxCaseIsRenderedAsJinjaDoesOrRefusedByName) {
  SLUICE_NEEDS_TEST_DATA("chat_templates/syntax.jsonl");
  int equal = 0, refused = 0;
  for (const absl::string_view line : absl::StrSplit(*ReadFile(testing_data::Path("chat_templates/syntax.jsonl")), '\n', absl::SkipEmpty())) {
    const Json row = Json::parse(line.begin(), line.end());
    if (row["template_text"] == "{{ lipsum is defined }}" || row["template_text"] == "{{ cycler is defined }}") continue;  // Globals of jinja2 alone.
    const auto compiled = ChatTemplate::Compile(row["template_text"].get<std::string>());
    if (!compiled.ok()) {
      EXPECT_THAT(std::string(compiled.status().message()), HasSubstr("template:")) << row["template_text"];
      ++refused;
      continue;
    }
    const auto text = (*compiled)->Render(row["vars"]);
    if (row.contains("error")) {
      EXPECT_FALSE(text.ok());
    } else if (text.status().code() == absl::StatusCode::kUnimplemented) {
      ++refused;
      continue;
    } else {
      ASSERT_TRUE(text.ok()) << row["template_text"] << " " << text.status();
      EXPECT_EQ(*text, row["expected"].get<std::string>()) << row["template_text"];
    }
    ++equal;
  }
  EXPECT_GE(equal, 60);
  RecordProperty("refused", refused);
}

TEST(ChatTemplateTest, BlocksTakeTheirLineWithThem) {
  EXPECT_EQ(Render("a\n  {% if true %}\nb\n  {% endif %}\nc\n"), "a\nb\nc");
  EXPECT_EQ(Render("a {%- if true -%} b {%- endif %} c"), "ab c");
  EXPECT_EQ(Render("{# note #}\nx"), "x");
}

TEST(ChatTemplateTest, UndefinedPrintsNothingAndIsFalse) {
  EXPECT_EQ(Render("[{{ nobody }}]{% if nobody %}x{% else %}y{% endif %}"), "[]y");
  EXPECT_THAT(Render("{{ nobody.home }}"), HasSubstr("template:1:10: an undefined value has no attribute home"));
}

TEST(ChatTemplateTest, AConstructItDoesNotHaveIsRefusedWithItsPlace) {
  EXPECT_THAT(Render("x\n{% macro f() %}{% endmacro %}"), HasSubstr("template:2:4: the statement \"macro\" is not supported"));
  EXPECT_THAT(Render("{{ x | groupby }}"), HasSubstr("the filter \"groupby\""));
  EXPECT_THAT(Render("{{ range(3) }}"), HasSubstr("the function range()"));
  EXPECT_THAT(Render("{{ x.split() }}"), HasSubstr("the method split()"));
}

TEST(ChatTemplateTest, WhatDoesNotParseIsRefusedWithItsPlace) {
  for (const char* const source : {"{{", "{{ 1", "{% if %}", "{% if true %}", "{% for x in y %}", "{{ 'a }}", "{{ 1 + }}", "{% endif %}", "{{ ] }}", "{# x", "{% else %}"}) {
    const auto status = ChatTemplate::Compile(source).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << source;
    EXPECT_THAT(std::string(status.message()), HasSubstr("template:1:")) << source;
  }
}

TEST(ChatTemplateTest, RaiseExceptionEndsTheRenderingWithItsMessage) {
  EXPECT_THAT(Render("{{ raise_exception('no system role') }}"), HasSubstr("no system role"));
}

TEST(ChatTemplateTest, HostileTemplatesEndWithinTheirLimits) {
  EXPECT_THAT(Render(std::string(100'000, '(')), testing::SizeIs(100'000));  // Text, not a tag.
  EXPECT_THAT(Render("{{ " + std::string(100'000, '(') + " }}"), HasSubstr("nested deeper than"));
  EXPECT_THAT(Render("{{ " + std::string(400'000, '[') + " }}"), HasSubstr("nested deeper than"));
  Json many = Json::array();
  for (int i = 0; i < 3000; ++i) many.push_back(i);
  EXPECT_THAT(Render("{% for a in m %}{% for b in m %}{% endfor %}{% endfor %}", {{"m", many}}), HasSubstr("steps"));
  EXPECT_THAT(Render("{% set s = 'xxxxxxxxxxxxxxxx' %}{% for a in m %}{{ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s "
                     "~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s }}{% endfor %}",
                     {{"m", many}}),
              HasSubstr("of text"));
}

}  // namespace
}  // namespace sluice
