// What sandboxes work in the containers of Kubernetes, by how their pods are confined.
#include "tests/common/sandbox/pod.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/fd.h"
#include "common/base/status.h"
#include "common/sandbox/code_runner.h"
#include "tests/common/sandbox/probes.h"
#include "tests/common/sandbox/tiers.h"

namespace sluice::sandbox {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// The pods of deploy/k8s/base/reward.yaml.
Pod RewardPod() {
  return {.capabilities = {CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_KILL, CAP_SETGID, CAP_SETUID}};
}

class PodTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "only root can make what a container's runtime makes";
  }
  static std::string Run(const Pod& pod, const std::function<std::string()>& work) {
    const auto result = RunInPod(pod, work);
    EXPECT_TRUE(result.ok()) << result.status();
    return result.value_or("");
  }
  // The tier of a pod, or why it has none.
  static std::string FindTier(const Pod& pod) {
    return Run(pod, [] {
      const auto launcher = Launcher::Make({});
      return launcher.ok() ? (*launcher)->Describe() : std::string(launcher.status().message());
    });
  }
};

// Another process of the container, whose pid is above those that a sandbox with its own ones has.
class Bystander {
 public:
  Bystander() {
    for (int burnt = 0; burnt < 100; ++burnt) {
      const pid_t pid = fork();
      if (pid == 0) _exit(0);
      waitpid(pid, nullptr, 0);
    }
    pid_ = fork();
    if (pid_ == 0) {
      while (true) pause();
    }
  }
  ~Bystander() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_;
};

// Whether programs run in the container and can do no harm: one line for each surprise.
std::string TryPrograms() {
  const Bystander bystander;
  const auto launcher = Launcher::Make({.slots = 1});
  if (!launcher.ok()) return std::string(launcher.status().message());
  WriteFile("/tmp/file", "of the host");
  std::vector<std::string> surprises = FindEscapes(launcher->get(), "/tmp/file", bystander.pid());

  const auto sandboxes = CodeSandboxes::Make({.runs = 1});
  if (!sandboxes.ok()) return std::string(sandboxes.status().message());
  CodeRunner runner(sandboxes->get(), {});
  const auto expect = [&](CodeTask::Language language, const std::string& source) {
    const auto take = [&](size_t, const TestReport& report) {
      if (report.out != "42\n") surprises.push_back(absl::StrCat(report.out, report.err));
      return true;
    };
    const auto ran =
        runner.Run({.language = language, .source = source, .inputs = {{.text = "41"}}}, take);
    if (!ran.ok()) surprises.emplace_back(ran.status().message());
    else if (!ran->compiled) surprises.push_back(ran->compiler_says);
  };
  expect(CodeTask::Language::kPython, "print(int(input()) + 1)");
  expect(CodeTask::Language::kPython, R"(
import os, threading
pids = 0
try:
  while pids < 200:  # A fork bomb has an end.
    if os.fork() == 0:
      os.setsid()
      while True: os.sched_yield()
    pids += 1
except OSError: pass
print(42 if pids < 64 else pids)
)");
  expect(CodeTask::Language::kPython, "open('f', 'w').write('42'); print(open('f').read())");
  expect(CodeTask::Language::kCpp,
         "#include <iostream>\nint main() { int n; std::cin >> n; std::cout << n + 1 << '\\n'; }");
  return absl::StrJoin(surprises, "\n");
}

TEST_F(PodTest, ARewardPodRunsProgramsUnderUsersOfTheirOwn) {
  EXPECT_THAT(FindTier(RewardPod()), StartsWith("T1b: users"));
  EXPECT_EQ(Run(RewardPod(), TryPrograms), "");
}

// What a program says on one test, "" if it is right, or the error.
std::string TryToWrite(CodeRunner& runner) {
  std::string said = "no report";
  const auto outcome = runner.Run(
      {.source = "open('f', 'w').write('x' * 200000); print(42)", .inputs = {{.text = ""}}},
      [&](size_t, const TestReport& report) {
        said = report.out == "42\n" ? "" : report.err;
        return true;
      });
  return outcome.ok() ? said : std::string(ReasonOf(outcome.status()));
}

// There sandboxes cannot have file systems of their own.
TEST_F(PodTest, WhereOtherProgramsHaveFilledTheSharedFolderAProgramGetsNoVerdict) {
  Pod pod = RewardPod();
  pod.sandbox_bytes = 8 << 20;
  const std::string said = Run(pod, [] {
    const auto sandboxes = CodeSandboxes::Make({.runs = 1});
    if (!sandboxes.ok()) return std::string(sandboxes.status().message());
    CodeRunner runner(sandboxes->get(), {});
    const std::string before = TryToWrite(runner);

    const Fd other(open("/run/sluice-sandbox/other", O_CREAT | O_WRONLY, 0600));
    const std::string piece(1 << 16, 'x');
    while (write(other.get(), piece.data(), piece.size()) > 0) {
    }
    const std::string full = TryToWrite(runner);
    if (ftruncate(other.get(), 0) != 0) return std::string("ftruncate");
    return absl::StrCat(before, "|", full, "|", TryToWrite(runner));
  });
  EXPECT_EQ(said, "|SANDBOXES_FULL|");
}

TEST_F(PodTest, EachCapabilityOfARewardPodIsNeededAndIsNamedIfItIsMissing) {
  const std::pair<int, const char*> names[] = {{CAP_CHOWN, "[CHOWN]"},
                                               {CAP_DAC_OVERRIDE, "[DAC_OVERRIDE]"},
                                               {CAP_KILL, "[KILL]"},
                                               {CAP_SETGID, "[SETGID]"},
                                               {CAP_SETUID, "[SETUID]"}};
  for (const auto& [missing, name] : names) {
    Pod pod = RewardPod();
    std::erase(pod.capabilities, missing);
    EXPECT_THAT(FindTier(pod), HasSubstr(absl::StrCat("capabilities.add: ", name)));
  }
}

TEST_F(PodTest, ARestrictedPodHasNoSandboxAndSaysWhatItLacks) {
  const std::string why = FindTier({.root = false});
  EXPECT_THAT(why, StartsWith("no sandbox works on this machine."));
  EXPECT_THAT(why, HasSubstr("securityContext.seccompProfile of the pod"));
  EXPECT_THAT(why, HasSubstr("set in the pod's securityContext runAsUser: 0 and capabilities.add: "
                             "[CHOWN, DAC_OVERRIDE, KILL, SETGID, SETUID]"));
}

TEST_F(PodTest, AnUnprivilegedPodThatMayMakeNamespacesHasThemWithoutProc) {
  const Pod pod{.root = false, .default_seccomp = false};
  EXPECT_EQ(FindTier(pod), absl::StrCat(Describe(Tier::kNamespacesAlone), "; without /proc"));
  EXPECT_EQ(Run(pod, TryPrograms), "");
}

TEST_F(PodTest, AnUnprivilegedPodWithAnUnmaskedProcHasAProcInItsSandboxes) {
  const Pod pod{.root = false, .default_seccomp = false, .masked_proc = false};
  EXPECT_EQ(FindTier(pod), std::string(Describe(Tier::kNamespacesAlone)));
  EXPECT_EQ(Run(pod, TryPrograms), "");
}

TEST_F(PodTest, APodWithACgroupOfItsOwnHasTheStrongestTier) {
  Pod pod = RewardPod();
  pod.default_seccomp = false;
  pod.own_cgroup = true;
  EXPECT_EQ(FindTier(pod), absl::StrCat(Describe(Tier::kNamespaces), "; without /proc"));
  EXPECT_EQ(Run(pod, TryPrograms), "");
}

}  // namespace
}  // namespace sluice::sandbox
