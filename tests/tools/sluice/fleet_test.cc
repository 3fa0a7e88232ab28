#include "tools/sluice/fleet.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/child.h"
#include "common/base/file.h"
#include "common/base/status.h"

namespace sluice::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::vector<DaemonSpec> Specs(const FleetOptions& options) {
  return FleetSpecs(options, PlanCores(options));
}

// Returns the plan in the form "rollout-0 4, trainer-0 4". A ! follows a number that is fixed.
std::string Planned(const FleetOptions& options) {
  std::vector<std::string> members;
  for (const CorePlan::Member& member : PlanCores(options).members) {
    members.push_back(absl::StrCat(member.name, " ", member.threads, member.fixed ? "!" : ""));
  }
  return absl::StrJoin(members, ", ");
}

TEST(Fleet, RolloutsAndTrainersHaveHalfOfTheCoresEach) {
  EXPECT_EQ(Planned({.cores = 16}), "rollout-0 8, trainer-0 8");
  EXPECT_EQ(Planned({.rollouts = 2, .trainers = 2, .cores = 17}),
            "rollout-0 4, rollout-1 4, trainer-0 4, trainer-1 4");
  EXPECT_EQ(Planned({.rollouts = 3, .cores = 2}),
            "rollout-0 1, rollout-1 1, rollout-2 1, trainer-0 1");
  EXPECT_EQ(Planned({.cores = 1}), "rollout-0 1, trainer-0 1");
  EXPECT_EQ(Planned({.rollouts = 0, .rewards = 0, .cores = 6}), "trainer-0 6")
      << "supervised training";
}

TEST(Fleet, ThreadsThatWereChosenAreKeptAndTheOtherRoleHasTheRest) {
  EXPECT_EQ(Planned({.threads = {.rollout = 2, .trainer = 2}, .cores = 16}),
            "rollout-0 2!, trainer-0 2!");
  EXPECT_EQ(Planned({.threads = {.trainer = 12}, .cores = 16}), "rollout-0 4, trainer-0 12!");
  EXPECT_EQ(Planned({.rollouts = 2, .threads = {.rollout = 3}, .cores = 16}),
            "rollout-0 3!, rollout-1 3!, trainer-0 10");
  EXPECT_EQ(Planned({.threads = {.trainer = 20}, .cores = 16}), "rollout-0 1, trainer-0 20!");
}

TEST(Fleet, ThePlanIsToldInOneLine) {
  EXPECT_EQ(
      PlanText(PlanCores({.cores = 2})),
      "threads: rollout 1, trainer 1, on 2 cores; while one waits, others compute on its cores");
  EXPECT_EQ(
      PlanText(PlanCores({.rollouts = 2, .threads = {.rollout = 2, .trainer = 4}, .cores = 8})),
      "threads: 2 rollouts x 2, trainer 4, on 8 cores");
  EXPECT_EQ(PlanText(PlanCores({.cores = 1})), "threads: rollout 1, trainer 1, on 1 core");
}

TEST(Fleet, ThreadsAreOneNumberOrOneForEachRole) {
  const auto choice = [](const std::string& text) {
    const absl::StatusOr<ThreadChoice> parsed = ParseThreads(text);
    return parsed.ok() ? absl::StrCat(parsed->rollout, " ", parsed->trainer)
                       : std::string(parsed.status().message());
  };

  EXPECT_EQ(choice("2"), "2 2");
  EXPECT_EQ(choice("trainer=4"), "0 4");
  EXPECT_EQ(choice("rollout=2,trainer=4"), "2 4");
  for (const char* wrong : {"", "0", "-1", "2000", "two", "2,3", "2,trainer=3", "reward=2",
                            "trainer=", "trainer=1=2", "rollout=1,"}) {
    EXPECT_THAT(choice(wrong), HasSubstr("is no choice of threads")) << wrong;
  }
}

TEST(Fleet, ThoseThatComputeAreToldTheirThreadsAndThePlan) {
  const FleetOptions options{.data_dir = "/d", .threads = {.trainer = 3}, .cores = 4};
  for (const DaemonSpec& spec : FleetSpecs(options, PlanCores(options))) {
    const std::string args = absl::StrJoin(spec.args, " ");
    if (spec.role == "trainer") EXPECT_THAT(args, HasSubstr("--threads 3 --cores /d/cores"));
    else if (spec.role == "rollout") EXPECT_THAT(args, HasSubstr("--threads 1 --cores /d/cores"));
    else EXPECT_THAT(args, Not(HasSubstr("--threads")));
  }
}

TEST(Fleet, TheControllerComesFirstAndPortsAreKnownInAdvance) {
  std::vector<std::string> listen;
  for (const DaemonSpec& spec : Specs({.data_dir = "/d",
                                       .rollouts = 2,
                                       .rewards = 1,
                                       .trainers = 2,
                                       .fixed_ports = true,
                                       .cores = 2})) {
    listen.push_back(spec.name + " " + spec.listen + " " + spec.ops);
  }

  EXPECT_THAT(listen, ElementsAre("controller-0 127.0.0.1:7400 127.0.0.1:7401",
                                  "queue-0 127.0.0.1:7410 127.0.0.1:7411",
                                  "rollout-0 127.0.0.1:7420 127.0.0.1:7421",
                                  "rollout-1 127.0.0.1:7423 127.0.0.1:7424",
                                  "reward-0 127.0.0.1:7430 127.0.0.1:7431",
                                  "trainer-0 127.0.0.1:7440 127.0.0.1:7441",
                                  "trainer-1 127.0.0.1:7443 127.0.0.1:7444"));
}

TEST(Fleet, NoTwoDaemonsOfALargeFleetShareAPort) {
  std::set<std::string> addresses;
  const std::vector<DaemonSpec> specs = Specs({.data_dir = "/d",
                                               .rollouts = 11,
                                               .rewards = 5,
                                               .trainers = 4,
                                               .http = true,
                                               .fixed_ports = true,
                                               .cores = 2});
  for (const DaemonSpec& spec : specs) {
    addresses.insert(spec.listen);
    addresses.insert(spec.ops);
    if (spec.role == "rollout") addresses.insert(spec.args.back());
  }

  EXPECT_EQ(addresses.size(), 2 * specs.size() + 11);
}

TEST(Fleet, RewardDaemonsAloneAreToldTheJudgesAndThePluginServers) {
  for (const DaemonSpec& spec :
       Specs({.data_dir = "/d", .judges = "/j.yaml", .plugin_servers = "/p.yaml", .cores = 2})) {
    const std::string args = absl::StrJoin(spec.args, " ");
    const std::string files = "--judges /j.yaml --plugin-servers /p.yaml";
    if (spec.role == "reward") EXPECT_THAT(args, HasSubstr(files));
    else EXPECT_THAT(args, Not(HasSubstr(".yaml")));
  }
}

TEST(Fleet, ItsStateReadsBackAsWritten) {
  const std::string dir = ::testing::TempDir() + "/fleet-" + std::to_string(getpid());
  ASSERT_TRUE(MakeDirs(dir).ok());
  EXPECT_EQ(ReadFleetState(dir).status().code(), absl::StatusCode::kNotFound);

  FleetState state{7, 8, "127.0.0.1:9", {}};
  state.daemons.push_back({.name = "queue-0",
                           .role = "queue",
                           .listening = "a",
                           .ops = "b",
                           .log = "c",
                           .pid = 3,
                           .start = 4,
                           .ready = true,
                           .restarts = 2,
                           .last_end = "exit code 1"});
  ASSERT_TRUE(WriteFleetState(dir, state).ok());

  const absl::StatusOr<FleetState> read = ReadFleetState(dir);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(FleetStateJson(*read), FleetStateJson(state));
  RemoveFleetState(dir);
  EXPECT_FALSE(ReadFleetState(dir).ok());
  (void)RemoveTree(dir);
}

// The state of this test's user is in a folder of its own.
class FindFleetTest : public ::testing::Test {
 protected:
  FindFleetTest() : dir_(::testing::TempDir() + "find-fleet-" + std::to_string(getpid())) {
    setenv("XDG_STATE_HOME", dir_.c_str(), 1);
    unsetenv("SLUICE_DATA_DIR");
  }

  ~FindFleetTest() override {
    unsetenv("XDG_STATE_HOME");
    unsetenv("SLUICE_DATA_DIR");
    (void)RemoveTree(dir_);
  }

  // Acts as if this process were the supervisor of a fleet on `data_dir`.
  void Run(const std::string& data_dir) {
    ASSERT_TRUE(MakeDirs(data_dir).ok());
    ASSERT_TRUE(
        WriteFleetState(data_dir, {getpid(), ProcessStart(getpid()), "127.0.0.1:9", {}}).ok());
    RememberFleet(data_dir);
  }

  const std::string dir_;
};

TEST_F(FindFleetTest, AFleetIsFoundWhereverItsDataLies) {
  EXPECT_EQ(FindFleetDir(""), dir_ + "/sluice");
  Run(dir_ + "/elsewhere");
  EXPECT_EQ(FindFleetDir(""), dir_ + "/elsewhere");
  EXPECT_TRUE(FindRunningFleet(FindFleetDir("")).ok());

  RemoveFleetState(dir_ + "/elsewhere");
  EXPECT_EQ(FindFleetDir(""), dir_ + "/sluice") << "it does not run any more";
}

TEST_F(FindFleetTest, WhatWasAskedForIsTakenAndTheOtherOneNamed) {
  Run(dir_ + "/elsewhere");
  EXPECT_EQ(FindFleetDir(dir_ + "/given"), dir_ + "/given");
  setenv("SLUICE_DATA_DIR", (dir_ + "/chosen").c_str(), 1);
  EXPECT_EQ(FindFleetDir(""), dir_ + "/chosen");

  const absl::Status none = FindRunningFleet(dir_ + "/chosen").status();
  EXPECT_EQ(none.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(DetailOf(none).hint,
              HasSubstr("one runs on " + dir_ + "/elsewhere: pass --data-dir"));
}

TEST_F(FindFleetTest, AnEndedFleetForgetsItselfAndNoOther) {
  Run(dir_ + "/one");
  Run(dir_ + "/two");
  ForgetFleet(dir_ + "/one");
  EXPECT_EQ(FindFleetDir(""), dir_ + "/two");
  ForgetFleet(dir_ + "/two");
  EXPECT_EQ(FindFleetDir(""), dir_ + "/sluice");
}

}  // namespace
}  // namespace sluice::cli
