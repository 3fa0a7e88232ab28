#include "tools/sluice/run_dir.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/child.h"
#include "common/base/file.h"
#include "tools/sluice/fleet.h"

namespace sluice::cli {
namespace {

// The temporary directories of these tests are in a folder of their own.
class RunDirTest : public ::testing::Test {
 protected:
  RunDirTest() : tmp_(::testing::TempDir() + "/run-dir-" + std::to_string(getpid())) {
    EXPECT_TRUE(MakeDirs(tmp_).ok());
    setenv("TMPDIR", tmp_.c_str(), 1);
  }

  ~RunDirTest() override {
    unsetenv("TMPDIR");
    (void)RemoveTree(tmp_);
  }

  static void Fill(const std::string& dir) {
    ASSERT_TRUE(MakeDirs(dir + "/logs").ok());
    ASSERT_TRUE(MakeDirs(dir + "/queue-0").ok());
    ASSERT_TRUE(WriteFileAtomic(dir + "/logs/queue-0.log", "a line").ok());
    ASSERT_TRUE(WriteFileAtomic(dir + "/queue-0/segment", "data").ok());
  }

  // What a killed run leaves: its directory, which nobody holds any more.
  std::string LeftBehind() {
    std::string path;
    {
      absl::StatusOr<RunDir> dir = RunDir::Make("");
      EXPECT_TRUE(dir.ok()) << dir.status();
      path = dir->path();
      Fill(path);
    }
    return path;
  }

  const std::string tmp_;
};

TEST_F(RunDirTest, NothingStaysOfATemporaryOneThatIsRemoved) {
  absl::StatusOr<RunDir> dir = RunDir::Make("");
  ASSERT_TRUE(dir.ok()) << dir.status();
  Fill(dir->path());
  dir->Remove();
  EXPECT_FALSE(PathExists(dir->path()));
}

TEST_F(RunDirTest, AFailedRunKeepsItsLogsAlone) {
  absl::StatusOr<RunDir> dir = RunDir::Make("");
  ASSERT_TRUE(dir.ok()) << dir.status();
  Fill(dir->path());
  dir->KeepLogs();
  EXPECT_TRUE(PathExists(dir->logs() + "/queue-0.log"));
  EXPECT_FALSE(PathExists(dir->path() + "/queue-0"));
}

TEST_F(RunDirTest, ADirectoryThatTheCallerNamedStaysWhole) {
  absl::StatusOr<RunDir> dir = RunDir::Make(tmp_ + "/mine");
  ASSERT_TRUE(dir.ok()) << dir.status();
  Fill(dir->path());
  dir->KeepLogs();
  dir->Remove();

  EXPECT_TRUE(PathExists(tmp_ + "/mine/queue-0/segment"));
  EXPECT_EQ(RunDir::Make(tmp_ + "/mine").status().code(), absl::StatusCode::kFailedPrecondition)
      << "it is in use";
}

TEST_F(RunDirTest, TheNextRunClearsUpAfterAKilledOneAndKeepsItsLogsForADay) {
  const std::string left = LeftBehind();
  const absl::StatusOr<RunDir> next = RunDir::Make("");
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_TRUE(PathExists(left + "/logs/queue-0.log"));
  EXPECT_FALSE(PathExists(left + "/queue-0"));

  SweepRunDirs(tmp_, absl::Now() + kLogsKeptFor + absl::Minutes(1));
  EXPECT_FALSE(PathExists(left));
  EXPECT_TRUE(PathExists(next->path())) << "that one is in use";
}

TEST_F(RunDirTest, TheLogsOfALongRunAreKeptForADayAfterTheirLastLine) {
  const std::string left = LeftBehind();
  // The run began two days ago, when it created its log file, and wrote to it until now.
  const timespec begin = absl::ToTimespec(absl::Now() - 2 * kLogsKeptFor);
  const timespec times[] = {begin, begin};
  ASSERT_EQ(utimensat(AT_FDCWD, (left + "/logs").c_str(), times, 0), 0);

  SweepRunDirs(tmp_, absl::Now());
  EXPECT_TRUE(PathExists(left + "/logs/queue-0.log"));
}

TEST_F(RunDirTest, OnlyRunDirectoriesThatNobodyUsesAreSwept) {
  const absl::StatusOr<RunDir> used = RunDir::Make("");
  ASSERT_TRUE(used.ok());
  Fill(used->path());
  const std::string other = tmp_ + "/other-dir", linked = tmp_ + "/sluice-run-linked",
                    alive = tmp_ + "/sluice-run-alive0";
  Fill(other);
  ASSERT_EQ(symlink(other.c_str(), linked.c_str()), 0);
  Fill(alive);
  ASSERT_TRUE(WriteFleetState(alive, {getpid(), ProcessStart(getpid()), "", {}}).ok());

  SweepRunDirs(tmp_, absl::Now() + absl::Hours(48));
  for (const std::string& dir : {used->path(), other, alive})
    EXPECT_TRUE(PathExists(dir + "/queue-0/segment")) << dir;
}

}  // namespace
}  // namespace sluice::cli
