#include "tools/sluice/queue_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/base/id.h"
#include "common/rpc/convert.h"
#include "sluice/queue/v1/queue.pb.h"

namespace sluice::cli {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr char kGroup[] = "0000000100000000000000000000002f";

queue::v1::PeekRow Row(common::v1::NodeKind kind, const std::string& id, const std::string& state,
                       const std::string& json, const std::string& worker = "") {
  queue::v1::PeekRow row;
  row.mutable_node()->set_kind(kind);
  row.mutable_node()->set_id(id);
  row.set_state(state);
  row.set_worker(worker);
  *row.mutable_age() = rpc::ToProto(absl::Seconds(12));
  row.set_json(json);
  return row;
}
queue::v1::PeekRow GroupRow() {
  return Row(
      common::v1::NODE_KIND_GROUP, kGroup, "open",
      R"({"row": {"source": "gsm8k", "epoch": 1, "index": 17, "occurrence": 2}, "slot": 75, )"
      R"("batch": -1, "prompt_ids": [1, 2], "members": [
                 {"state": "sealed", "attempt": 1, "tokens": 40, "worker": "rollout-0", )"
      R"("age": 3.2, "task_reward": 0.5, "versions": [73, 74], "finish": "stop", )"
      R"("ids": [3]},
                 {"state": "running", "attempt": 2, "tokens": 9, "worker": "rollout-1", )"
      R"("age": 70, "ids": []}]})");
}

TEST(QueueTextTest, StatsSayWhatAPersonNeedsFirstInAlignedLines) {
  queue::v1::StatsResponse stats;
  common::v1::Ledger& ledger = *stats.mutable_ledger();
  ledger.set_accepted(100);
  ledger.set_durable(60);
  ledger.set_applied(20);
  ledger.set_live(15);
  (*ledger.mutable_dropped())["stale"] = 4;
  (*ledger.mutable_dropped())["lost"] = 1;
  (*ledger.mutable_dropped())["closed"] = 0;
  ledger.set_tokens_generated(12345);
  ledger.set_tokens_trained(9000);
  ledger.set_durable_version(60);

  stats.set_version(75);
  stats.set_lowest(74);
  stats.set_admission_staleness(2);
  (*stats.mutable_slots())["used"] = 11;
  (*stats.mutable_slots())["limit_per_step"] = 4;
  (*stats.mutable_slots())["window_steps"] = 3;
  (*stats.mutable_groups())["open"] = 8;
  (*stats.mutable_groups())["applied"] = 12;
  (*stats.mutable_bytes())["stored"] = 3 << 20;
  (*stats.mutable_bytes())["quota"] = uint64_t{8} << 30;
  (*stats.mutable_staleness())["0"] = 600;
  (*stats.mutable_staleness())["1"] = 300;
  (*stats.mutable_staleness())["10"] = 100;
  (*stats.mutable_length_ratio())["gsm8k"] = 0.981;
  (*stats.mutable_waiting())["AcquireBatch"] = 1;
  (*stats.mutable_waiting())["Admit"] = 0;
  stats.set_advice("over the last 20 steps the trainer waited 3 % of the time");

  EXPECT_EQ(StatsText(stats),
            "ledger     accepted 100 = durable 60 + applied 20 + live 15 + dropped 5   "
            "trajectories, balanced\n"
            "dropped    stale 4  lost 1\n"
            "tokens     generated 12.3k  trained 9.0k  masked 0\n"
            "versions   K 75 (steps trained)  L 74 (lowest an engine holds)  durable 60\n"
            "admission  up to 2 versions ahead of L: 3 steps open\n"
            "advice     over the last 20 steps the trainer waited 3 % of the time\n"
            "slots      used 11 of 12 (3 steps x 4)\n"
            "groups     applied 12  open 8\n"
            "bytes      stored 3.0 MiB  reserved 0 B  quota 8.0 GiB\n"
            "staleness  0: 60.0 %  1: 30.0 %  10: 10.0 %   of trained tokens, by versions\n"
            "length     gsm8k 0.98   mean length trained / generated\n"
            "waiting    AcquireBatch 1\n");

  ledger.set_live(14);
  EXPECT_THAT(StatsText(stats), HasSubstr("dropped 5   OFF BY 1\n"));
}

TEST(QueueTextTest, WhatWavesHaveSavedIsSaidWhereAJobHasThem) {
  queue::v1::StatsResponse stats;
  EXPECT_THAT(StatsText(stats), Not(HasSubstr("waves")));
  (*stats.mutable_groups())["first_wave_only"] = 120;
  (*stats.mutable_groups())["second_wave"] = 40;
  stats.set_answers_saved(1440);
  EXPECT_THAT(StatsText(stats), HasSubstr("waves      groups that ended with their first wave 120  "
                                          "that got the second 40  answers saved 1440\n"));
}

TEST(QueueTextTest, AnIdleQueueSaysNone) {
  queue::v1::StatsResponse stats;
  stats.set_lowest(-1);
  const std::string text = StatsText(stats);
  EXPECT_THAT(text, HasSubstr("L none: no live engine"));
  EXPECT_THAT(text, HasSubstr("staleness  nothing is trained yet\n"));
  EXPECT_THAT(text, HasSubstr("waiting    none\n"));
}

TEST(QueueTextTest, PeekListsGroupsBatchesPromptsAndTheTasksThatFailed) {
  PeekAnswers answers;
  answers.groups = {GroupRow()};
  answers.tasks = {Row(common::v1::NODE_KIND_TASK, absl::StrCat(kGroup, "/0/1/math"), "done", "{}"),
                   Row(common::v1::NODE_KIND_TASK, absl::StrCat(kGroup, "/1/2/math"), "dead_letter",
                       R"({"cause": "timed out"})", "reward-0")};
  answers.batches = {
      Row(common::v1::NODE_KIND_BATCH, "74", "leased", R"({"groups": 64})", "trainer-0")};
  answers.prompts = {Row(common::v1::NODE_KIND_GROUP, "", "quarantined",
                         R"({"source": "gsm8k", "epoch": 0, "index": 3, "occurrence": 3})")};

  EXPECT_EQ(
      PeekText(answers, "table"),
      "GROUP  STATE  STEP  AGE  MEMBERS              WORKERS      PROMPT\n"
      "1:2f   open   75    12s  1 running, 1 scored  rollout-1 1  gsm8k row 17 epoch 1 again 2\n"
      "\n"
      "tasks: dead_letter 1  done 1\n"
      "\n"
      "TASK           STATE        WORKER    AGE  CAUSE\n"
      "1:2f/1/2/math  dead_letter  reward-0  12s  timed out\n"
      "\n"
      "BATCH  STATE   GROUPS  WORKER     AGE\n"
      "74     leased  64      trainer-0  12s\n"
      "\n"
      "PROMPT                       STATE\n"
      "gsm8k row 3 epoch 0 again 3  quarantined\n");
  EXPECT_EQ(PeekText({}, "table"), "no groups\n");

  const std::string wide = PeekText(answers, "wide");
  EXPECT_THAT(wide, HasSubstr(absl::StrCat("again 2  ", kGroup, "\n")));
  EXPECT_THAT(wide, HasSubstr("1:2f/0/1/math  done         -         12s  -\n"));
  EXPECT_EQ(PeekText(answers, "name"), "1:2f\n");
}

TEST(QueueTextTest, AGroupShowsItsMembersAndTheirTextsOnlyWithADecoder) {
  const std::vector<queue::v1::PeekRow> tasks = {Row(common::v1::NODE_KIND_TASK,
                                                     absl::StrCat(kGroup, "/0/1/math"), "leased",
                                                     R"({"cause": ""})", "reward-0")};

  const std::string without = GroupText(GroupRow(), tasks, nullptr);
  EXPECT_EQ(without,
            "group 1:2f  open for 12s  step 75  gsm8k row 17 epoch 1 again 2  id "
            "0000000100000000000000000000002f\n"
            "\n"
            "MEMBER  ATTEMPT  STATE    WORKER     AGE    TOKENS  VERSIONS  END   REWARD\n"
            "0       1        sealed   rollout-0  3s     40      73..74    stop  0.5\n"
            "1       2        running  rollout-1  1m10s  9       -         -     -\n"
            "\n"
            "TASK           STATE   WORKER    AGE  CAUSE\n"
            "1:2f/0/1/math  leased  reward-0  12s  -\n");

  const std::string with = GroupText(GroupRow(), tasks, [](const std::vector<int32_t>& ids) {
    return absl::StrCat("<", ids.size(), ">\nnext");
  });
  EXPECT_EQ(with, without +
                      "\nprompt:\n    <2>\n    next\nmember 0:\n    <1>\n    next\nmember 1:\n    "
                      "<0>\n    next\n");
}

TEST(QueueTextTest, GroupsAreNamedShortOrInFull) {
  EXPECT_EQ(BriefGroup(kGroup), "1:2f");
  EXPECT_EQ(ToHex(GroupIdOf("1:2f")), kGroup);
  EXPECT_EQ(ToHex(GroupIdOf(kGroup)), kGroup);
  for (const char* none : {"", "2f", "1:", "x:y", "1:2:3"}) EXPECT_EQ(GroupIdOf(none), "") << none;
}

}  // namespace
}  // namespace sluice::cli
