#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "tests/integration/harness/process.h"

// A fleet that `sluice dev up` starts, and runs of `sluice run` that cannot start.
namespace sluice::integration {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Runs commands as a user whose state and temporary files are in a folder of the test.
class DevFleetTest : public ::testing::Test {
 protected:
  DevFleetTest() : dir_(::testing::TempDir() + "/dev-fleet-" + std::to_string(getpid())) {
    EXPECT_EQ(MakeDirs(dir_ + "/tmp"), absl::OkStatus());
  }

  ~DevFleetTest() override {
    (void)Sluice({"dev", "down"});
    if (!HasFailure()) (void)RemoveTree(dir_);
  }

  Finished Sluice(std::vector<std::string> args) {
    const absl::StatusOr<Finished> done =
        RunToEnd({.binary = "sluice",
                  .args = std::move(args),
                  .env = {{"XDG_STATE_HOME", dir_ + "/state"},
                          {"SLUICE_DATA_DIR", ""},
                          {"SLUICE_SERVER", ""},
                          {"TMPDIR", dir_ + "/tmp"}},
                  .log = absl::StrCat(dir_, "/sluice-", commands_++, ".log")},
                 kLong);
    EXPECT_EQ(done.status(), absl::OkStatus());
    return done.value_or(Finished{.exit = -1});
  }

  Finished Submit(const std::string& name) {
    return Sluice({"job", "submit", SLUICE_SOURCE_DIR "/configs/examples/digits.yaml", "--set",
                   "name=" + name, "--set", "limits.max_steps=1000000", "--set", "limits.wall=none",
                   "--set", absl::StrCat("checkpoint.dir=", dir_, "/checkpoints")});
  }

  const std::string dir_;
  int commands_ = 0;
};

TEST_F(DevFleetTest, TwoJobsRunAtOnceOnTwoTrainersAndEachCommandFindsTheFleet) {
  const Finished up =
      Sluice({"dev", "up", "--data-dir", dir_ + "/elsewhere", "--trainers", "2", "--free-ports"});
  ASSERT_EQ(up.exit, 0) << up.err;
  EXPECT_THAT(up.out, HasSubstr("trainer-1"));
  EXPECT_THAT(up.err,
              AllOf(HasSubstr("threads: 2 rollouts x"),
                    HasSubstr("watch it in a browser: http://127.0.0.1:"), HasSubstr("/ui\n")));
  EXPECT_THAT(Sluice({"dev", "status"}).out, HasSubstr("trainer-1"));

  for (const char* name : {"one", "two"}) {
    const Finished submitted = Submit(name);
    ASSERT_EQ(submitted.exit, 0) << submitted.err;
  }
  for (const char* name : {"one", "two"}) {  // Neither ends by itself.
    const Finished runs = Sluice({"job", "wait", name, "--for", "RUNNING", "--timeout", "2m"});
    EXPECT_EQ(runs.exit, 0) << runs.out << runs.err;
  }

  const Finished newest = Sluice({"job", "list", "--limit", "1"});
  EXPECT_THAT(newest.out, AllOf(HasSubstr("two"), ::testing::Not(HasSubstr("one"))));
  EXPECT_THAT(newest.err, HasSubstr("the newest 1 of 2 jobs; --limit 0 lists all"));
  EXPECT_THAT(Sluice({"job", "list", "--state", "running", "--limit", "0"}).out,
              AllOf(HasSubstr("one"), HasSubstr("two")));
  EXPECT_THAT(Sluice({"job", "list", "--state", "failed"}).out, ::testing::Not(HasSubstr("two")));
  EXPECT_EQ(Sluice({"job", "list", "--state", "flying"}).exit, 2);

  EXPECT_EQ(Sluice({"dev", "down"}).exit, 0);
  EXPECT_EQ(Sluice({"dev", "status"}).exit, 5);
  EXPECT_FALSE(PathExists(dir_ + "/state/sluice/fleet"));
  EXPECT_THAT(*ListDir(dir_ + "/tmp"), ::testing::IsEmpty());
}

TEST_F(DevFleetTest, RunRefusesAtOnceToStartFewerDaemonsThanTheJobNeeds) {
  const std::string job = SLUICE_SOURCE_DIR "/configs/examples/digits.yaml";
  const Finished refused =
      Sluice({"run", job, "--set", "resources.rollout={min: 3, max: 3}", "--rollouts", "2"});
  EXPECT_EQ(refused.exit, 2);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("the job starts with 3 rollout daemons "
                                           "(resources.rollout.min), and --rollouts starts 2"),
                                 HasSubstr("hint: give --rollouts 3")));
}

TEST_F(DevFleetTest, ARunThatFailsLeavesItsLogsAndNothingElse) {
  const Finished failed =
      Sluice({"run", SLUICE_SOURCE_DIR "/configs/examples/digits.yaml", "--set", "limits.start=1ms",
              "-q", "--set", absl::StrCat("checkpoint.dir=", dir_, "/checkpoints")});
  EXPECT_EQ(failed.exit, 3) << failed.err;

  const auto left = *ListDir(dir_ + "/tmp");
  ASSERT_EQ(left.size(), 1u);
  const std::string run = absl::StrCat(dir_, "/tmp/", left[0]);
  EXPECT_THAT(failed.err, HasSubstr("logs are in " + run + "/logs"));
  EXPECT_TRUE(PathExists(run + "/logs/queue-0.log"));
  EXPECT_FALSE(PathExists(run + "/queue-0"));
}

}  // namespace
}  // namespace sluice::integration
