#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/sandbox/code_runner.h"
#include "tests/common/sandbox/tiers.h"

namespace sluice::sandbox {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using End = TestReport::End;

class CodeRunnerTest : public ::testing::TestWithParam<Tier> {
 protected:
  void SetUp() override {
    absl::StatusOr<std::unique_ptr<CodeSandboxes>> made =
        CodeSandboxes::Make({.runs = 2, .strongest = GetParam()});
    if (!made.ok()) GTEST_SKIP() << made.status();
    if ((*made)->launcher()->tier() != GetParam())
      GTEST_SKIP() << (*made)->launcher()->why_not_stronger();
    sandboxes_ = *std::move(made);
    Configure({});
  }
  void Configure(const CodeRunner::Options& options) {
    runner_ = std::make_unique<CodeRunner>(sandboxes_.get(), options);
  }
  std::vector<TestReport> Reports(const CodeTask& task) {
    std::vector<TestReport> reports;
    const auto outcome = runner_->Run(task, [&](size_t, const TestReport& report) {
      reports.push_back(report);
      return true;
    });
    EXPECT_TRUE(outcome.ok()) << outcome.status();
    if (outcome.ok()) compiler_says_ = outcome->compiler_says;
    return reports;
  }
  TestReport Report(const CodeTask& task) {
    std::vector<TestReport> reports = Reports(task);
    reports.resize(1);
    return reports[0];
  }
  TestReport RunPython(const std::string& source) {
    return Report({.source = source, .inputs = {{}}});
  }

  std::unique_ptr<CodeSandboxes> sandboxes_;
  std::unique_ptr<CodeRunner> runner_;
  std::string compiler_says_;
};

TEST_P(CodeRunnerTest, APythonProgramReadsEachInputAndPrints) {
  const auto reports =
      Reports({.source = "print(int(input()) + 1)", .inputs = {{.text = "1\n"}, {.text = "41\n"}}});
  ASSERT_EQ(reports.size(), 2u);
  EXPECT_EQ(reports[0].out, "2\n") << reports[0].err;
  EXPECT_EQ(reports[1].out, "42\n");
  EXPECT_EQ(reports[1].exit_code, 0);
}

TEST_P(CodeRunnerTest, ACallReportsItsResult) {
  const auto reports = Reports({.source = "def f(a, b):\n  return (a, {b: 1.5}, None, True)",
                                .function = "f",
                                .inputs = {{CodeTask::Kind::kCall, R"([[1, "x"], 2])"}}});
  ASSERT_EQ(reports.size(), 1u);
  ASSERT_TRUE(reports[0].reported) << reports[0].err;
  EXPECT_EQ(reports[0].result,
            R"([[{"int": "1"}, "x"], {"dict": [[{"int": "2"}, {"float": "1.5"}]]}, null, true])");
}

TEST_P(CodeRunnerTest, ACppProgramIsCompiledOnceForAllTests) {
  const CodeTask task{.language = CodeTask::Language::kCpp,
                      .source =
                          "#include <iostream>\nint main() { int x; std::cin >> x; "
                          "std::cout << x * 2; }",
                      .inputs = {{.text = "4"}, {.text = "5"}}};
  const auto reports = Reports(task);
  ASSERT_EQ(reports.size(), 2u) << compiler_says_;
  EXPECT_EQ(reports[0].out, "8") << reports[0].err;
  EXPECT_EQ(reports[1].out, "10");
}

TEST_P(CodeRunnerTest, ACppProgramThatDoesNotCompileHasNoReports) {
  EXPECT_TRUE(Reports({.language = CodeTask::Language::kCpp,
                       .source = "int main() { return x; }",
                       .inputs = {{}}})
                  .empty());
  EXPECT_THAT(compiler_says_, HasSubstr("was not declared"));
}

TEST_P(CodeRunnerTest, ACompilerThatTookTooLongIsAskedAgainByWhoeverGivesItMoreTime) {
  CodeTask task{.language = CodeTask::Language::kCpp,
                .source = "#include <iostream>\nint main() { std::cout << 42; }",
                .inputs = {{.text = ""}},
                .compile_time = absl::Milliseconds(1)};
  EXPECT_THAT(Reports(task), ::testing::IsEmpty());
  EXPECT_THAT(compiler_says_, HasSubstr("the compiler took too long"));

  task.compile_time = kLongestCompile;
  EXPECT_EQ(Report(task).out, "42") << compiler_says_;
}

TEST_P(CodeRunnerTest, TheEndOfAProgramIsToldApart) {
  EXPECT_EQ(RunPython("raise SystemExit(3)").exit_code, 3);
  EXPECT_EQ(RunPython("1/0").exit_code, 1);
  EXPECT_THAT(RunPython("1/0").err, HasSubstr("ZeroDivisionError"));
  EXPECT_EQ(RunPython("import os; os.abort()").end, End::kKilled);
  EXPECT_EQ(RunPython("while True: print('x' * 10000)").end, End::kOutputLimit);
}

TEST_P(CodeRunnerTest, AProgramThatDoesNotEndIsOverItsTime) {
  Configure({.wall = absl::Seconds(4)});
  const TestReport report =
      Report({.source = "while True: pass", .inputs = {{}}, .cpu_seconds = 0.5});
  EXPECT_EQ(report.end, End::kTimeLimit);
}

TEST_P(CodeRunnerTest, AfterTwoTestsOverTheirTimeTheOthersAreNotRun) {
  Configure({.wall = absl::Milliseconds(200)});
  const auto reports = Reports(
      {.source = "import time; time.sleep(1000)", .inputs = std::vector<CodeTask::Input>(50)});
  ASSERT_EQ(reports.size(), 50u);
  for (const TestReport& report : reports) EXPECT_EQ(report.end, End::kTimeLimit);
}

TEST_P(CodeRunnerTest, NothingIsLeftForTheNextTest) {
  const std::string source = R"(
import os
def ls(folder):
  try:
    return os.listdir(folder)
  except PermissionError:
    return []
print(ls('.') + ls('/tmp'), flush=True)
os.makedirs('a/b')
open('a/file', 'w').write('x')
os.symlink('/usr', 'link')
os.chmod('a', 0)
if os.fork() == 0:
  os.setsid()
  if os.fork() == 0:
    while True:
      pass
)";
  const auto reports = Reports({.source = source, .inputs = {{}, {}, {}}});
  ASSERT_EQ(reports.size(), 3u);
  for (const TestReport& report : reports) EXPECT_EQ(report.out, "[]\n") << report.err;
}

TEST_P(CodeRunnerTest, StopEndsWhatRuns) {
  std::thread stopper([&] { runner_->Stop(); });
  const auto outcome = runner_->Run({.source = "import time; time.sleep(1000)", .inputs = {{}}},
                                    [](size_t, const TestReport&) { return true; });
  stopper.join();
  EXPECT_TRUE(absl::IsCancelled(outcome.status())) << outcome.status();
}

INSTANTIATE_TEST_SUITE_P(Tiers, CodeRunnerTest, ::testing::ValuesIn(kTiers), TierName);

// Nothing but the session of a test is ended then, as all else belongs to the user.
TEST(UnsafeTest, WithoutASandboxProgramsRunOnlyIfThatWasAllowed) {
  const auto refused = CodeSandboxes::Make({.runs = 1, .strongest = Tier::kUnsafe});
  EXPECT_EQ(ReasonOf(refused.status()), "NO_SANDBOX");

  const auto sandboxes =
      CodeSandboxes::Make({.runs = 1, .allow_unsafe = true, .strongest = Tier::kUnsafe});
  ASSERT_TRUE(sandboxes.ok()) << sandboxes.status();
  CodeRunner runner(sandboxes->get(), {});
  std::vector<TestReport> reports;
  const auto outcome = runner.Run({.source = "import os\nos.fork()\nprint(input(), flush=True)",
                                   .inputs = {{.text = "1\n2\n"}, {.text = "3\n4\n"}}},
                                  [&](size_t, const TestReport& report) {
                                    reports.push_back(report);
                                    return true;
                                  });
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  ASSERT_EQ(reports.size(), 2u);
  for (const TestReport& report : reports) EXPECT_EQ(report.end, End::kExited) << report.err;
}

TEST(CompiledProgramsTest, DropsWhatWasNotUsedForLongest) {
  CompiledPrograms programs(10);
  const auto program = [](const char* text) {
    return std::make_shared<CompiledPrograms::Program>(CompiledPrograms::Program{text, ""});
  };
  programs.Add("a", program("aaaa"));
  programs.Add("b", program("bbbb"));
  ASSERT_NE(programs.Find("a"), nullptr);
  programs.Add("c", program("cccc"));

  EXPECT_NE(programs.Find("a"), nullptr);
  EXPECT_EQ(programs.Find("b"), nullptr);
  EXPECT_EQ(programs.Find("c")->binary, "cccc");
}

}  // namespace
}  // namespace sluice::sandbox
