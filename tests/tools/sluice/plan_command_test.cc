#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "tests/tools/sluice/run_command.h"
#include "tools/sluice/commands.h"

namespace sluice::cli {
namespace {

nlohmann::json PlanOfDigits(const std::vector<std::string>& sets) {
  std::vector<std::string> args = {SLUICE_SOURCE_DIR "/configs/examples/digits.yaml", "-o", "json"};
  for (const std::string& set : sets) args.insert(args.end(), {"--set", set});
  const CommandRun ran = RunCommand(PlanCommands().front(), std::move(args));
  EXPECT_EQ(ran.code, kDone) << ran.err;
  return nlohmann::json::parse(ran.out);
}

// Bytes of each part of a rollout.
std::map<std::string, int64_t> RolloutRows(const nlohmann::json& plan) {
  std::map<std::string, int64_t> rows;
  int64_t total = 0;
  for (const nlohmann::json& row : plan.at("rollout").at("rows")) {
    rows[row.at("name")] = row.at("bytes");
    total += rows[row.at("name")];
  }
  EXPECT_EQ(plan.at("rollout").at("total_bytes"), total);
  return rows;
}

TEST(PlanCommandTest, ARolloutHoldsOneVersionAndTheNextOrAsManyAsAnswersMayEndWith) {
  const auto switches = RolloutRows(PlanOfDigits({}));
  const int64_t version = switches.at("weights");
  EXPECT_GT(version, 4 * 80'000) << "some 100 k parameters in fp32";
  EXPECT_LT(version, 4 * 200'000);
  EXPECT_EQ(switches.at("next weights"), version);

  const auto finish = RolloutRows(PlanOfDigits({"weights.inflight=finish"}));
  EXPECT_EQ(finish.at("weights"), 2 * version);
  EXPECT_FALSE(finish.contains("next weights"));
  EXPECT_EQ(finish.at("keys and values"), switches.at("keys and values"));

  const auto three =
      RolloutRows(PlanOfDigits({"weights.inflight=finish", "weights.resident_versions=3"}));
  EXPECT_EQ(three.at("weights"), 3 * version);
}

TEST(PlanCommandTest, TheKeysAndValuesOfFewAnswersAreThoseOfTheirTokens) {
  const auto few = RolloutRows(PlanOfDigits({"rollout.engine.max_running=8"}));
  const auto more = RolloutRows(PlanOfDigits({"rollout.engine.max_running=16"}));
  EXPECT_EQ(more.at("keys and values"), 2 * few.at("keys and values"));
}

}  // namespace
}  // namespace sluice::cli
