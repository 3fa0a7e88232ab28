#include "common/plugins/sandboxed.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/plugins/plugin_host.h"
#include "tests/common/sandbox/tiers.h"

namespace sluice {
namespace {

using nlohmann::json;
using sandbox::Tier;
using testing::HasSubstr;

// The score is what the answer asks for, if it is allowed: 1, else 0.
constexpr char kFunction[] = R"py(
import os, socket, subprocess, sys
import helper  # A module beside it.

def try_it(what):
    try:
        what()
        return 1.0
    except OSError:
        return 0.0

def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    word, _, value = solution_str.partition(" ")
    if word == "number":
        return helper.double(float(value)) / 2
    if word == "read":
        return try_it(lambda: open(value).read())
    if word == "list":
        return try_it(lambda: os.listdir(value))
    if word == "write":
        return try_it(lambda: open(value, "w").write("x"))
    if word == "connect":
        return try_it(lambda: socket.create_connection(("127.0.0.1", int(value)), timeout=1))
    if word == "kill":
        return try_it(lambda: os.kill(int(value), 9))
    if word == "environment":
        return float(value in os.environ)
    if word == "memory":
        kept = bytearray(int(value) << 20)
        return float(len(kept) > 0)
    if word == "exit":
        os._exit(3)
    if word == "daemon":  # A process that outlives its parent.
        if os.fork() == 0:
            os.setsid()
            for fd in range(3):
                os.close(fd)
            if os.fork() == 0:
                os.execv("/usr/bin/sleep", ["sleep", "1000"])
            os._exit(0)
        return 1.0
)py";

class SandboxedPluginTest : public testing::TestWithParam<Tier> {
 protected:
  void SetUp() override {
    auto launcher = sandbox::MakeLauncher(GetParam(), 2);
    if (!launcher.ok()) GTEST_SKIP() << launcher.status().message();
    launcher_ = *std::move(launcher);
    folder_ = sandbox::MakeFolder();
    sandbox::WriteFile(folder_ + "/reward.py", kFunction);
    sandbox::WriteFile(folder_ + "/helper.py", "def double(x):\n    return 2 * x\n");
  }
  void TearDown() override {
    host_.reset();
    if (!folder_.empty()) RemoveTree(folder_).IgnoreError();
  }

  void StartHost(json args, sandbox::Limits limits = {.address_space_bytes = 0}) {
    args["processes"] = 1;
    PluginHost::Options options{.job = "digits", .name = "mine"};
    options.spec = *ParsePluginSpec(args);
    options.launch = LaunchInSandbox(launcher_.get(), limits);
    options.folders = kSandboxProgramFolders;
    options.first_back_off = absl::Milliseconds(1);
    host_ = *PluginHost::Make(std::move(options));
  }
  void StartVerl(sandbox::Limits limits = {.address_space_bytes = 0}) {
    StartHost({{"verl", folder_ + "/reward.py:compute_score"}}, limits);
  }

  // The score of an answer; NaN, with the reason in error_, if it has none.
  double ScoreOf(const std::string& completion) {
    const auto results = host_->Score({{{"completion", completion}}}, absl::Seconds(30));
    EXPECT_TRUE(results.ok()) << results.status();
    if (!results.ok()) return std::nan("");
    error_ = (*results)[0].error;
    return (*results)[0].score.value_or(std::nan(""));
  }

  std::unique_ptr<sandbox::Launcher> launcher_;
  std::string folder_, error_;
  std::unique_ptr<PluginHost> host_;
};

TEST_P(SandboxedPluginTest, AnswersGetTheirScores) {
  StartVerl();
  EXPECT_EQ(ScoreOf("number 0.5"), 0.5);
  EXPECT_EQ(ScoreOf("number -3"), -3);
  EXPECT_EQ(host_->starts(), 1u);
}

TEST_P(SandboxedPluginTest, TheFolderOfItsFileIsAllThatItSeesOfTheMachine) {
  const std::string other = sandbox::MakeFolder();
  sandbox::WriteFile(other + "/secret", "x");
  sandbox::WriteFile(folder_ + "/words.txt", "x");
  StartVerl();
  EXPECT_EQ(ScoreOf(absl::StrCat("read ", folder_, "/words.txt")), 1);
  EXPECT_EQ(ScoreOf("write file"), 1);  // In the folder that it starts in.
  EXPECT_EQ(ScoreOf(absl::StrCat("write ", folder_, "/words.txt")), 0);
  EXPECT_EQ(ScoreOf(absl::StrCat("write ", folder_, "/new.txt")), 0);
  EXPECT_EQ(ScoreOf(absl::StrCat("read ", other, "/secret")), 0);
  EXPECT_EQ(ScoreOf("read /etc/hostname"), 0);
  EXPECT_EQ(ScoreOf("list /"), sandbox::HasNamespaces(GetParam()) ? 1 : 0);  // Of the sandbox.
  EXPECT_EQ(ScoreOf("list /root"), 0);
  EXPECT_EQ(ScoreOf(absl::StrCat("read /proc/", getpid(), "/environ")), 0);
  EXPECT_EQ(ScoreOf(absl::StrCat("kill ", getpid())), 0);
  EXPECT_EQ(host_->starts(), 1u);
  RemoveTree(other).IgnoreError();
}

TEST_P(SandboxedPluginTest, AFolderThatOnlyItsOwnerReadsIsNamed) {
  if (geteuid() != 0) GTEST_SKIP() << "the sandboxes of others than root have the same user";
  StartVerl();
  EXPECT_EQ(ScoreOf("number 0.5"), 0.5);
  host_.reset();
  chmod(folder_.c_str(), 0700);
  StartVerl();
  const auto results = host_->Score({{{"completion", "number 1"}}}, absl::Seconds(30));
  EXPECT_THAT(results.status().message(),
              HasSubstr("other users than the owner cannot read " + folder_));
}

TEST_P(SandboxedPluginTest, ItHasNeitherNetworkNorTheSecretsOfTheEnvironment) {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  socklen_t size = sizeof address;
  ASSERT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(listen(listener, 1), 0);
  ASSERT_EQ(getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size), 0);
  setenv("SLUICE_TEST_SECRET", "x", 1);
  StartVerl();
  EXPECT_EQ(ScoreOf(absl::StrCat("connect ", ntohs(address.sin_port))), 0);
  EXPECT_EQ(ScoreOf("environment SLUICE_TEST_SECRET"), 0);
  EXPECT_EQ(ScoreOf("environment PATH"), 1);
  unsetenv("SLUICE_TEST_SECRET");
  close(listener);
}

TEST_P(SandboxedPluginTest, AProcessThatNeedsMoreThanItsMemoryCostsNoOtherAnswerItsScore) {
  StartVerl({.memory_bytes = 256 << 20, .address_space_bytes = 0});
  EXPECT_TRUE(std::isnan(ScoreOf("memory 4000"))) << error_;
  EXPECT_EQ(ScoreOf("number 0.5"), 0.5);
}

TEST_P(SandboxedPluginTest, HowItEndedIsTold) {
  StartVerl();
  EXPECT_TRUE(std::isnan(ScoreOf("exit")));
  EXPECT_THAT(error_, HasSubstr("exit code 3"));
}

TEST_P(SandboxedPluginTest, WhatItHasStartedEndsWithIt) {
  StartVerl();
  EXPECT_EQ(ScoreOf("daemon"), 1);
  host_.reset();
  EXPECT_EQ(launcher_->retired(), 0u);
  // Both slots can be taken: nothing is left in them.
  const auto first = launcher_->Start({.argv = {"/usr/bin/true"}});
  const auto second = launcher_->Start({.argv = {"/usr/bin/true"}});
  EXPECT_TRUE(first.ok()) << first.status();
  EXPECT_TRUE(second.ok()) << second.status();
}

TEST_P(SandboxedPluginTest, ACommandSeesTheFilesThatItNames) {
  const std::string other = sandbox::MakeFolder();
  sandbox::WriteFile(other + "/scale", "3");
  sandbox::WriteFile(folder_ + "/program.py", R"py(
import json, sys
scale = float(open(sys.argv[1]).read())
sys.stdin.readline()
print(json.dumps({"name": "p", "version": "1", "granularity": "trajectory", "max_in_flight": 1}),
      flush=True)
for line in sys.stdin:
    call = json.loads(line)
    scores = [{"score": scale * float(item["completion"])} for item in call["items"]]
    print(json.dumps({"id": call["id"], "results": scores}), flush=True)
)py");
  StartHost({{"exec", {"python3", folder_ + "/program.py", other + "/scale"}}});
  EXPECT_EQ(ScoreOf("2"), 6);
  RemoveTree(other).IgnoreError();
}

// A virtual environment lies where its user likes, and its programs are links to those of /usr.
TEST_P(SandboxedPluginTest, AVirtualEnvironmentIsSeenWithItsPackages) {
  const std::string venv = sandbox::MakeFolder();
  ASSERT_EQ(system(absl::StrCat("/usr/bin/python3 -m venv --without-pip ", venv, " >&2").c_str()),
            0);
  sandbox::WriteFile(folder_ + "/helper.py", "from installed import double\n");
  ASSERT_EQ(system(absl::StrCat("for folder in ", venv, "/lib/python3*/site-packages; do ",
                                "echo 'def double(x): return 2 * x' > $folder/installed.py; done")
                       .c_str()),
            0);
  StartHost({{"verl", folder_ + "/reward.py:compute_score"}, {"python", venv + "/bin/python3"}});
  EXPECT_EQ(ScoreOf("number 0.5"), 0.5);
  RemoveTree(venv).IgnoreError();
}

// By a link its owner could show it what the owner may not name.
TEST_P(SandboxedPluginTest, AFolderThatIsALinkIsRefused) {
  const std::string other = sandbox::MakeFolder(), link = other + "/link";
  ASSERT_EQ(symlink(folder_.c_str(), link.c_str()), 0);
  StartHost({{"verl", link + "/reward.py:compute_score"}});
  const auto results = host_->Score({{{"completion", "number 1"}}}, absl::Seconds(30));
  EXPECT_THAT(results.status().message(), HasSubstr(absl::StrCat(link, ", which is ", folder_)));
  host_.reset();
  RemoveTree(other).IgnoreError();
}

TEST(SandboxedPlugin, ARewardInTheRootFolderIsRefused) {
  const LaunchPlugin launch = LaunchInSandbox(nullptr, {});
  const auto child = launch({.argv = {"/usr/bin/python3"}, .folder = ""});
  EXPECT_EQ(child.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(child.status().message(), HasSubstr("it must not lie in /"));
}

INSTANTIATE_TEST_SUITE_P(Tiers, SandboxedPluginTest, testing::ValuesIn(sandbox::kTiers),
                         sandbox::TierName);

}  // namespace
}  // namespace sluice
