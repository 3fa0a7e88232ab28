#include "common/chat/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/testing/data.h"
#include "nlohmann/json.hpp"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

std::string Render(const std::string& source, const Json& variables = Json::object()) {
  const auto compiled = ChatTemplate::Compile(source);
  if (!compiled.ok()) return std::string(compiled.status().message());
  ManualClock clock;  // Stands still, so that a busy machine meets no time limit.
  const auto text = (*compiled)->Render(variables, {.clock = &clock});
  return text.ok() ? *text : std::string(text.status().message());
}

TEST(ChatTemplateTest, RendersTheTemplateOfTheSharedModels) {
  SLUICE_NEEDS_TEST_DATA("models/qwen3-tiny");
  const Json config =
      Json::parse(*ReadFile(testing_data::Path("models/qwen3-tiny/tokenizer_config.json")));

  EXPECT_EQ(Render(config["chat_template"], {{"messages",
                                              {{{"role", "system"}, {"content", "Be brief."}},
                                               {{"role", "user"}, {"content", "1+1?"}}}},
                                             {"add_generation_prompt", true}}),
            "<|im_start|>system\nBe "
            "brief.<|im_end|>\n<|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\n");
}

TEST(ChatTemplateTest, BlocksTakeTheirLineWithThem) {
  EXPECT_EQ(Render("a\n  {% if true %}\nb\n  {% endif %}\nc\n"), "a\nb\nc");
  EXPECT_EQ(Render("a {%- if true -%} b {%- endif %} c"), "ab c");
  EXPECT_EQ(Render("  {%+ if true +%}\nx{% endif %}"), "  \nx");
  EXPECT_EQ(Render("{# note #}\nx\r\ny\n\n"), "x\ny\n");
  EXPECT_EQ(Render("{% raw %}\n{{ x }}{%- endraw -%}  y"), "{{ x }}y");
}

TEST(ChatTemplateTest, UndefinedPrintsNothingAndIsFalse) {
  EXPECT_EQ(Render("[{{ nobody }}]{% if nobody %}x{% else %}y{% endif %}{{ nobody | length }}{% "
                   "for x in nobody %}{% endfor %}"),
            "[]y0");
  EXPECT_EQ(Render("{{ nobody.home }}"),
            "template:1:10: cannot read the attribute home: nobody is undefined");
}

TEST(ChatTemplateTest, NamesOfALoopEndWithItAndThoseOfANamespaceDoNot) {
  EXPECT_EQ(Render("{% set x = 1 %}{% set n = namespace(x=1) %}{% for i in [2, 3] %}{{ x }}{% set "
                   "x = i %}{% set n.x = i %}{{ x }}{% endfor %}{{ x }}{{ n.x }}"),
            "121313");
  EXPECT_EQ(Render("{% for i in [1, 2] %}{% for j in 'ab' %}{{ loop.index }}{% endfor %}{{ "
                   "loop.index }}{% endfor %}{{ loop is defined }}"),
            "121122False");
}

TEST(ChatTemplateTest, ABreakOrContinueLeavesTheBlockAroundItWithItsLoop) {
  EXPECT_EQ(Render("{% for i in [1, 2, 3] %}a{{ i }}{% filter upper %}x{% break %}y{% endfilter "
                   "%}b{% endfor %}c"),
            "a1c");
  EXPECT_EQ(Render("{% for i in [1, 2, 3] %}a{{ i }}{% filter upper %}x{% continue %}y{% "
                   "endfilter %}b{% endfor %}c"),
            "a1a2a3c");
  EXPECT_EQ(Render("{% for i in [1, 2, 3] %}a{{ i }}{% set z %}x{% if i == 2 %}{% break %}{% "
                   "endif %}y{% endset %}b{{ z }}{% endfor %}c"),
            "a1bxya2c");
  EXPECT_EQ(Render("{% for i in [1, 2, 3] %}a{{ i }}{% set z %}x{% if i == 2 %}{% continue %}{% "
                   "endif %}y{% endset %}b{{ z }}{% endfor %}c"),
            "a1bxya2a3bxyc");
  EXPECT_EQ(Render("{% for i in [1, 2] %}{% filter upper %}{% for j in [1, 2] %}x{{ j }}{% break "
                   "%}{% endfor %}y{% endfilter %}b{% endfor %}c"),
            "X1YbX1Ybc");
}

TEST(ChatTemplateTest, MacrosSeeTheNamesWhereTheyAreDefined) {
  EXPECT_EQ(Render("{% set x = 1 %}{% macro m() %}{{ x }}{{ y }}{% endmacro %}{% for y in [5] %}{% "
                   "set x = 2 %}{{ m() }}{% endfor %}{% set x = 3 %}{{ m() }}"),
            "13");
  EXPECT_EQ(Render("{% macro m(a, b=a) %}{{ a }}{{ b }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ "
                   "m(1) }}{{ m(1, 2, 3, k=4) }}"),
            "11(){}12(3,){'k': 4}");
  EXPECT_EQ(Render("{% macro m() %}<{{ caller(7) }}>{% endmacro %}{% set z = 1 %}{% call(v) m() "
                   "%}{{ v }}{{ z }}{% endcall %}"),
            "<71>");
  EXPECT_THAT(Render("{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}"),
              HasSubstr("the macro m takes 1 arguments, got 2"));
  EXPECT_THAT(Render("{% set n = namespace() %}{% for i in [1] %}{% macro m() %}x{% endmacro %}{% "
                     "set n.m = m %}{% endfor %}{{ n.m() }}"),
              HasSubstr("after the block that defines it has ended"));
}

TEST(ChatTemplateTest, AMethodComesBeforeAKeyOfTheSameName) {
  const Json d = {{"d", {{"items", 1}, {"pop", 2}, {"k", 3}}}};
  EXPECT_EQ(Render("{{ d['items'] }}{{ d.items is callable }}{{ d.pop is defined }}{{ d.k }}{{ "
                   "d.items.type is defined }}",
                   d),
            "1TrueFalse3False");
  EXPECT_THAT(Render("{{ d.pop('k') }}", d), HasSubstr("a dict has no method pop"));
}

TEST(ChatTemplateTest, AKeyThatPythonCannotHashIsNotInADict) {
  const Json d = {{"d", {{"string", "str"}, {"null", "None"}}}, {"type", {"string", "null"}}};
  EXPECT_EQ(Render("{{ d[type] is defined }}{{ d[(1, [2])] is defined }}{{ d[d] is defined }}{{ "
                   "d[d.items()] | default('-') }}",
                   d),
            "FalseFalseFalse-");
  EXPECT_THAT(Render("{{ d.get(type) }}", d), HasSubstr("a list cannot be hashed"));
  EXPECT_THAT(Render("{{ type in d }}", d), HasSubstr("a list cannot be hashed"));
}

TEST(ChatTemplateTest, ASubscriptThatFindsNoItemIsTheAttributeOfThatName) {
  const Json d = {{"d", {{"k", 1}, {"items", 2}}}, {"l", {1, 2}}};
  EXPECT_EQ(Render("{{ 'ab'['upper']() }}{{ d['keys']() | list }}{{ d['items'] }}{{ ['a', 'b'] | "
                   "map(attribute='upper') | list | length }}",
                   d),
            "AB['k', 'items']22");
  EXPECT_EQ(Render("{{ d['pop'] is defined }}{{ l['append'] is defined }}{{ l['1'] is defined }}{{ "
                   "'ab'['x'] is defined }}{{ l[1.0] is defined }}{{ l[none] is defined }}",
                   d),
            "FalseFalseFalseFalseFalseFalse");
  EXPECT_EQ(Render("{% for x in l %}{{ loop['index'] }}{% endfor %}", d), "12");
  EXPECT_THAT(Render("{{ l['index'] is defined }}", d),
              HasSubstr("template:1:5: the attribute index of list is not supported"));
  EXPECT_THAT(Render("{{ l[0].real }}", d),
              HasSubstr("the attribute real of int is not supported"));
  EXPECT_THAT(Render("{{ range(3)['stop'] }}"),
              HasSubstr("the attribute stop of range is not supported"));
}

TEST(ChatTemplateTest, ASliceOfAConstantThatFailsIsUndefinedAndAnyOtherIsAnError) {
  EXPECT_EQ(
      Render("[{{ (1e3)[5:2] }}{{ true[:-1] }}{{ 'ab'['x':] }}{{ {'a': 1}[1:] is defined }}]"),
      "[False]");
  EXPECT_THAT(Render("{{ x[1:] }}", {{"x", 5}}), HasSubstr("a int cannot be sliced"));
  EXPECT_THAT(Render("{{ x['a':] }}", {{"x", "ab"}}),
              HasSubstr("a slice needs integers, got str 'a'"));
  EXPECT_THAT(Render("{{ 'ab'[::0] }}"), HasSubstr("the step of a slice is 0"));
}

TEST(ChatTemplateTest, FormatWritesEachTypeAsItsFormatInPythonDoes) {
  EXPECT_EQ(Render("{{ '{:5}|{:05}|{:>05}|{:^5.1}'.format('x', 'x', 'x', 'xy') }}"),
            "x    |x0000|0000x|  x  ");
  EXPECT_EQ(Render("{{ '{:5}|{:d}|{:+,}|{:06,}|{:07,}|{:*<08}|{:<04}'.format(true, true, 12345, 5, "
                   "-5, 5, 5) }}"),
            "    1|1|+12,345|00,005|-00,005|5*******|5000");
  EXPECT_EQ(Render("{{ '{:.3}|{:.3}|{:.2}|{:.1}|{:09,.1f}|{:#.0f}|{:%}'.format(-0.0, 12.0, 12.0, "
                   "5.0, 1234.5, 2.0, 0.5) }}"),
            "-0.0|12.0|1.2e+01|5e+00|001,234.5|2.|50.000000%");

  for (const char* spec : {"{:,}", "{:+}", "{:-}", "{:#}", "{:=5}", "{:d}", "{:.2f}"}) {
    EXPECT_THAT(Render(absl::StrCat("{{ '", spec, "'.format('x') }}")),
                HasSubstr("does not fit a str"))
        << spec;
  }

  for (const char* spec : {"{:.2}", "{:.2d}", "{:,x}", "{:s}"}) {
    EXPECT_THAT(Render(absl::StrCat("{{ '", spec, "'.format(5) }}")),
                HasSubstr("does not fit a int"))
        << spec;
  }

  EXPECT_THAT(Render("{{ '{:5}'.format(none) }}"), HasSubstr("does not fit a NoneType"));
  EXPECT_EQ(Render("{{ '%05c' % 'x' }}{{ '%#.3g' % 2 }}"), "    x2.00");
}

TEST(ChatTemplateTest, ANamedValueThatIsUndefinedIsFormattedAsUndefined) {
  EXPECT_EQ(Render("[{{ '%(a)s' % {'a': missing} }}]"), "[]");
  EXPECT_EQ(Render("{{ '%(a)r' % {'a': missing} }}"), "Undefined");
  EXPECT_EQ(Render("{{ '%(a)s %(b)s' % {'a': missing, 'b': 1} }}"), " 1");
}

TEST(ChatTemplateTest, GenerationBlocksAreTheAssistantsMask) {
  const auto compiled = ChatTemplate::Compile(
      "{% for m in ms %}{{ m }}:{% generation %}é{{ m }}{% set m = 1 %}{% endgeneration %}{{ m "
      "}};{% endfor %}");
  ASSERT_TRUE(compiled.ok()) << compiled.status();
  const auto rendered = (*compiled)->RenderWithMask({{"ms", {"a", "b"}}}, {});
  ASSERT_TRUE(rendered.ok()) << rendered.status();

  EXPECT_EQ(rendered->text, "a:éaa;b:ébb;");
  EXPECT_THAT(rendered->generated, ElementsAre(Pair(2, 5), Pair(9, 12)));
}

TEST(ChatTemplateTest, NumbersPrintAsInPython) {
  EXPECT_EQ(Render("{{ [1e16, 1e15, 0.0001, 0.00001, -0.0, 1/3, 5e-324, 123456789.125] }}"),
            "[1e+16, 1000000000000000.0, 0.0001, 1e-05, -0.0, 0.3333333333333333, 5e-324, "
            "123456789.125]");
  EXPECT_EQ(Render("{{ [-7 // 2, -7 % 3, 7 % -3, -7.5 // 2, -7.5 % 2, 2 ** -1, 2 ** 62, 0.5 | "
                   "round, 2.5 | round, 25 | round(-1), 2.675 | round(2)] }}"),
            "[-4, 2, -2, -4.0, 0.5, 0.5, 4611686018427387904, 0.0, 2.0, 20, 2.67]");
  EXPECT_THAT(Render("{{ 2 ** 63 }}"), HasSubstr("beyond 64 bits"));
  EXPECT_THAT(Render("{{ 1 // 0 }}"), HasSubstr("division by zero"));
}

TEST(ChatTemplateTest, ANumberMayHaveSingleUnderscoresBetweenItsDigits) {
  EXPECT_EQ(Render("{% for text in ['1_2', '_1', '1_', '1__2', '+_1', '1_1.5'] %}"
                   "{{ text | int(7) }} {% endfor %}"),
            "12 7 7 7 7 11 ");
  EXPECT_EQ(Render("{% for text in ['0x_1f', '1_f', '0x1_', '0x__1', '_0x1', '0_x1'] %}"
                   "{{ text | int(7, 16) }} {% endfor %}"),
            "31 31 7 7 7 7 ");
  EXPECT_EQ(Render("{% for text in ['1_1.5', '1.5_5', '1e1_0', '_1.5', '1_.5', '1._5', '1_e1', "
                   "'1e_1', '1__0.5', 'i_nf'] %}{{ text | float(7) }} {% endfor %}"),
            "11.5 1.55 10000000000.0 7 7 7 7 7 7 7 ");
}

TEST(ChatTemplateTest, TheWholeRangeOf64BitsIsReadAndWhatIsBeyondItIsAnError) {
  EXPECT_EQ(Render("{{ '-9223372036854775808' | int }} {{ '9223372036854775807' | int }}"),
            "-9223372036854775808 9223372036854775807");
  EXPECT_EQ(Render("{{ '-0x8000000000000000' | int(7, 16) }} {{ '-9223372036854775808.0' | int }} "
                   "{{ '9.21e18' | int }}"),
            "-9223372036854775808 -9223372036854775808 9210000000000000000");
  for (const char* text : {"'-9223372036854775809' | int", "'9223372036854775808' | int",
                           "'0xffffffffffffffff' | int(7, 16)", "'9.3e18' | int"})
    EXPECT_THAT(Render(absl::StrCat("{{ ", text, " }}")), HasSubstr("is beyond 64 bits")) << text;
}

TEST(ChatTemplateTest, NumbersMayHaveTheDecimalDigitsOfAnyScript) {
  EXPECT_EQ(Render("{% for text in ['١٢', '١_٢', '²', '1²', 'x１'] %}{{ text | int(7) }} {% endfor "
                   "%}{{ '１f' | int(7, 16) }} {{ '１２.５' | float }}"),
            "12 12 7 7 7 31 12.5");
}

TEST(ChatTemplateTest, DigitsOfAnyScriptAndSuperscriptsAreDigits) {
  EXPECT_EQ(Render("{% for text in ['7', '²', '٣', '1²', '½', '一', '1é', ''] %}"
                   "{{ text.isdigit() }} {% endfor %}"),
            "True True True True False False False False ");
}

TEST(ChatTemplateTest, StringsAreCodePoints) {
  EXPECT_EQ(
      Render("{{ 'aé😀b'[-3:] }}{{ 'é😀'|length }}{{ 'x😀y'.find('y') }}{{ '\\u00e9\\x41\\101' }}"),
      "é😀b22éAA");
  EXPECT_EQ(Render("{{ 'ΑΣ ΑΣΑ'.lower() }} {{ 'ǆ ß'.title() }} {{ ['\\x00\\u200b\\'\"'] }}"),
            "ας ασα ǅ Ss ['\\x00\\u200b\\'\"']");
  EXPECT_EQ(Render("{{ '\\u3000a\\x1f'.strip() }}|{{ 'a\\x0bb\\u2028c'.splitlines() }}|{{ ' a  b "
                   "'.rsplit(None, 1) }}|{{ 'a,b,c'.rsplit(',', 1) }}"),
            "a|['a', 'b', 'c']|[' a', 'b']|['a,b', 'c']");
}

TEST(ChatTemplateTest, SafeTextEscapesWhatIsAddedToIt) {
  EXPECT_EQ(Render("{{ '<'|e + '<' }}{{ ('<'|safe) ~ '<' }}"), "&lt;&lt;<<");
}

TEST(ChatTemplateTest, EqualItemsWithoutAnOrderAreSortedAndUnequalOnesAreAnError) {
  EXPECT_EQ(Render("{{ [none, none] | sort }} {{ [{'a': 1}, {'a': 1}] | sort(reverse=true) }}"),
            "[None, None] [{'a': 1}, {'a': 1}]");
  EXPECT_EQ(Render("{{ [{'a': none}, {'a': none}] | sort(attribute='a') }}"),
            "[{'a': None}, {'a': None}]");
  EXPECT_THAT(Render("{{ [{'a': 1}, {'a': 2}] | sort }}"), HasSubstr("template:1:"));
  EXPECT_THAT(Render("{{ [none, 1] | sort }}"), HasSubstr("template:1:"));
}

TEST(ChatTemplateTest, AGeneratorYieldsOnce) {
  EXPECT_EQ(
      Render("{% set g = [1, 2]|map('string') %}{{ g|list }}{{ g|list }}{% if g %}t{% endif %}"),
      "['1', '2'][]t");
  EXPECT_THAT(Render("{{ ([1]|select)|length }}"), HasSubstr("a generator has no length"));
}

TEST(ChatTemplateTest, StrftimeNowIsTheTimeOfTheJob) {
  const auto compiled = ChatTemplate::Compile("{{ strftime_now('%d %b %Y, %-I:%M %p') }}");
  ASSERT_TRUE(compiled.ok());
  EXPECT_EQ(*(*compiled)->Render(Json::object(), {.now = absl::FromUnixSeconds(1'700'000'000)}),
            "14 Nov 2023, 10:13 PM");
  // Without a time there is no such function.
  EXPECT_EQ(Render("{{ strftime_now is defined }}"), "False");
}

TEST(ChatTemplateTest, AConstructItDoesNotHaveIsRefusedWithItsPlace) {
  EXPECT_EQ(Render("x\né {% include 'a' %}"),
            "template:2:6: the statement \"include\" is not supported");
  EXPECT_THAT(Render("{{ x | groupby }}"),
              HasSubstr("template:1:8: the filter \"groupby\" is not supported"));
  EXPECT_THAT(Render("{{ x is foo }}"), HasSubstr("template:1:9: the test \"foo\""));
  EXPECT_THAT(Render("{{ 'x'.zfill(3) }}"),
              HasSubstr("template:1:7: the attribute zfill of str is not supported"));
  EXPECT_THAT(Render("{% for x in y recursive %}{% endfor %}"),
              HasSubstr("a recursive for is not supported"));
  EXPECT_THAT(Render("{{ f(*x) }}"), HasSubstr("the argument *values is not supported"));
  EXPECT_THAT(Render("{{ [1]|select }}"), HasSubstr("printing a generator"));
}

TEST(ChatTemplateTest, WhatDoesNotParseIsRefusedWithItsPlace) {
  for (const char* const source : {"{{",
                                   "{{ 1",
                                   "{% if %}",
                                   "{% if true %}",
                                   "{% for x in y %}",
                                   "{{ 'a }}",
                                   "{{ 1 + }}",
                                   "{% endif %}",
                                   "{{ ] }}",
                                   "{{ (] }}",
                                   "{# x",
                                   "{% else %}",
                                   "{% raw %}",
                                   "{% break %}",
                                   "{% set true = 1 %}",
                                   "{{ f(a=1, 2) }}",
                                   "{{ 0x }}",
                                   "{{ 9223372036854775808 }}",
                                   "{{ '\\ud800' }}",
                                   "{% macro m(a=1, b) %}{% endmacro %}",
                                   "\xff"}) {
    const auto status = ChatTemplate::Compile(source).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << source << " " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("template:1:")) << source;
  }
}

TEST(ChatTemplateTest, ASumPrintsWhatItsValueWouldPrint) {
  const std::string macro = "{% macro m(a) %}[{{ a + '!' }}]{% endmacro %}";
  EXPECT_EQ(Render(macro + "{% for x in ['p', 'q'] %}{{ x + m(x + 'r') + '-' + x }} {% endfor %}"),
            "p[pr!]-p q[qr!]-q ");
  EXPECT_EQ(Render("a{{ 1 + 2 }}{{ 'b' + 'c' * 2 }}{{ 'x' ~ 1 ~ none ~ u }}{{ [1] + [2] }}"),
            "a3bccx1None[1, 2]");
  EXPECT_EQ(Render("{{ '<' + ('<b>'|safe) + '>' }}{{ '<' ~ ('<b>'|safe) }}{{ '%d<' % 1 + '<' }}"),
            "&lt;<b>&gt;<<b>1<<");
  EXPECT_EQ(Render("a{{ 'b' + 'c' - 'd' }}"), "template:1:9: cannot apply - to str and str");
  EXPECT_EQ(Render("a{{ 'b' + u }}"), "template:1:9: cannot apply + to str and u (undefined)");
}

TEST(ChatTemplateTest, MistakesAtRunTimeNameTheirPlaceAndValue) {
  EXPECT_EQ(Render("\n{{ 'a' + 1 }}"), "template:2:8: cannot apply + to str and int");
  EXPECT_EQ(Render("{{ raise_exception('no system role') }}"),
            "template:1:4: the template refuses: no system role");
  EXPECT_THAT(Render("{{ none | items }}"),
              HasSubstr("template:1:11: items: needs a dict, got a NoneType"));
  EXPECT_THAT(Render("{{ 'a'.strip(1) }}"), HasSubstr("strip: argument 1 is a int; wanted: a str"));
  EXPECT_THAT(Render("{{ 'a'|trim(x=1) }}"), HasSubstr("trim: has no parameter x"));
  EXPECT_THAT(Render("{{ 'a'.startswith() }}"), HasSubstr("startswith: needs 1 arguments, got 0"));
  EXPECT_THAT(Render("{{ {'a': x}|tojson }}"), HasSubstr("cannot write as JSON: x is undefined"));
  EXPECT_THAT(Render("{% for a, b in [[1]] %}{% endfor %}"),
              HasSubstr("cannot unpack 1 values into 2 names"));
  EXPECT_THAT(Render("{{ i }}", {{"i", UINT64_MAX}}),
              HasSubstr("the integer 18446744073709551615 of the variables is beyond 64 bits"));
}

}  // namespace
}  // namespace sluice
