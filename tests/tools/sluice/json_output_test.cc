#include "tools/sluice/json_output.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "sluice/job/v1/job.pb.h"
#include "tools/sluice/output.h"

namespace sluice::cli {
namespace {

TEST(JsonOutput, AnEmptyResultHasEveryField) {
  EXPECT_EQ(FormatData(ToJson(job::v1::JobResult()), "json"), R"({
  "job": "",
  "state": "",
  "steps": 0,
  "seconds": 0.0,
  "reward_first": 0.0,
  "reward_last": 0.0,
  "tokens_generated": 0,
  "tokens_trained": 0,
  "staleness_max": 0,
  "staleness_histogram": {},
  "ledger": null,
  "restarts": {},
  "checkpoint": "",
  "curve": [],
  "best": null,
  "worst": null,
  "warnings": [],
  "eval": null
}
)");
}

TEST(JsonOutput, NumbersOf64BitsAreNumbersAndBytesAreHex) {
  job::v1::JobResult result;
  result.set_tokens_generated(std::numeric_limits<int64_t>::max());
  result.set_reward_first(std::numeric_limits<double>::quiet_NaN());
  (*result.mutable_staleness_histogram())["1"] = 5;
  (*result.mutable_staleness_histogram())["0"] = 7;
  result.mutable_ledger()->set_hash(std::string("\x01\xff", 2));
  (*result.mutable_ledger()->mutable_dropped())["stale"] = 2;

  const nlohmann::ordered_json json = ToJson(result);
  EXPECT_EQ(json["tokens_generated"].dump(), "9223372036854775807");
  EXPECT_TRUE(json["reward_first"].is_null());
  EXPECT_EQ(json["staleness_histogram"].dump(), R"({"0":7,"1":5})");
  EXPECT_EQ(json["ledger"]["hash"], "01ff");
  EXPECT_EQ(json["ledger"]["live"], 0);
  EXPECT_EQ(json["ledger"]["dropped"].dump(), R"({"stale":2})");
}

TEST(JsonOutput, EnumsAreShortNamesTimesCanonicalAndUnsetOptionalsNull) {
  job::v1::JobStatus status;
  status.set_state(job::v1::JOB_STATE_RUNNING);
  status.mutable_created()->set_seconds(1);
  status.mutable_spec()->mutable_rollout()->mutable_timeout()->set_seconds(600);
  (*status.mutable_spec()->mutable_reward()->add_rewards()->mutable_args()->mutable_fields())["n"]
      .set_number_value(2);

  const nlohmann::ordered_json json = ToJson(status);
  EXPECT_EQ(json["state"], "RUNNING") << "as JobResult has it";
  EXPECT_EQ(json["created"], "1970-01-01T00:00:01Z");
  EXPECT_EQ(json["conditions"].dump(), "[]");
  EXPECT_TRUE(json["result"].is_null());
  EXPECT_EQ(json["spec"]["rollout"]["timeout"], "600s");
  EXPECT_EQ(json["spec"]["reward"]["rewards"][0]["args"]["n"].get<double>(), 2);
  EXPECT_TRUE(json["spec"]["profile"].is_null());

  common::v1::WaitEdge edge;
  edge.mutable_on()->set_kind(common::v1::NODE_KIND_GROUP);
  EXPECT_EQ(ToJson(edge)["on"]["kind"], "GROUP");
}

}  // namespace
}  // namespace sluice::cli
