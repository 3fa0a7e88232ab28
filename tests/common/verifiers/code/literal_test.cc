#include "common/verifiers/code/literal.h"

#include <string>

#include "gtest/gtest.h"

namespace sluice::code {
namespace {

using nlohmann::json;

TEST(LiteralTest, PythonLiteralsBecomeTheFormOfResults) {
  const struct {
    const char *text, *form;
  } kCases[] = {
      {"None", "null"},
      {"True", "true"},
      {" 12 ", R"({"int": "12"})"},
      {"-007", R"({"int": "-7"})"},
      {"-0", R"({"int": "0"})"},
      {"1_000", R"({"int": "1000"})"},
      {"123456789012345678901234567890", R"({"int": "123456789012345678901234567890"})"},
      {"1.50", R"({"float": "1.50"})"},
      {"-.5e3", R"({"float": "-.5e3"})"},
      {"float('inf')", R"({"float": "inf"})"},
      {"-float('inf')", R"({"float": "-inf"})"},
      {"()", "[]"},
      {"(1)", R"({"int": "1"})"},
      {"(1,)", R"([{"int": "1"}])"},
      {"[1, 'a', ]", R"([{"int": "1"}, "a"])"},
      {"{}", R"({"dict": []})"},
      {"{1: 'a'}", R"({"dict": [[{"int": "1"}, "a"]]})"},
      {"{1, 2, 1}", R"({"set": [{"int": "1"}, {"int": "2"}]})"},
      {"set((1, 1))", R"({"set": [{"int": "1"}]})"},
      {"set()", R"({"set": []})"},
      {R"('it\'s')", R"("it's")"},
      {R"("a\n\x41\u00e9")", R"("a\nAé")"},
      {R"(r'\d')", R"("\\d")"},
      {R"('a' "b")", R"("ab")"},
      {"'''a\n'b'''", R"("a\n'b")"},
      {"b'\\x00a'", R"({"bytes": "0061"})"},
  };
  for (const auto& test : kCases) {
    const auto value = ParseLiteral(test.text);
    ASSERT_TRUE(value.has_value()) << test.text;
    EXPECT_EQ(*value, json::parse(test.form)) << test.text;
  }
}

TEST(LiteralTest, OtherTextsAreNoLiterals) {
  for (const char* text :
       {"", "x", "f(1)", "1 + 1", "[1", "[1 2]", "(1,,)", "{1: 2, 3}", "'a", "'a\n'", "0x10", "1j",
        "open('x')", "set(x)", "None None", "__import__('os')"})
    EXPECT_FALSE(ParseLiteral(text).has_value()) << text;
}

TEST(LiteralTest, DeepNestingIsRefusedAndNotFollowed) {
  EXPECT_FALSE(ParseLiteral(std::string(100000, '[')).has_value());
  EXPECT_FALSE(ParseLiteral(std::string(100000, '(') + "1").has_value());
}

TEST(LiteralTest, ValuesAreEqualAsPythonSaysButForTuplesAndTruth) {
  const auto equal = [](const char* a, const char* b, double tol = 0) {
    return Equal(*ParseLiteral(a), *ParseLiteral(b), tol);
  };
  EXPECT_TRUE(equal("1", "1.0"));
  EXPECT_TRUE(equal("(1, 2)", "[1, 2]"));
  EXPECT_TRUE(equal("{1: 2, 3: 4}", "{3: 4, 1: 2}"));
  EXPECT_TRUE(equal("{1, 2}", "{2, 1.0}"));
  EXPECT_TRUE(equal("0.1", "0.10000001", 1e-6));
  EXPECT_TRUE(equal("[1e6]", "[1000000.5]", 1e-6));
  EXPECT_TRUE(equal("float('nan')", "float('nan')"));
  EXPECT_FALSE(equal("1", "True"));
  EXPECT_FALSE(equal("0", "False"));
  EXPECT_FALSE(equal("1", "'1'"));
  EXPECT_FALSE(equal("[1, 2]", "[2, 1]"));
  EXPECT_FALSE(equal("{1, 2}", "[1, 2]"));
  EXPECT_FALSE(equal("{1, 2}", "{1, 3}"));
  EXPECT_FALSE(equal("{1: 2}", "{1: 3}"));
  EXPECT_FALSE(equal("0.1", "0.10000001"));
  EXPECT_FALSE(equal("None", "0"));
  EXPECT_FALSE(equal("9007199254740993", "9007199254740992"));
}

TEST(LiteralTest, AResultOfAnotherFormEqualsNothing) {
  const json gold = *ParseLiteral("1");
  for (const char* text : {"1", R"({"int": 1})", R"({"int": "1", "x": 2})", "{}", R"({"set": 3})",
                           R"({"float": "x"})", R"({"dict": [[1]]})", R"([{"int": "1"}])"})
    EXPECT_FALSE(Equal(json::parse(text), *ParseLiteral("2"), 0)) << text;
  EXPECT_FALSE(Equal(json::parse(R"({"set": 3})"), *ParseLiteral("{1}"), 0));
  EXPECT_FALSE(Equal(json::parse(R"({"dict": [[1]]})"), *ParseLiteral("{1: 2}"), 0));
}

TEST(LiteralTest, LargeSetsOfAHostileResultAreComparedFast) {
  json items = json::array();
  for (int i = 0; i < 100000; ++i) items.push_back({{"int", std::to_string(i)}});
  json other = items;
  other[0] = {{"int", "-1"}};
  EXPECT_TRUE(Equal({{"set", items}}, {{"set", items}}, 0));
  EXPECT_FALSE(Equal({{"set", other}}, {{"set", items}}, 0));
}

}  // namespace
}  // namespace sluice::code
