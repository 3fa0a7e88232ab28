// Tests hostile templates and variables. Each of them must end at a limit, which the error names.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/chat/chat_template.h"
#include "common/chat/limits.h"
#include "nlohmann/json.hpp"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;
using testing::HasSubstr;

// Returns the error of a rendering. Its clock stands still, so that the time limit is never the one
// that ends it.
absl::Status Failure(const std::string& source, const Json& variables = Json::object()) {
  ManualClock clock;
  const auto compiled = ChatTemplate::Compile(source);
  if (!compiled.ok()) return compiled.status();
  return (*compiled)->Render(variables, {.clock = &clock}).status();
}

std::string Repeated(absl::string_view text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) absl::StrAppend(&out, text);
  return out;
}

void ExpectLimit(const absl::Status& status, absl::string_view limit) {
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(std::string(status.message()),
              testing::AllOf(testing::StartsWith("template:"), HasSubstr(std::string(limit))));
}

TEST(ChatLimitsTest, LoopsWithinLoopsRunOutOfSteps) {
  Json many = Json::array();
  for (int i = 0; i < 3000; ++i) many.push_back(i);
  ExpectLimit(Failure("{% for a in m %}{% for b in m %}{% endfor %}{% endfor %}", {{"m", many}}),
              "more than 1000000 steps");
  ExpectLimit(
      Failure("{% for a in m %}{% for b in m if b in m %}{% endfor %}{% endfor %}", {{"m", many}}),
      "steps");
  ExpectLimit(
      Failure("{% set n = namespace(l=[1]) %}{% for a in m %}{% set n.l = n.l + n.l %}{% endfor %}",
              {{"m", many}}),
      "steps");
  ExpectLimit(Failure("{{ [0] * 1000000000 }}"), "steps");
  ExpectLimit(Failure("{{ m|map('string')|unique|list }}", {{"m", many}}), "steps");
}

TEST(ChatLimitsTest, NestingIsRefusedWhileParsing) {
  for (const char* const open :
       {"(", "[", "{1:", "not ", "-", "x[", "x(", "1 if 1 else ", "x|default(", "x is in ["}) {
    ExpectLimit(Failure("{{ " + Repeated(open, 80'000) + " }}"), "nested deeper than 64");
  }

  ExpectLimit(Failure("{{ x" + Repeated(".y", 100'000) + " }}"), "nested deeper than 64");
  ExpectLimit(Failure("{{ x" + Repeated("|trim", 100'000) + " }}"), "nested deeper than 64");

  for (const char* const open :
       {"{% if 1 %}", "{% for a in b %}", "{% macro m() %}", "{% call m() %}", "{% set x %}",
        "{% filter trim %}", "{% with a=1 %}"}) {
    ExpectLimit(Failure(Repeated(open, 20'000)), "nested deeper than 64");
  }

  ExpectLimit(Failure("{% for " + Repeated("(", 100'000) + "x in y %}"), "nested deeper than 64");
  EXPECT_TRUE(Failure(std::string(100'000, '(')).ok());  // This is text, not a tag.
  // This is long, but not deep.
  EXPECT_TRUE(Failure("{{ 1" + Repeated(" + 1", 100'000) + " }}").ok());
  EXPECT_TRUE(Failure("{{ 1" + Repeated(" or 1", 100'000) + " }}").ok());
  EXPECT_TRUE(Failure("{{ 1" + Repeated(" ~ 1", 100'000) + " }}").ok());
}

TEST(ChatLimitsTest, RecursiveMacrosEnd) {
  ExpectLimit(Failure("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"),
              "macro calls are nested deeper than 64");
  ExpectLimit(
      Failure(
          "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}"),
      "macro calls are nested deeper");
  ExpectLimit(Failure("{% macro m() %}{% call m() %}{{ caller() }}{% endcall %}{{ caller }}{% "
                      "endmacro %}{% call m() %}{% endcall %}"),
              "macro calls are nested deeper");
  ExpectLimit(Failure("{% macro m(x=m()) %}{% endmacro %}{{ m() }}"),
              "macro calls are nested deeper");

  // 55 blocks in each of up to 64 calls are more than 1024 levels, although neither number alone is
  // too large.
  const std::string deep = Repeated("{% if 1 %}", 55) + "{{ m() }}" + Repeated("{% endif %}", 55);
  ExpectLimit(Failure("{% macro m() %}" + deep + "{% endmacro %}{{ m() }}"),
              "macro calls are nested deeper than 1024 levels");
}

TEST(ChatLimitsTest, TextThatDoublesEnds) {
  const std::string times = "{% for i in range(60) %}";
  ExpectLimit(
      Failure("{% set n = namespace(s='x') %}" + times + "{% set n.s = n.s + n.s %}{% endfor %}"),
      "4194304 bytes of text");
  ExpectLimit(
      Failure("{% set n = namespace(s='x') %}" + times + "{% set n.s = n.s ~ n.s %}{% endfor %}"),
      "bytes of text");
  ExpectLimit(Failure("{{ ('x' * 3000)|replace('x', 'y' * 3000) }}"), "bytes of text");
  ExpectLimit(
      Failure("{% for i in range(100000) %}{{ "
              "'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx' }}{% endfor %}"),
      "bytes of text");
  ExpectLimit(Failure("{% set n = namespace(l=[]) %}{% for i in range(600) %}{% set n.l = n.l + "
                      "['x' * 9000] %}{% endfor %}"),
              "bytes of text");
  ExpectLimit(Failure("{% macro m(d) %}{{ 'x' * 200000 }}{{ m(d + 1) }}{% endmacro %}{{ m(0) }}"),
              "bytes of text");

  for (const char* const wide :
       {"'x' * 1000000000000", "'x'|center(1000000000000)", "'x'|indent(1000000000000)",
        "'%1000000000000d' % 1", "'{:1000000000000}'.format(1)",
        "[1]|tojson(indent=1000000000000)"}) {
    ExpectLimit(Failure(absl::StrCat("{{ ", wide, " }}")), "bytes of text");
  }
}

TEST(ChatLimitsTest, TextThatIsNoLongerUsedDoesNotCount) {
  EXPECT_TRUE(Failure("{% set n = namespace(s='x' * 20000) %}{% for i in range(2000) %}{% set n.s "
                      "= n.s[1:] ~ 'y' %}{% endfor %}{{ n.s }}")
                  .ok());
}

TEST(ChatLimitsTest, DeepValuesAreRefused) {
  Json variables = Json::object();
  variables["d"] = Json::parse(Repeated("[", 100'000) + Repeated("]", 100'000));
  ExpectLimit(Failure("{{ d }}", variables), "a value is nested deeper than 64");
  ExpectLimit(
      Failure(
          "{% set n = namespace(l=1) %}{% for i in range(100) %}{% set n.l = [n.l] %}{% endfor %}"),
      "a value is nested deeper than 64");
  ExpectLimit(Failure("{% set n = namespace(l=1) %}{% for i in range(100) %}{% set n.l = {1: n.l} "
                      "%}{% endfor %}"),
              "a value is nested deeper than 64");
}

TEST(ChatLimitsTest, SharedValuesAreNotUnfoldedForever) {
  const std::string shared =
      "{% set n = namespace(l='x') %}{% for i in range(50) %}{% set n.l = [n.l, n.l] %}{% endfor "
      "%}{% set m = namespace(l='x') %}{% for i in range(50) %}{% set m.l = [m.l, m.l] %}{% endfor "
      "%}";

  // Printing may end at the limit of steps or at that of text.
  ExpectLimit(Failure(shared + "{{ n.l }}"), "");
  ExpectLimit(Failure(shared + "{{ n.l|tojson }}"), "");
  ExpectLimit(Failure(shared + "{{ n.l == m.l }}"), "steps");
  ExpectLimit(Failure(shared + "{{ n.l < m.l }}"), "steps");
}

TEST(ChatLimitsTest, ANamespaceMayHoldItself) {
  EXPECT_TRUE(Failure("{% set n = namespace() %}{% set n.n = n %}{% set n.l = [n, {'k': n}] %}{{ "
                      "n.l[1].k.n.l|length }}")
                  .ok());
}

TEST(ChatLimitsTest, ALongRangeIsRefused) {
  EXPECT_TRUE(Failure("{{ range(100000)|length }}").ok());
  ExpectLimit(Failure("{{ range(100001) }}"), "range of 100001 numbers is longer than 100000");
  ExpectLimit(Failure("{{ range(-9223372036854775807, 9223372036854775807) }}"),
              "longer than 100000");
}

TEST(ChatLimitsTest, ALongSourceIsRefused) {
  ExpectLimit(ChatTemplate::Compile(std::string((1 << 20) + 1, 'x')).status(), "more than 1048576");
}

// A clock on which 50 ms pass from one reading to the next.
class SlowClock : public Clock {
 public:
  absl::Time Now() override { return absl::UnixEpoch(); }
  absl::Duration Monotonic() override { return elapsed_ += absl::Milliseconds(50); }
  void Sleep(absl::Duration) override {}

 private:
  absl::Duration elapsed_;
};

TEST(ChatLimitsTest, ARenderingEndsAfter200MillisecondsOfItsClock) {
  SlowClock clock;
  const auto loop = ChatTemplate::Compile("{% for i in range(90000) %}{% set x = i %}{% endfor %}");
  ExpectLimit((*loop)->Render(Json::object(), {.clock = &clock}).status(),
              "ran for 250ms of CPU time, longer than 200ms");

  const auto text = ChatTemplate::Compile(
      "{% set s = 'ab' * 900000 %}{% for i in range(100) %}{% set x = s|replace('b', 'c') %}{% "
      "endfor %}");

  ExpectLimit((*text)->Render(Json::object(), {.clock = &clock}).status(),
              "ran for 250ms of CPU time, longer than 200ms");
  EXPECT_TRUE((*ChatTemplate::Compile("{{ 1 }}"))->Render(Json::object(), {.clock = &clock}).ok());
}

// Spins until the calling thread has used `time` of a core.
void UseCpu(absl::Duration time) {
  Clock* const used = chat::ThreadCpuClock();
  const absl::Duration end = used->Monotonic() + time;
  while (used->Monotonic() < end) {
  }
}

// Long enough for the renderer to read its clock several times.
constexpr char kLoop[] = "{% for i in range(4000) %}{% set x = i %}{% endfor %}";

// Returns the CPU time of the thread. During each reading 250 ms of wall time pass, in which
// another thread uses the core.
class StarvedClock : public Clock {
 public:
  absl::Time Now() override { return absl::UnixEpoch(); }
  absl::Duration Monotonic() override {
    ++looks;
    std::thread(UseCpu, absl::Milliseconds(250)).join();
    return chat::ThreadCpuClock()->Monotonic();
  }
  void Sleep(absl::Duration) override {}

  int looks = 0;
};

TEST(ChatLimitsTest, WallTimeAloneEndsNoRendering) {
  StarvedClock clock;
  EXPECT_TRUE((*ChatTemplate::Compile(kLoop))->Render(Json::object(), {.clock = &clock}).ok());
  // With two readings, at least 250 ms of wall time have passed, which is over the limit.
  EXPECT_GE(clock.looks, 2);
}

TEST(ChatLimitsTest, TheCpuTimeOfTheThreadIsWhatEndsARenderingWithoutAClock) {
  // CPU time that the thread used before the rendering does not count.
  UseCpu(absl::Milliseconds(250));
  EXPECT_TRUE((*ChatTemplate::Compile(kLoop))->Render(Json::object()).ok());

  const auto endless = ChatTemplate::Compile(
      "{% set s = 'ab' * 900000 %}{% for i in range(100000) %}{% set x = s|replace('bb', 'c') %}{% "
      "endfor %}");

  ExpectLimit((*endless)->Render(Json::object()).status(), "of CPU time, longer than 200ms");
}

}  // namespace
}  // namespace sluice
