#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdio>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "nlohmann/json.hpp"
#include "tests/integration/harness/cluster.h"

// A fleet that the supervisor of `sluice run` keeps running.
namespace sluice::integration {
namespace {

constexpr int kStepsAfterKill = 5;

// Kills the daemon `name` of the fleet in `data_dir`. Its process id is in the fleet's state.json.
void Kill(const std::string& data_dir, const std::string& name) {
  const auto text = ReadFile(data_dir + "/state.json");
  ASSERT_EQ(text.status(), absl::OkStatus());
  const nlohmann::json state = nlohmann::json::parse(*text);
  for (const nlohmann::json& daemon : state.at("daemons")) {
    if (daemon.at("name").get<std::string>() != name) continue;
    ASSERT_GT(daemon.at("pid").get<pid_t>(), 0);
    ASSERT_EQ(kill(daemon.at("pid").get<pid_t>(), SIGKILL), 0);
    return;
  }
  FAIL() << "no " << name << " in " << *text;
}

TEST(SupervisedTest, AQueueThatIsKilledUnderRunIsStartedAgainAndTheJobGoesOn) {
  Cluster cluster;  // Not started: `run` has daemons of its own, in this folder.
  const std::string data = cluster.dir() + "/run";
  const auto run = Process::Start(
      {.binary = "sluice",
       .args = {"run", SLUICE_SOURCE_DIR "/configs/examples/digits.yaml", "--data-dir", data, "-o",
                "json", "--set", "limits.max_steps=1000000", "--set", "limits.wall=10m", "--set",
                "queue.groups_per_step=4", "--set", "queue.keep.durability=full", "--set",
                absl::StrCat("checkpoint.dir=", cluster.dir(), "/checkpoints")}});
  ASSERT_EQ(run.status(), absl::OkStatus());

  // `step` is the newest step that was printed; a line with a step comes about once a second. The
  // job does not end by itself, so that it cannot be over before the kill.
  int step = 0, killed_at = 0, back_at = 0;
  bool ended = false;
  std::string result;
  for (auto line = (*run)->ReadLine(kLong); line.ok(); line = (*run)->ReadLine(kLong)) {
    (void)std::sscanf(line->c_str(), "step %d/", &step);
    if (absl::StrContains(*line, "queue-0 is back")) back_at = step;
    if (absl::StartsWith(*line, "{") || !result.empty()) result += *line;
    if (killed_at == 0 && step >= kStepsAfterKill) {
      ASSERT_NO_FATAL_FAILURE(Kill(data, "queue-0"));
      killed_at = step;
    } else if (!ended && back_at > 0 && step >= back_at + kStepsAfterKill) {
      (*run)->Signal(SIGINT);
      ended = true;
    }
  }

  EXPECT_GT(killed_at, 0);
  EXPECT_GE(back_at, killed_at) << "it was not started again";
  EXPECT_TRUE(ended) << "the job did not go on";
  EXPECT_EQ((*run)->Await(kLong).value_or(-1), 130) << result;

  const nlohmann::json json = nlohmann::json::parse(result, nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(json.is_object()) << result;
  EXPECT_EQ(json.at("state"), "CANCELLED");
  EXPECT_EQ(json.at("restarts").at("queue"), 1);
}

}  // namespace
}  // namespace sluice::integration
