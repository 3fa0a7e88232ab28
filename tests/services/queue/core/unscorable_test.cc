#include <nlohmann/json.hpp>

#include "tests/services/queue/core/harness.h"

// Answers that cannot be scored, and jobs in which none can be.
namespace sluice::queue {
namespace {
using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::SizeIs;
using testing::StartsWith;

constexpr char kBadRow[] = "bad_row";

// Draws a group, samples it, and reports that its first member cannot be scored. Returns false if
// there was no group.
bool PlayUnscorable(Harness& h, const std::string& status = kBadRow) {
  const auto admitted = h.Call<AdmitAnswer>(
      h.Rollout(), Admit{.request = h.Request(), .room = 2, .wait = absl::ZeroDuration()});
  if (!admitted.ok() || admitted->grants.empty()) return false;
  h.SampleAll(h.Rollout(), *admitted, {h.trainer_incarnation, h.loaded});

  const auto leased = h.Call<LeaseTasksAnswer>(
      h.Reward(), LeaseTasks{.request = h.Request(), .rooms = {{"cpu", 10}}});
  const TaskGrant& task = leased->tasks[0];
  Record record{.owner = task.owner, .task = task.id, .lease = task.lease.id, .last = true};
  record.fields = {TextField("reward_status", status),
                   TextField("reward_info", "the gold is null")};
  EXPECT_TRUE(h.PutOne(h.Reward(), record).ok());
  return true;
}

TEST(UnscorableTest, ARowAtFaultIsDrawnNoMoreAndReportedOnce) {
  Spec spec = SmallSpec();
  spec.epochs = 3;
  Harness h(spec, {2});
  h.Start();

  ASSERT_TRUE(PlayUnscorable(h));
  EXPECT_EQ(h.job().counters().reissued, 0) << "another try of the same row would not help";
  ASSERT_THAT(h.alarms, SizeIs(1));
  EXPECT_EQ(h.alarms[0].code, "quarantined");
  EXPECT_THAT(h.alarms[0].message, AllOf(HasSubstr("cannot be scored (bad_row: the gold is null)"),
                                         HasSubstr("it is drawn no more")));

  std::set<uint64_t> rows;
  while (true) {
    const auto admitted = h.Call<AdmitAnswer>(
        h.Rollout(), Admit{.request = h.Request(), .room = 2, .wait = absl::ZeroDuration()});
    if (admitted->grants.empty()) break;
    rows.insert(admitted->grants[0].row.ref.index);
  }

  EXPECT_THAT(rows, SizeIs(1)) << "the other row, in each epoch";
  EXPECT_THAT(h.alarms, SizeIs(1));
}

TEST(UnscorableTest, ASourceAllOfWhoseRowsAreAtFaultFailsTheJobByName) {
  Spec spec = SmallSpec();
  spec.sources.push_back({.name = "letters", .path = "letters.jsonl", .weight = 1, .fields = {}});
  Harness h(spec, {3, 1000});
  h.Start();
  const uint64_t batch = h.Send(h.Trainer(), AcquireBatch{.k = 0});

  for (int group = 0; group < 20 && !h.Answered(batch); ++group) {
    const auto admitted = h.Call<AdmitAnswer>(
        h.Rollout(), Admit{.request = h.Request(), .room = 2, .wait = absl::ZeroDuration()});
    ASSERT_TRUE(admitted.ok()) << admitted.status();
    ASSERT_FALSE(admitted->grants.empty());
    h.SampleAll(h.Rollout(), *admitted, {1, 0});
    const auto leased = h.Call<LeaseTasksAnswer>(
        h.Reward(), LeaseTasks{.request = h.Request(), .rooms = {{"cpu", 10}}});
    ASSERT_TRUE(
        h.PutReward(leased->tasks[0], 0,
                    admitted->grants[0].row.source == "digits" ? kBadRow : "a judge's fault")
            .ok());
  }

  const absl::Status failed = h.Result<AcquireBatchAnswer>(batch).status();
  EXPECT_EQ(ReasonOf(failed), "UNSCORABLE");
  EXPECT_THAT(std::string(failed.message()),
              AllOf(HasSubstr("data source digits"), HasSubstr("none of its last 3 groups")));
}

TEST(UnscorableTest, WhereNothingIsEverScoredTheJobFailsWithinALimitedNumberOfGroups) {
  Harness h;  // 1000 rows.
  h.Start();
  const uint64_t batch = h.Send(h.Trainer(), AcquireBatch{.k = 0, .wait = absl::Hours(1)});

  int groups = 0;
  while (!h.Answered(batch) && groups < 1000) {
    ASSERT_TRUE(PlayUnscorable(h, "bad_value"));
    ++groups;
  }

  EXPECT_EQ(groups, 64);
  EXPECT_EQ(ReasonOf(h.Result<AcquireBatchAnswer>(batch).status()), "UNSCORABLE");
  EXPECT_THAT(std::string(h.Result<AcquireBatchAnswer>(batch).status().message()),
              HasSubstr("bad_value: the gold is null"));
}

TEST(UnscorableTest, AGroupThatIsScoredBeginsTheCountAnew) {
  Harness h;
  h.Start();
  for (int group = 0; group < 60; ++group) ASSERT_TRUE(PlayUnscorable(h));
  h.RunStep();
  for (int group = 0; group < 60; ++group) ASSERT_TRUE(PlayUnscorable(h));
  EXPECT_TRUE(h.Admitted(2).ok());
}

TEST(UnscorableTest, WhyEndsAtWhatIsUnscorableAndNotAtAMemberThatIsLate) {
  Harness h;
  h.Start();
  for (int group = 0; group < 4; ++group) ASSERT_TRUE(PlayUnscorable(h));
  ASSERT_TRUE(h.Admitted(2).ok()) << "its members run";

  const std::vector<WaitEdge> edges = h.job().Explain(h.now);
  const auto fault = std::find_if(edges.begin(), edges.end(), [](const WaitEdge& edge) {
    return edge.waiter.kind == NodeKind::kBatch && edge.on.kind == NodeKind::kBatch &&
           edge.waiter.id == edge.on.id;
  });
  ASSERT_NE(fault, edges.end());
  EXPECT_THAT(fault->cause, AllOf(HasSubstr("every answer of data source digits is unscorable"),
                                  HasSubstr("bad_row: the gold is null")));
}

TEST(UnscorableTest, DataThatEndsWithoutABatchFailsTheJobWithWhatBecameOfIt) {
  Spec spec = SmallSpec();
  spec.epochs = 1;
  spec.reissues = 0;
  spec.sources.push_back({.name = "letters", .path = "letters.jsonl", .weight = 1, .fields = {}});
  Harness h(spec, {2, 2});
  h.Start();

  while (true) {
    const auto admitted = h.Call<AdmitAnswer>(
        h.Rollout(), Admit{.request = h.Request(), .room = 2, .wait = absl::ZeroDuration()});
    if (!admitted.ok() || admitted->grants.empty()) break;
    const queue::Grant& grant = admitted->grants[0];
    const char* const reason = grant.row.source == "digits" ? "env_lost" : "prompt_too_long";
    h.Call<ItemsAnswer>(h.Rollout(),
                        Drop{{{{.group = grant.group}, grant.members[0].lease.id, reason}}})
        .IgnoreError();
    // The other row of "letters" stays usable, so that the data as a whole is.
    if (grant.row.source == "letters") break;
  }

  // All later draws end in the same way.
  while (true) {
    const auto admitted = h.Call<AdmitAnswer>(
        h.Rollout(), Admit{.request = h.Request(), .room = 2, .wait = absl::ZeroDuration()});
    if (!admitted.ok() || admitted->grants.empty()) break;
    const queue::Grant& grant = admitted->grants[0];
    h.Call<ItemsAnswer>(h.Rollout(),
                        Drop{{{{.group = grant.group}, grant.members[0].lease.id, "client_gone"}}})
        .IgnoreError();
  }

  const absl::Status end = h.Acquired(0).status();
  EXPECT_EQ(ReasonOf(end), "NOTHING_TRAINED");
  EXPECT_THAT(std::string(end.message()),
              AllOf(HasSubstr("as client_gone"), HasSubstr("2 as prompt_too_long")));
}

TEST(AlarmTest, AFaultOfEveryRowIsToldTenTimesAndThenAtEachDoubling) {
  Spec spec = SmallSpec();
  spec.reissues = 0;
  Harness h(spec, {1000});
  h.check = false;  // Other tests check the invariants; here it would take most of the time.
  h.Start();
  for (int group = 0; group < 100; ++group) {
    const auto admitted = h.Admitted(2);
    const queue::Grant& grant = admitted->grants[0];
    h.Call<ItemsAnswer>(h.Rollout(),
                        Drop{{{{.group = grant.group}, grant.members[0].lease.id, "env_lost"}}})
        .IgnoreError();
  }

  EXPECT_EQ(h.job().counters().quarantined, 100);
  EXPECT_THAT(h.alarms, AllOf(SizeIs(10 + 3), Each(testing::Field(&Alarm::code, "quarantined"))))
      << "at 20, 40 and 80 too";
  EXPECT_THAT(h.alarms.back().message, HasSubstr("80 alarms of this kind so far"));
}

TEST(CheckTest, AChoiceThatIsUnsetIsRefusedByName) {
  const auto refused = [](auto change, const std::string& name) {
    Spec spec = SmallSpec();
    change(spec);
    const absl::Status status = Job::CheckSpec(spec);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << name;
    EXPECT_THAT(std::string(status.message()), StartsWith(name + " is unset"));
  };
  ASSERT_TRUE(Job::CheckSpec(SmallSpec()).ok());
  refused([](Spec& s) { s.sampler = static_cast<Sampler>(0); }, "data.order.sampler");
  refused([](Spec& s) { s.durability = static_cast<Durability>(0); }, "queue.keep.durability");
  refused([](Spec& s) { s.statistic = static_cast<Statistic>(0); }, "queue.admission.statistic");
  refused([](Spec& s) { s.filter = static_cast<Filter>(0); }, "algorithm.advantage.group_filter");

  Spec rows = SmallSpec();
  rows.rows_only = true;
  rows.statistic = static_cast<Statistic>(0);
  EXPECT_TRUE(Job::CheckSpec(rows).ok()) << "supervised rows have no use for it";
}

// Dead letters. -----------------------------------------------------------------------------------

class DeadLetterTest : public testing::Test {
 protected:
  // The dead letters as Peek shows them, oldest first.
  std::vector<nlohmann::json> Dead() {
    std::vector<nlohmann::json> dead;
    for (const PeekRow& row : h_.job().Peek(PeekWhat::kTasks, "dead_letter", h_.now)) {
      dead.push_back(nlohmann::json::parse(row.json));
      dead.back()["id"] = row.node.id;
      dead.back()["worker"] = row.worker;
    }
    return dead;
  }
  uint32_t Readmit(std::vector<GroupId> groups = {}) {
    return h_
        .Call<RetaskAnswer>({"controller", 0},
                            Retask{.mode = RetaskMode::kReadmit, .groups = std::move(groups)})
        ->count;
  }

  Harness h_;
};

TEST_F(DeadLetterTest, AnAnswerThatCannotBeScoredIsOneWithItsCauseAndGeneration) {
  h_.Start();
  ASSERT_TRUE(PlayUnscorable(h_, "plugin_error"));
  const auto dead = Dead();
  ASSERT_THAT(dead, SizeIs(1));
  EXPECT_THAT(dead[0]["id"].get<std::string>(), testing::EndsWith("/0/1/reward"));
  EXPECT_EQ(dead[0]["why"], "unscorable");
  EXPECT_EQ(dead[0]["cause"], "plugin_error: the gold is null");
  EXPECT_EQ(dead[0]["generation"], "00000000");
  EXPECT_EQ(dead[0]["worker"], "w1");
  EXPECT_EQ(dead[0]["row"]["source"], "digits");
  EXPECT_EQ(dead[0]["prompt"], "waits to be drawn") << "its group was re-issued";
}

TEST_F(DeadLetterTest, ItSaysWhatBecomesOfItsPromptUntilThatIsScored) {  // reissues = 1
  h_.Start();
  ASSERT_TRUE(PlayUnscorable(h_, "plugin_error"));
  h_.SampleAll(h_.Rollout(), *h_.Admitted(2), {1, 0});
  EXPECT_EQ(Dead()[0]["prompt"], "being sampled");
  h_.ScoreAll();
  EXPECT_EQ(Dead()[0]["prompt"], "scored since");
  EXPECT_EQ(Readmit(), 0u) << "there is nothing to repeat";
}

TEST_F(DeadLetterTest, TheQuarantinedPromptsOfSomeGroupsAloneAreReadmitted) {
  h_.Start();
  ASSERT_TRUE(PlayUnscorable(h_));
  ASSERT_TRUE(PlayUnscorable(h_));
  const auto dead = Dead();
  ASSERT_THAT(dead, SizeIs(2));
  for (const nlohmann::json& letter : dead) EXPECT_EQ(letter["prompt"], "quarantined");

  EXPECT_EQ(Readmit({{1, 1}}), 1u);
  EXPECT_EQ(Dead()[0]["prompt"], "quarantined");
  EXPECT_EQ(Dead()[1]["prompt"], "waits to be drawn");
  EXPECT_EQ(Readmit({{1, 1}}), 0u) << "a repeat moves nothing";
  EXPECT_EQ(h_.Admitted(2)->grants[0].row.ref.index, dead[1]["row"]["index"].get<uint64_t>());
}

TEST_F(DeadLetterTest, TheNewestThousandAreKept) {
  Spec spec = SmallSpec();
  spec.groups_per_step = 2000;
  spec.quota_bytes = 1 << 30;
  Harness h(spec, {5000});
  h.check = false;
  h.reload_each = 0;
  h.Start();
  for (int i = 0; i < 1010; ++i) ASSERT_TRUE(PlayUnscorable(h));
  const auto rows = h.job().Peek(PeekWhat::kTasks, "dead_letter", h.now);
  ASSERT_THAT(rows, SizeIs(1000));
  EXPECT_EQ(rows[0].node.id.substr(0, 32), (GroupId{1, 10}).hex());
}

}  // namespace
}  // namespace sluice::queue
