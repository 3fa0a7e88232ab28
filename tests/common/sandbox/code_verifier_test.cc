#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/sandbox/code_runner.h"
#include "common/sandbox/slot.h"
#include "common/verifiers/verifier.h"
#include "nlohmann/json.hpp"
#include "tests/common/sandbox/tiers.h"

namespace sluice::sandbox {
namespace {

using nlohmann::json;

std::string Fenced(const std::string& source, const std::string& language = "python") {
  return absl::StrCat("Here it is:\n```", language, "\n", source, "\n```\n");
}

class CodeVerifierTest : public ::testing::TestWithParam<Tier> {
 protected:
  void SetUp() override {
    absl::StatusOr<std::unique_ptr<CodeSandboxes>> made =
        CodeSandboxes::Make({.runs = 2, .strongest = GetParam()});
    if (!made.ok()) GTEST_SKIP() << made.status();
    if ((*made)->launcher()->tier() != GetParam())
      GTEST_SKIP() << (*made)->launcher()->why_not_stronger();
    sandboxes_ = *std::move(made);
    SetWall(absl::Seconds(5));
  }
  void SetWall(absl::Duration wall) {
    runner_ = std::make_unique<CodeRunner>(
        sandboxes_.get(),
        CodeRunner::Options{
            .memory_bytes = 256 << 20, .wall = wall, .output_bytes = 1 << 16, .ready = 2});
  }
  std::unique_ptr<Verifier> Make(const json& args) {
    auto verifier =
        MakeVerifier("code", args, {.run_code = [this](const auto& task, const auto& take) {
                       return runner_->Run(task, take);
                     }});
    EXPECT_TRUE(verifier.ok()) << verifier.status();
    return *std::move(verifier);
  }
  Verdict Score(const Verifier& verifier, const std::string& answer, const json& row) {
    const auto verdict = verifier.Score({.text = answer}, row);
    EXPECT_TRUE(verdict.ok()) << verdict.status();
    return verdict.value_or(Verdict{.score = -1});
  }

  // Scores hostile programs for a function f(x) = x + 1, each followed by an honest one.
  void ExpectNoneScores(const std::vector<std::pair<const char*, const char*>>& programs,
                        const json& args) {
    const std::unique_ptr<Verifier> verifier = Make(args);
    const json row = {{"answer", {"assert f(2) == 3", "assert f(3) == 4", "assert f(5) == 6"}}};
    for (const auto& [name, source] : programs) {
      SCOPED_TRACE(name);
      const Verdict hostile = Score(*verifier, Fenced(source), row);
      EXPECT_EQ(hostile.score, 0) << hostile.reason;
      const Verdict honest = Score(*verifier, Fenced("def f(x):\n  return x + 1"), row);
      EXPECT_EQ(honest.score, 1);
      EXPECT_EQ(honest.reason, "right");
    }
  }

  std::unique_ptr<CodeSandboxes> sandboxes_;
  std::unique_ptr<CodeRunner> runner_;
};

TEST_P(CodeVerifierTest, RightSolutionsScoreAndWrongOnesDoNot) {
  std::ifstream file(SLUICE_SOURCE_DIR "/tests/common/sandbox/tasks.jsonl");
  std::string line;
  int tasks = 0;
  while (std::getline(file, line)) {
    const json task = json::parse(line);
    SCOPED_TRACE(task["name"]);
    const std::string language = task["language"];
    const std::unique_ptr<Verifier> verifier = Make({{"language", language}});
    const Verdict right = Score(*verifier, Fenced(task["right"], language), task);
    EXPECT_EQ(right.score, 1) << right.reason;
    EXPECT_EQ(right.reason, task["name"] == "sorted_copy" ? "right_forgeable" : "right");
    const Verdict wrong = Score(*verifier, Fenced(task["wrong"], language), task);
    EXPECT_EQ(wrong.score, 0) << wrong.reason;
    ++tasks;
  }
  EXPECT_GE(tasks, 30);
}

TEST_P(CodeVerifierTest, TheReasonSaysHowAProgramFailed) {
  const std::unique_ptr<Verifier> verifier = Make({{"cpu_seconds", 0.5}});
  const json row = {{"answer", {{"inputs", {"1\n"}}, {"outputs", {"2\n"}}}}};
  const auto reason = [&](const std::string& source) {
    return Score(*verifier, Fenced(source), row).reason;
  };
  EXPECT_EQ(reason("print(2)"), "right");
  EXPECT_EQ(reason("print(3)"), "wrong");
  EXPECT_EQ(reason("x ="), "runtime_error");
  EXPECT_EQ(reason("print(2); raise SystemExit(1)"), "runtime_error");
  EXPECT_EQ(reason("while True: pass"), "time_limit");
  EXPECT_EQ(reason("print('x' * 100000)"), "output_limit");
  EXPECT_EQ(reason("import os; os.abort()"), "killed");
  EXPECT_EQ(Score(*verifier, "no program", row).reason, "no_code");
  EXPECT_EQ(Score(*verifier, "<think>" + Fenced("print(2)"), row).reason, "unfinished");
}

TEST_P(CodeVerifierTest, TheScoreMayBeTheShareOfTestsThatPass) {
  const std::unique_ptr<Verifier> verifier = Make({{"score", "fraction"}});
  const json row = {{"answer", {"assert f(1) == 1", "assert f(2) == 2", "assert f(3) == 9"}}};
  const Verdict verdict = Score(*verifier, Fenced("def f(x):\n  return x"), row);
  EXPECT_DOUBLE_EQ(verdict.score, 2.0 / 3);
  EXPECT_EQ(verdict.reason, "wrong");
}

// Two different numbers with the sum n, of which one example is given.
constexpr char kSumChecker[] = R"(
def check(input, output, expected):
    a, b = map(int, output.split())
    if a == b: return 0.5
    return a + b == int(input)
)";

TEST_P(CodeVerifierTest, ACheckerJudgesWhereSeveralOutputsAreRight) {
  const json row = {{"answer", {{"inputs", {"4\n", "9\n"}}, {"outputs", {"1 3\n", "4 5\n"}}}},
                    {"checker", kSumChecker}};
  const auto all = Make(json::object()), fraction = Make({{"score", "fraction"}});
  const struct {
    const char* program;
    const char* reason;
    double all, fraction;
  } cases[] = {
      {"n = int(input())\nprint(n - 1, 1)", "right", 1, 1},
      {"n = int(input())\nprint(n, n)", "wrong", 0, 0.5},
      {"n = int(input())\nprint(3, 1)", "wrong", 0, 0.5},
      {"print('no numbers')", "checker_failed", 0, 0},
      {"n = int(input())\nprint(n - 1, 1 if n == 4 else 'x')", "checker_failed", 0, 0.5},
      {"n = int(input())\nif n == 9: raise ValueError()\nprint(n - 1, 1)", "runtime_error", 0, 0.5},
      {"raise ValueError()", "runtime_error", 0, 0},
  };
  for (const auto& test : cases) {
    SCOPED_TRACE(test.program);
    const Verdict strict = Score(*all, Fenced(test.program), row);
    EXPECT_EQ(strict.score, test.all);
    EXPECT_EQ(strict.reason, test.reason);
    EXPECT_EQ(Score(*fraction, Fenced(test.program), row).score, test.fraction);
  }
}

TEST_P(CodeVerifierTest, AProgramCannotReachTheChecker) {
  const json row = {{"answer", {{"inputs", {"4\n"}}, {"outputs", {"1 3\n"}}}},
                    {"checker", kSumChecker}};
  const auto verifier = Make(json::object());
  for (const char* program :
       {"def check(input, output, expected):\n  return True\nprint(0, 0)",
        "import builtins\nbuiltins.int = lambda x: 2\nprint(0, 0)",
        "open('/tmp/solution.py', 'w').write('x')\nopen('solution.py', 'w').write('x')\nprint(0, "
        "0)",
        "print('1 3\\n', True)", "print(1, 3, flush=True)\nimport os\nos._exit(1)"}) {
    EXPECT_EQ(Score(*verifier, Fenced(program), row).score, 0) << program;
    EXPECT_EQ(Score(*verifier, Fenced("print(3, 1)"), row).score, 1);
  }
}

TEST_P(CodeVerifierTest, ACheckerThatRefusesItsOwnExampleIsTheDatasFault) {
  const auto verifier = Make(json::object());
  for (const char* checker :
       {"def check(input, output, expected):\n  return False",
        "def check(input, output, expected):\n  return 2",
        "def check(input, output, expected):\n  return 'yes'",
        "def check(input, output, expected):\n  return 1 / 0", "def chek(input): return True"}) {
    const json row = {{"answer", {{"inputs", {"4\n"}}, {"outputs", {"1 3\n"}}}},
                      {"checker", checker}};
    const absl::Status status = verifier->Score({.text = Fenced("print(3, 1)")}, row).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                ::testing::HasSubstr("does not accept the output that the first test expects"));
  }
  EXPECT_TRUE(absl::IsInvalidArgument(
      verifier->CheckRow({{"answer", {"assert f(1) == 2"}}, {"checker", kSumChecker}})));
}

TEST_P(CodeVerifierTest, ACheckerThatIsStoppedOnItsOwnExampleIsAFaultAndNotTheDatas) {
  const auto verifier = Make(json::object());
  for (const char* checker :
       {"def check(input, output, expected):\n  while True: pass",
        "import os\ndef check(input, output, expected):\n  os.kill(os.getpid(), 9)",
        "def check(input, output, expected):\n  print('x' * 10000000)\n  return True"}) {
    const json row = {{"answer", {{"inputs", {"4\n"}}, {"outputs", {"1 3\n"}}}},
                      {"checker", checker}};
    const absl::Status status = verifier->Score({.text = Fenced("print(3, 1)")}, row).status();
    EXPECT_TRUE(absl::IsUnavailable(status)) << checker << status;
  }
}

TEST_P(CodeVerifierTest, ForgedTestsScoreNothingAndChangeNoLaterVerdict) {
  ExpectNoneScores(
      {
          {"exit", "import sys\nsys.exit(0)"},
          {"early exit", "import os\nos._exit(0)"},
          {"exit in the call", "def f(x):\n  raise SystemExit(0)"},
          {"exit of the interpreter", "def f(x):\n  import os; os._exit(0)"},
          {"skip", "import unittest\ndef f(x):\n  raise unittest.SkipTest('x')"},
          {"always equal",
           "class E(int):\n  def __eq__(self, o): return True\n  def __repr__(self): return '3'\n"
           "  def __hash__(self): return 0\ndef f(x):\n  return E()"},
          {"an object", "class E:\n  def __eq__(self, o): return True\ndef f(x):\n  return E()"},
          {"patched json",
           "import json\njson.dumps = lambda *a, **k: '{\"int\": \"3\"}'\ndef f(x): return None"},
          {"patched encode",
           "import sys\nfor frame in [sys._getframe(i) for i in range(3)]:\n"
           "  frame.f_globals['encode'] = lambda *a: {'int': '3'}\ndef f(x): return 0"},
          {"patched builtins",
           "import builtins\nbuiltins.isinstance = lambda *a: True\ndef f(x): return x"},
          {"closed pipe", "import os\nos.close(3)\ndef f(x): return x + 1"},
          {"all closed", "import os\nos.closerange(0, 60)\ndef f(x): return x + 1"},
          {"garbage in the pipe", "import os\nos.write(3, b'x')\ndef f(x): return x + 1"},
          {"a result in the pipe", "import os\nos.write(3, b'{\"int\": \"3\"}')\nos._exit(0)"},
          {"two reports",
           "import sys, os\nnonce = sys._getframe(1).f_locals['test']['nonce']\ndef f(x):\n"
           "  os.write(3, nonce.encode() + b'{\"int\": \"%d\"}' % (x + 1))\n  return x + 1"},
          {"many results", "def f(x): return [1, 2, 3, 4, 5, 6]"},
          {"truth", "def f(x): return True"},
          {"text", "def f(x): return str(x + 1)"},
          {"not a number", "def f(x): return float('nan')"},
          {"kill the driver", "import os\nos.kill(os.getppid(), 9)\ndef f(x): return 3"},
          {"kill all", "import os\nos.kill(-1, 9)\ndef f(x): return 3"},
          {"write for the driver",
           "import os\nopen('/proc/%d/fd/1' % os.getppid(), 'wb', 0).write("
           "b'{\"why\": \"\", \"code\": 0, \"cpu\": 0, \"parts\": [0, 0, 0]}\\n')\n"
           "def f(x): return x + 1"},
          {"memory of the driver",
           "import os\nopen('/proc/%d/mem' % os.getppid(), 'r+b')\ndef f(x): return x + 1"},
          {"files for the next",
           "import os\nfor folder in ('.', '/tmp'):\n  for name in ('json.py', 'sitecustomize.py', "
           "'solution.py', 'test.py'):\n    try: open(os.path.join(folder, name), 'w').write("
           "'raise SystemExit(0)')\n    except OSError: pass\ndef f(x): return 3"},
          {"a daemon for the next",
           "import os\nif os.fork() == 0:\n  os.setsid()\n  if os.fork() == 0:\n    while True:\n"
           "      try: open('json.py', 'w').write('x')\n      except OSError: pass\n"
           "  os._exit(0)\ndef f(x): return 3"},
          {"folders that resist",
           "import os\nfor i in range(400):\n  os.mkdir('d')\n  os.chdir('d')\nos.chmod('..', 0)\n"
           "def f(x): return 3"},
          {"a broken standard output",
           "import sys\nsys.stdout = sys.stderr = sys.stdin = None\ndef f(x): return 3"},
          {"handlers at the end",
           "import atexit, os\natexit.register(lambda: os.write(3, b'x'))\ndef f(x): return x + 1"},
          {"a signal", "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)"},
          {"a search for the gold",
           "import gc\nfound = [o for o in gc.get_objects() if isinstance(o, dict) and "
           "'expected' in o]\ndef f(x): return found[0]['expected']"},
      },
      json::object());
}

TEST_P(CodeVerifierTest, BombsScoreNothingAndChangeNoLaterVerdict) {
  SetWall(absl::Seconds(1));
  ExpectNoneScores(
      {
          {"forks", "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass"},
          {"threads",
           "import threading, time\nwhile True:\n"
           "  try: threading.Thread(target=time.sleep, args=(100,)).start()\n"
           "  except RuntimeError: pass"},
          {"memory at once", "x = bytearray(100 << 30)"},
          {"memory bit by bit", "x = []\nwhile True: x.append(bytearray(1 << 20))"},
          {"memory of many",
           "import os, time\nfor _ in range(20): os.fork()\nx = bytearray(b'1' * (64 << 20))\n"
           "time.sleep(100)"},
          {"disk", "i = 0\nwhile True:\n  i += 1\n  open(str(i), 'wb').write(bytes(8 << 20))"},
          {"many files", "i = 0\nwhile True:\n  i += 1\n  open(str(i), 'w').close()"},
          {"output", "while True: print('x' * 1000)"},
          {"errors", "import sys\nwhile True: sys.stderr.write('x' * 1000)"},
          {"the pipe", "import os\nwhile True: os.write(3, b'x' * 1000)"},
          {"recursion", "def f(x): return f(x)\nimport sys\nsys.setrecursionlimit(10 ** 9)"},
          {"a large power", "def f(x): return 79 ** 88 ** 95"},
          {"a deep result", "def f(x):\n  r = []\n  for _ in range(10 ** 5): r = [r]\n  return r"},
          {"a large result", "def f(x): return list(range(10 ** 6))"},
          {"a circle", "def f(x):\n  r = []\n  r.append(r)\n  return r"},
          {"sleep", "import time\ntime.sleep(1000)"},
          {"ignored signals",
           "import signal\nfor s in range(1, 32):\n  try: signal.signal(s, signal.SIG_IGN)\n"
           "  except (OSError, ValueError): pass\nwhile True: pass"},
          {"a stop", "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)"},
          {"a syntax bomb",
           "((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((("},
      },
      {{"cpu_seconds", 0.3}});
}

TEST_P(CodeVerifierTest, ACompileBombIsAVerdict) {
  const std::unique_ptr<Verifier> verifier = Make({{"language", "cpp"}});
  const json row = {{"answer", {{"inputs", {"1\n"}}, {"outputs", {"2\n"}}}}};
  for (const char* source :
       {"template <int N> struct A { static const int v = A<N - 1>::v + A<N - 2>::v; };\n"
        "int main() { return A<100000>::v; }",
        "#include \"/etc/passwd\"\nint main() {}", "#include \"/dev/zero\"\nint main() {}",
        "char a[1ul << 33] = {1};\nint main() {}", "#include __FILE__"}) {
    const Verdict verdict = Score(*verifier, Fenced(source, "cpp"), row);
    EXPECT_EQ(verdict.score, 0);
    EXPECT_EQ(verdict.reason, "compile_error") << source;
  }
}

TEST_P(CodeVerifierTest, NothingOutlivesTheSandboxes) {
  SetWall(absl::Milliseconds(500));
  const std::unique_ptr<Verifier> verifier = Make(json::object());
  const std::string marker = absl::StrCat("marker_", getpid());
  Score(*verifier,
        Fenced(absl::StrCat("import os\nfor _ in range(3): os.fork()\nos.setsid() if "
                            "os.getpgrp() != os.getpid() else 0\nos.execv('/usr/bin/sleep', ['",
                            marker, "', '1000'])")),
        {{"answer", {"assert f(2) == 3"}}});
  const std::vector<std::string> locks = HeldLocks();
  ASSERT_FALSE(locks.empty());
  runner_.reset();
  sandboxes_.reset();

  const std::vector<std::string> pids = ListDir("/proc").value();
  for (const std::string& pid : pids) {
    std::ifstream file(absl::StrCat("/proc/", pid, "/cmdline"));
    std::string command;
    std::getline(file, command);
    EXPECT_NE(command.substr(0, marker.size()), marker) << pid;
  }
  std::ifstream mounts("/proc/self/mounts");
  const std::string mounted((std::istreambuf_iterator<char>(mounts)), {});
  for (const std::string& lock : locks) {
    if (PathExists(lock)) continue;  // Another process has taken the number meanwhile.
    const std::string base = lock.substr(0, lock.size() - 5);
    EXPECT_FALSE(PathExists(base + ".box"));
    EXPECT_EQ(mounted.find(base + ".box"), std::string::npos);
    const size_t slash = base.rfind('/');
    const std::string cgroup =
        CgroupName(base.substr(0, slash), std::stoul(base.substr(slash + 1)));
    for (const char* controller : {"memory", "pids", "cpu"}) {
      const std::string folder = absl::StrCat("/sys/fs/cgroup/", controller, "/", cgroup);
      EXPECT_FALSE(PathExists(folder)) << folder;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Tiers, CodeVerifierTest, ::testing::ValuesIn(kTiers), TierName);

TEST(CodeVerifierFaultTest, ASandboxThatFailsIsAnErrorAndNeverANumber) {
  const auto verifier = MakeVerifier(
      "code", json::object(), {.run_code = [](const CodeTask&, const auto&) {
        return absl::StatusOr<CodeOutcome>(absl::UnavailableError("the sandbox failed"));
      }});
  ASSERT_TRUE(verifier.ok());
  const json row = {{"answer", {"assert f(2) == 3"}}};
  EXPECT_TRUE(absl::IsUnavailable(
      (*verifier)->Score({.text = Fenced("def f(x): return 3")}, row).status()));

  const auto without = MakeVerifier("code", json::object());
  ASSERT_TRUE(without.ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(
      (*without)->Score({.text = Fenced("def f(x): return 3")}, row).status()));
  EXPECT_TRUE(absl::IsInvalidArgument((*without)->CheckRow({{"answer", "no test"}})));
}

}  // namespace
}  // namespace sluice::sandbox
