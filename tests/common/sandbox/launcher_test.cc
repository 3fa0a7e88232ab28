#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/file.h"
#include "common/sandbox/sandbox.h"
#include "tests/common/sandbox/tiers.h"

namespace sluice::sandbox {
namespace {

using ::testing::HasSubstr;

class LauncherTest : public ::testing::TestWithParam<Tier> {
 protected:
  void SetUp() override {
    absl::StatusOr<std::unique_ptr<Launcher>> made = MakeLauncher(GetParam());
    if (!made.ok()) GTEST_SKIP() << made.status();
    launcher_ = *std::move(made);
  }
  std::unique_ptr<Launcher> launcher_;
};

TEST_P(LauncherTest, AProgramReadsItsInputAndItsOutputComesBack) {
  const auto process = launcher_->Start({.argv = {"/usr/bin/cat"}});
  ASSERT_TRUE(process.ok()) << process.status();
  ASSERT_EQ(write((*process)->in(), "hello", 5), 5);
  (*process)->CloseIn();

  EXPECT_EQ(ReadAll((*process)->out()), "hello");
  const auto status = (*process)->Wait(absl::Seconds(10));
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_EQ(*status, 0);
}

TEST_P(LauncherTest, AProgramHasOnlyTheEnvironmentOfItsCommand) {
  setenv("SLUICE_TEST_SECRET", "secret", 1);
  const Ran ran =
      RunCommand(launcher_.get(), {.argv = {"/usr/bin/env"}, .environment = {{"NAME", "x"}}});
  EXPECT_THAT(ran.out, HasSubstr("NAME=x\n"));
  EXPECT_THAT(ran.out, HasSubstr("PATH=/usr/bin\n"));
  EXPECT_THAT(ran.out, Not(HasSubstr("secret")));
}

TEST_P(LauncherTest, ABoundFolderCanBeReadAndNotChanged) {
  const std::string folder = MakeFolder();
  const std::string file = absl::StrCat(folder, "/file");
  WriteFile(file, "text");
  const Ran ran = RunCommand(launcher_.get(), {.argv = {"/usr/bin/python3", "-c",
                                                        absl::StrCat(R"(
print(open(')",
                                                                     file, R"(').read())
try: open(')",
                                                                     folder, R"(/new', 'w')
except OSError as e: print('refused')
)")},
                                               .binds = {{folder, folder, nullptr}}});
  EXPECT_EQ(ran.out, "text\nrefused\n") << ran.err;
}

// Between the check of a path and the start of the program its owner may rename.
TEST_P(LauncherTest, WhatWasOpenedIsShownAndNotWhatItsPathMeansByThen) {
  const std::string base = MakeFolder(), folder = base + "/folder", other = MakeFolder();
  ASSERT_EQ(mkdir(folder.c_str(), 0755), 0);
  WriteFile(folder + "/file", "own");
  WriteFile(other + "/file", "other's");
  const auto opened = std::make_shared<const Fd>(open(folder.c_str(), O_PATH | O_CLOEXEC));
  ASSERT_EQ(rename(folder.c_str(), (base + "/moved").c_str()), 0);
  ASSERT_EQ(symlink(other.c_str(), folder.c_str()), 0);

  const Ran ran = RunPython(launcher_.get(),
                            absl::StrCat(R"(
import os
try: print(open(')",
                                         folder, R"(/file').read())
except OSError: print('refused')
for fd in range(3, 64):
  try: os.fstat(fd); print('inherited', fd)
  except OSError: pass
)"),
                            {.binds = {{folder, folder, opened}}});
  // Without namespaces a path is not that of the sandbox alone.
  EXPECT_EQ(ran.out, HasNamespaces(GetParam()) ? "own\n" : "refused\n") << ran.err;
}

TEST_P(LauncherTest, WaitGivesUpAtItsDeadlineAndKillEndsTheProgram) {
  const auto process = launcher_->Start({.argv = {"/usr/bin/sleep", "1000"}});
  ASSERT_TRUE(process.ok()) << process.status();
  EXPECT_TRUE(absl::IsDeadlineExceeded((*process)->Wait(absl::Milliseconds(20)).status()));
  EXPECT_TRUE((*process)->Kill().ok());
  EXPECT_TRUE((*process)->Kill().ok()) << "it is idempotent";
}

TEST_P(LauncherTest, ASlotHoldsOneProgramAndIsUsedAgain) {
  auto first = launcher_->Start({.argv = {"/usr/bin/sleep", "1000"}});
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_TRUE(absl::IsResourceExhausted(launcher_->Start({.argv = {"/usr/bin/true"}}).status()));

  ASSERT_TRUE((*first)->Kill().ok());
  EXPECT_EQ(RunCommand(launcher_.get(), {.argv = {"/usr/bin/true"}}).status, 0);
}

TEST_P(LauncherTest, AProgramThatDoesNotExistIsAnError) {
  const Ran ran = RunCommand(launcher_.get(), {.argv = {"/usr/bin/no-such-program"}});
  EXPECT_NE(ran.status, 0);
  EXPECT_THAT(ran.err, HasSubstr("No such file")) << ran.err;
}

// Whether a process has this word in its command line.
bool HasProcess(const std::string& word) {
  const std::vector<std::string> pids = ListDir("/proc").value();
  for (const std::string& pid : pids) {
    std::ifstream file(absl::StrCat("/proc/", pid, "/cmdline"));
    std::string command;
    while (std::getline(file, command, '\0')) {
      if (command == word) return true;
    }
  }
  return false;
}

TEST_P(LauncherTest, WhatAKilledProcessLeftIsEndedByTheNext) {
  const std::string marker = absl::StrCat("marker_", getpid());
  // It starts a program, which starts another, tells where its lock is, and is killed.
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const std::vector<std::string> of_parent = HeldLocks();
  const pid_t owner = fork();
  if (owner == 0) {
    (void)launcher_.release();  // Its threads are not in this process.
    auto launcher = MakeLauncher(GetParam());
    if (!launcher.ok()) _exit(1);
    const auto process = (*launcher)->Start(
        {.argv = {"/usr/bin/python3", "-c",
                  "import os, time\nos.fork() == 0 and os.setsid()\nos.write(1, b'x')\n"
                  "time.sleep(1000)",
                  marker}});
    if (!process.ok()) _exit(2);
    char two[2] = {};
    for (char& one : two) (void)!read((*process)->out(), &one, 1);
    for (const std::string& lock : HeldLocks()) {
      // Those of the parent were inherited.
      if (std::find(of_parent.begin(), of_parent.end(), lock) == of_parent.end())
        (void)!write(ends[1], lock.data(), lock.size());
    }
    pause();
  }
  char text[256];
  const ssize_t length = read(ends[0], text, sizeof text);
  ASSERT_GT(length, 0);
  const std::string lock(text, static_cast<size_t>(length));
  ASSERT_TRUE(PathExists(lock)) << lock;
  ASSERT_TRUE(HasProcess(marker));
  kill(owner, SIGKILL);
  ASSERT_EQ(waitpid(owner, nullptr, 0), owner);

  EndLeftovers();
  EXPECT_FALSE(PathExists(lock));
  EXPECT_FALSE(HasProcess(marker));
  close(ends[0]);
  close(ends[1]);
}

INSTANTIATE_TEST_SUITE_P(Tiers, LauncherTest, ::testing::ValuesIn(kTiers), TierName);

}  // namespace
}  // namespace sluice::sandbox
