#include "common/verifiers/code/tests.h"

#include "common/verifiers/code/fence.h"
#include "common/verifiers/code/literal.h"
#include "common/verifiers/code/output.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice::code {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using Kind = Expectation::Kind;

TEST(AssertionTest, IsTakenApartIfItOnlyCallsWithLiterals) {
  const struct {
    const char *assertion, *input;
    Kind kind;
    const char* value;
  } kCases[] = {
      {"assert f(1, [2]) == (3, 4)", "f(1, [2])", Kind::kEqual, "(3, 4)"},
      {"assert f(1)==2, 'message'", "f(1)", Kind::kEqual, "2"},
      {"assert(f('a == b') == 'c')", "f('a == b')", Kind::kEqual, "'c'"},
      {"assert 3 == f(a=1, b=None)", "f(a=1, b=None)", Kind::kEqual, "3"},
      {"assert set(f((3, 4))) == set((4, 5))", "set(f((3, 4)))", Kind::kEqual, "{4, 5}"},
      {"assert round(f(2), 2) == 1.41", "round(f(2), 2)", Kind::kEqual, "1.41"},
      {"assert f(1) is None", "f(1)", Kind::kEqual, "None"},
      {"assert f(1) in [1, 2]", "f(1)", Kind::kAnyOf, "[1, 2]"},
      {"assert f('x')", "f('x')", Kind::kTrue, "None"},
      {"assert not f('x')  # why", "f('x')", Kind::kFalse, "None"},
      {"assert math.isclose(f(2), 1.5, rel_tol=0.01)", "f(2)", Kind::kClose, "1.5"},
      {"assert abs(f(2) - 1.5) < 1e-6", "f(2)", Kind::kClose, "1.5"},
  };
  for (const auto& test : kCases) {
    const auto apart = TakeApart(test.assertion);
    ASSERT_TRUE(apart.has_value()) << test.assertion;
    EXPECT_EQ(apart->input, test.input) << test.assertion;
    EXPECT_EQ(apart->expected.kind, test.kind) << test.assertion;
    EXPECT_EQ(apart->expected.value, *ParseLiteral(test.value)) << test.assertion;
  }
}

TEST(AssertionTest, WhatTheProgramCouldMakeTrueIsNotTakenApart) {
  for (const char* assertion :
       {"assert f(1) - 3 == 0", "assert f(1) == g(1)", "assert f(x) == 3", "assert f(1) < 3",
        "assert f(1) == 3 or True", "assert f(f(1)) == 3", "assert f(1) != 3", "x = f(1)",
        "assert abs(f(1) - 3) == 0", "assert all(f(i) == i for i in range(3))", "assert 3 in f(1)"})
    EXPECT_FALSE(TakeApart(assertion).has_value()) << assertion;
}

TEST(TestsTest, EachFormOfARowIsRead) {
  const auto read = [](const json& row) {
    auto tests = ReadTests(row, 100);
    EXPECT_TRUE(tests.ok()) << tests.status();
    return tests.value_or(Tests());
  };
  const Tests stdio =
      read({{"answer", R"({"inputs": ["1\n", "2\n"], "outputs": ["2\n", "3\n"]})"}});
  ASSERT_EQ(stdio.tests.size(), 2u);
  EXPECT_EQ(stdio.tests[1].input, "2\n");
  EXPECT_EQ(stdio.tests[1].expected.text, "3\n");

  const Tests lines = read({{"answer", R"({"inputs": [["1", "2"]], "outputs": [["3"]]})"}});
  EXPECT_EQ(lines.tests[0].input, "1\n2\n");

  const Tests calls =
      read({{"answer", R"({"fn_name": "f", "inputs": [[1, "a"]], "outputs": [[2]]})"}});
  EXPECT_EQ(calls.function, "f");
  EXPECT_EQ(calls.tests[0].kind, CodeTask::Kind::kCall);
  EXPECT_EQ(calls.tests[0].input, R"([1,"a"])");
  EXPECT_EQ(calls.tests[0].expected.value, *ParseLiteral("[2]"));

  const Tests livecode =
      read({{"answer", R"([{"input": "[1, 2]\n3", "output": "[4]"}])"}, {"fn_name", "f"}});
  EXPECT_EQ(livecode.tests[0].input, "[[1,2],3]");
  EXPECT_EQ(livecode.tests[0].expected.value, *ParseLiteral("[4]"));

  const Tests mbpp = read({{"answer", {"assert f(2) == 3", "assert f(3) == 4"}}});
  EXPECT_EQ(mbpp.tests.size(), 2u);
  EXPECT_FALSE(mbpp.forgeable);

  const Tests humaneval = read({{"answer",
                                 "METADATA = {}\n\ndef check(candidate):\n    assert "
                                 "candidate(2) == 3\n    assert candidate(3) == 4\n"},
                                {"entry_point", "f"}});
  ASSERT_EQ(humaneval.tests.size(), 2u);
  EXPECT_EQ(humaneval.tests[0].input, "f(2)");
  EXPECT_FALSE(humaneval.forgeable);
}

TEST(TestsTest, OtherAssertionsRunInProcessAndAreMarked) {
  const auto tests = ReadTests({{"answer",
                                 "def check(candidate):\n    for i in range(3):\n        assert "
                                 "candidate(i) == i\n"},
                                {"entry_point", "f"}},
                               100);
  ASSERT_TRUE(tests.ok()) << tests.status();
  EXPECT_TRUE(tests->forgeable);
  EXPECT_EQ(tests->tests[0].kind, CodeTask::Kind::kAssert);
  EXPECT_THAT(tests->tests[0].input, HasSubstr("\ncheck(f)\n"));
}

TEST(TestsTest, AProgramNeverGetsWhatIsExpected) {
  const auto tests = ReadTests({{"answer",
                                 {"assert f('in') == 'gold-1'", "assert abs(f(2) - 98.7654) < 1e-6",
                                  "assert f(3) in ['gold-2']"}}},
                               100);
  ASSERT_TRUE(tests.ok()) << tests.status();
  for (const auto& test : tests->tests) {
    EXPECT_THAT(test.input, Not(HasSubstr("gold")));
    EXPECT_THAT(test.input, Not(HasSubstr("98")));
  }
}

TEST(TestsTest, ARowWithoutTestsIsNamed) {
  const auto error = [](const json& row) {
    return std::string(ReadTests(row, 100).status().message());
  };
  EXPECT_THAT(error(json::object()), HasSubstr("no field `answer`"));
  EXPECT_THAT(error({{"answer", 3}}), HasSubstr("neither a text, nor a list, nor an object"));
  EXPECT_THAT(error({{"answer", json::array()}}), HasSubstr("the list is empty"));
  EXPECT_THAT(error({{"answer", "print(1)"}}), HasSubstr("no assertion"));
  EXPECT_THAT(error({{"answer", R"({"inputs": ["1"], "outputs": []})"}}),
              HasSubstr("1 inputs and 0 outputs"));
  EXPECT_THAT(error({{"answer", "def check(candidate):\n  assert candidate(1) == 1"}}),
              HasSubstr("entry_point"));
}

TEST(OutputTest, IsTheSameButForWhiteSpaceAndFormsOfNumbers) {
  EXPECT_TRUE(SameOutput("1 2\n3\n\n", "1  2 \n3", 0));
  EXPECT_TRUE(SameOutput("1.50", "1.5", 0));
  EXPECT_TRUE(SameOutput("2.0000001", "2", 1e-6));
  EXPECT_TRUE(SameOutput("", "\n", 0));
  EXPECT_FALSE(SameOutput("1 2", "1\n2", 0));
  EXPECT_FALSE(SameOutput("2.0000001", "2", 0));
  EXPECT_FALSE(SameOutput("yes", "YES", 0));
  EXPECT_FALSE(SameOutput("1\n2\n3", "1\n2", 0));
  EXPECT_FALSE(SameOutput("12", "1,2", 0));
}

TEST(FenceTest, TheLastClosedBlockOfTheLanguageCounts) {
  const auto python = [](absl::string_view text) {
    return LastBlock(text, CodeTask::Language::kPython).value_or("none");
  };
  EXPECT_EQ(python("```python\na\n```\nand\n```py\nb\n```\n"), "b\n");
  EXPECT_EQ(python("```python\na\n```\n```cpp\nb\n```\n"), "a\n");
  EXPECT_EQ(python("```\na\n```\n"), "a\n");
  EXPECT_EQ(python("```json\n{}\n```\n"), "none");
  EXPECT_EQ(python("```python\na\n"), "none");
  EXPECT_EQ(python("````python\n```\na\n```\n````\n"), "```\na\n```\n");
  EXPECT_EQ(python("use ```x``` here"), "none");
  EXPECT_EQ(python("~~~python\na\n~~~"), "a\n");
  EXPECT_EQ(*LastBlock("```C++\na\n```", CodeTask::Language::kCpp), "a\n");
}

}  // namespace
}  // namespace sluice::code
