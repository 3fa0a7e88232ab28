#include "tools/sluice/supervisor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "common/base/child.h"
#include "common/base/file.h"
#include "common/base/mutex.h"

namespace sluice::cli {
namespace {

using ::testing::HasSubstr;

class SupervisorTest : public ::testing::Test {
 protected:
  SupervisorTest() : dir_(::testing::TempDir() + "/supervisor-" + std::to_string(getpid())) {
    EXPECT_TRUE(MakeDirs(dir_).ok());
  }

  ~SupervisorTest() override { (void)RemoveTree(dir_); }

  Supervisor::Options Options() {
    return {.log_dir = dir_,
            .first_backoff = absl::Milliseconds(1),
            .changed = [this](const DaemonState& state) {
              MutexLock lock(&mu_);
              seen_.push_back(state);
              changed_.NotifyAll();
            }};
  }

  static DaemonSpec Spec(const std::string& name, std::vector<std::string> args = {}) {
    return {.name = name,
            .role = "test",
            .program = std::string(SLUICE_BIN_DIR) + "/test_daemon",
            .args = std::move(args)};
  }

  // Waits for the first report of which `holds` is true.
  template <typename Holds>
  DaemonState Await(Holds holds) {
    MutexLock lock(&mu_);
    for (size_t i = 0;; ++i) {
      while (i >= seen_.size()) changed_.Wait(&mu_);
      if (holds(seen_[i])) return seen_[i];
    }
  }

  const std::string dir_;
  Mutex mu_;
  CondVar changed_;
  std::vector<DaemonState> seen_ ABSL_GUARDED_BY(mu_);
};

TEST_F(SupervisorTest, StartWaitsUntilEachDaemonHasToldItsAddress) {
  Supervisor supervisor(Options());
  ASSERT_TRUE(supervisor.Start({Spec("a"), Spec("b")}).ok());
  for (const DaemonState& state : supervisor.states()) {
    EXPECT_TRUE(state.ready);
    EXPECT_EQ(state.listening, "127.0.0.1:4321");
    EXPECT_GT(state.pid, 0);
  }
}

TEST_F(SupervisorTest, AKilledDaemonComesBackAtItsAddress) {
  Supervisor supervisor(Options());
  ASSERT_TRUE(supervisor.Start({Spec("a")}).ok());
  const pid_t first = supervisor.states()[0].pid;
  ASSERT_TRUE(supervisor.Signal("a", SIGKILL).ok());

  const DaemonState back =
      Await([](const DaemonState& state) { return state.ready && state.restarts == 1; });
  EXPECT_NE(back.pid, first);
  EXPECT_EQ(back.listening, "127.0.0.1:4321");
  EXPECT_THAT(back.last_end, HasSubstr("signal 9"));
}

TEST_F(SupervisorTest, ADaemonThatCannotStartIsToldWithTheEndOfItsLog) {
  Supervisor supervisor(Options());
  const absl::Status status = supervisor.Start({Spec("a", {"fail"})});
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("a did not start: exit code 3"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("port 1 is taken"));
}

TEST_F(SupervisorTest, AProgramThatIsMissingIsTold) {
  DaemonSpec spec = Spec("a");
  spec.program = dir_ + "/none";
  Supervisor supervisor(Options());
  EXPECT_THAT(std::string(supervisor.Start({spec}).message()), HasSubstr("no program"));
}

TEST_F(SupervisorTest, StopEndsAllAndStartsNoneAgain) {
  Supervisor supervisor(Options());
  ASSERT_TRUE(supervisor.Start({Spec("a"), Spec("b", {"stubborn"})}).ok());
  const std::vector<DaemonState> before = supervisor.states();

  supervisor.Stop(absl::Milliseconds(200));
  EXPECT_THAT(supervisor.states()[0].last_end, HasSubstr("signal 15"));
  EXPECT_THAT(supervisor.states()[1].last_end, HasSubstr("signal 9"));  // It ignores SIGTERM.
  for (const DaemonState& state : before) EXPECT_NE(ProcessStart(state.pid), state.start);
  EXPECT_EQ(supervisor.Signal("a", SIGTERM).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(supervisor.Signal("c", SIGTERM).code(), absl::StatusCode::kNotFound);
}

TEST_F(SupervisorTest, DaemonsDieWithTheirSupervisor) {
  DaemonState state;
  {
    Supervisor supervisor(Options());
    ASSERT_TRUE(supervisor.Start({Spec("a", {"stubborn"})}).ok());
    state = supervisor.states()[0];
  }
  EXPECT_EQ(SignalProcess(state.pid, state.start, SIGKILL).code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace sluice::cli
