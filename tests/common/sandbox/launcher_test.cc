#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
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
                                               .binds = {{folder, folder}}});
  EXPECT_EQ(ran.out, "text\nrefused\n") << ran.err;
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

INSTANTIATE_TEST_SUITE_P(Tiers, LauncherTest, ::testing::Values(Tier::kNamespaces, Tier::kLandlock),
                         TierName);

}  // namespace
}  // namespace sluice::sandbox
