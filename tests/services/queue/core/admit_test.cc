#include "tests/services/queue/core/harness.h"

namespace sluice::queue {
namespace {
using testing::HasSubstr;

std::vector<int64_t> Steps(const AdmitAnswer& answer) {
  std::vector<int64_t> steps;
  for (const queue::Grant& grant : answer.grants) steps.push_back(grant.step);
  return steps;
}

// There are two groups per step, and max_staleness is 1: the window has four slots.
TEST(AdmitTest, GroupsGetTheLowestFreeSlotsOfTheWindowAndNoMore) {
  Harness h;
  h.Start();

  const auto admitted = h.Admitted(100);
  ASSERT_TRUE(admitted.ok());
  EXPECT_THAT(Steps(*admitted), testing::ElementsAre(0, 0, 1, 1));
  EXPECT_EQ(h.job().ledger().accepted, 8);
  EXPECT_EQ(admitted->grants[1].seed, GroupSeed(7, 1));
  EXPECT_FALSE(h.Answered(h.Send(h.Rollout(), Admit{.request = h.Request(), .room = 1})));
}

TEST(AdmitTest, TheWindowFollowsTheLowestEngine) {
  Harness h;
  h.Start();
  h.Load(h.Rollout("r2"), {1, 0});
  h.SampleAll(h.Rollout(), *h.Admitted(100), {1, 0});
  h.ScoreAll();
  ASSERT_TRUE(h.ApplyBatch(*h.Acquired(0)).ok());
  h.Publish();  // r1 holds version 1, r2 still 0: slots reach up to step 0 + max_staleness.

  const uint64_t call = h.Send(h.Rollout(), Admit{.request = h.Request(), .room = 1});
  EXPECT_FALSE(h.Answered(call));

  h.Load(h.Rollout("r2"), {1, 1});
  EXPECT_THAT(Steps(*h.Result<AdmitAnswer>(call)), testing::ElementsAre(2));
}

TEST(AdmitTest, AnEngineFarBehindIsLeftOutAndParks) {
  Harness h;
  h.Start();
  h.RunStep();
  h.RunStep();  // Version 2 is published, and max_staleness is 1.
  h.Load(h.Rollout("r2"), {1, 0});
  EXPECT_EQ(h.job().Stats().lowest, 2);

  const uint64_t call = h.Send(h.Rollout("r2"), Admit{.request = h.Request(), .room = 1});
  h.Advance(absl::Seconds(30));
  const auto answer = h.Result<AdmitAnswer>(call);
  EXPECT_EQ(answer->edge->on.kind, NodeKind::kVersion);
}

TEST(AdmitTest, AnEngineThatDoesNotRenewLeavesTheWindow) {
  Harness h;
  h.Start();
  h.Load(h.Rollout("r2"), {1, 0});
  h.RunStep();
  EXPECT_EQ(h.job().Stats().lowest, 0);

  h.now += absl::Seconds(59);
  h.Load(h.Rollout(), {1, 1});
  h.Advance(absl::Seconds(2));
  EXPECT_EQ(h.job().Stats().lowest, 1);
}

TEST(AdmitTest, AdmitBeforeTheFirstRenewIsNotYet) {
  Harness h;
  h.Start();
  EXPECT_EQ(ReasonOf(h.Admitted(1, "r2").status()), "NOT_YET");
}

TEST(AdmitTest, ARepeatIsAnsweredTheSameAndGrantsOnce) {
  Harness h;
  h.Start();
  const Admit admit{.request = h.Request(), .room = 3};
  const auto first = h.Call<AdmitAnswer>(h.Rollout(), admit);

  const auto again = h.Call<AdmitAnswer>(h.Rollout(), admit);
  ASSERT_TRUE(again.ok());
  EXPECT_FALSE(first->repeat);
  EXPECT_TRUE(again->repeat);
  ASSERT_EQ(again->grants.size(), first->grants.size());
  EXPECT_EQ(again->grants[0].members[0].lease.id, first->grants[0].members[0].lease.id);
  EXPECT_EQ(h.job().ledger().accepted, 3);
}

TEST(AdmitTest, ARetryWhileTheFirstStillWaitsTakesItsPlace) {
  Harness h;
  h.Start();
  ASSERT_TRUE(h.Admitted(100).ok());
  const Admit admit{.request = h.Request(), .room = 1};

  const uint64_t first = h.Send(h.Rollout(), admit), second = h.Send(h.Rollout(), admit);
  EXPECT_TRUE(h.Result<AdmitAnswer>(first)->edge.has_value());
  EXPECT_FALSE(h.Answered(second));
}

TEST(AdmitTest, TheLast64AnswersAreKept) {
  Spec spec = SmallSpec();
  spec.groups_per_step = 100;
  Harness h(spec);
  h.Start();
  std::vector<Admit> asked;
  for (int i = 0; i < 65; ++i) {
    asked.push_back({.request = h.Request(), .room = 1});
    ASSERT_TRUE(h.Call<AdmitAnswer>(h.Rollout(), asked.back()).ok());
  }

  EXPECT_TRUE(h.Call<AdmitAnswer>(h.Rollout(), asked[1])->repeat);
  EXPECT_FALSE(h.Call<AdmitAnswer>(h.Rollout(), asked[0])->repeat);
}

TEST(AdmitTest, ALowerIncarnationIsFencedAndItsMembersGoOnElsewhere) {
  Harness h;
  h.Start();
  const Caller old = h.Rollout();
  const auto admitted = h.Admitted(1);

  h.rollouts["r1"] = 2;
  h.SetWorkers();

  const Ledger before = h.job().ledger();
  EXPECT_EQ(ReasonOf(h.Call<AdmitAnswer>(old, Admit{.request = h.Request(), .room = 1}).status()),
            "FENCED");
  EXPECT_EQ(ReasonOf(h.Call<RenewAnswer>(old, Renew{}).status()), "FENCED");
  EXPECT_EQ(ReasonOf(h.Call<ItemsAnswer>(old, Seal{}).status()), "FENCED");
  EXPECT_EQ(ReasonOf(h.PutOne(old, {})), "FENCED");
  EXPECT_EQ(h.job().ledger().accepted, before.accepted);

  h.Load(h.Rollout("r2"), {1, 0});
  const auto taken = h.Admitted(1, "r2");
  EXPECT_EQ(taken->grants[0].group, admitted->grants[0].group);
  EXPECT_EQ(taken->grants[0].members[0].attempt, 2u);
}

TEST(AdmitTest, AFencedCallerThatWaitsIsToldAtOnce) {
  Harness h;
  h.Start();
  ASSERT_TRUE(h.Admitted(100).ok());
  const uint64_t call = h.Send(h.Rollout(), Admit{.request = h.Request(), .room = 1});
  h.rollouts["r1"] = 2;
  h.SetWorkers();
  EXPECT_EQ(ReasonOf(h.Result<AdmitAnswer>(call).status()), "FENCED");
}

TEST(AdmitTest, AWorkerNotListedIsToldToComeAgain) {
  Harness h;
  h.Start();

  const absl::Status status =
      h.Call<AdmitAnswer>({"r9", 1}, Admit{.request = h.Request(), .room = 1}).status();
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_GT(DetailOf(status).retry_after, absl::ZeroDuration());
  EXPECT_TRUE(absl::IsPermissionDenied(
      h.Call<AdmitAnswer>(h.Reward(), Admit{.request = h.Request(), .room = 1}).status()));
}

TEST(AdmitTest, AKilledWorkersPrefixIsHandedOnUnchanged) {
  Harness h;
  h.Start();
  const auto admitted = h.Admitted(2);
  const queue::Grant& grant = admitted->grants[0];
  const Id16 lease = grant.members[0].lease.id;
  const TrajectoryRef first{grant.group, 0, 1};

  ASSERT_TRUE(
      h.PutOne(h.Rollout(), PieceRecord({.group = grant.group}, lease, SegmentRole::kPrompt, 0, 4))
          .ok());
  ASSERT_TRUE(h.PutOne(h.Rollout(),
                       PieceRecord(first, lease, SegmentRole::kSampled, 4, 5, {{{1, 0}, 5, 0}}))
                  .ok());

  ASSERT_TRUE(h.Call<ReleaseAnswer>(
                   {"controller", 0},
                   Release{.worker = "r1", .incarnation = 1, .reason = ReleaseReason::kLost})
                  .ok());

  h.Load(h.Rollout("r2"), {1, 0});
  const auto taken = h.Admitted(1, "r2");
  const Member& member = taken->grants[0].members[0];
  EXPECT_EQ(member.attempt, 2u);
  EXPECT_EQ(member.prefix, 9u);

  const auto read = h.job().Read(
      h.Rollout("r2"), false, member.lease.id,
      {{.owner = {grant.group, 0, 2}, .names = {"tokens", "logprobs"}, .from = 4, .to = 9}});
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_EQ(read->records.size(), 1u);

  const Record written = PieceRecord(first, lease, SegmentRole::kSampled, 4, 5, {{{1, 0}, 5, 0}});
  for (int f = 0; f < 2; ++f)
    EXPECT_EQ(read->records[0].fields[f].bytes.view(), written.fields[f].bytes.view());
  EXPECT_EQ(read->records[0].piece->runs, written.piece->runs);

  EXPECT_EQ(ReasonOf(h.PutOne(h.Rollout(), PieceRecord(first, lease, SegmentRole::kSampled, 9, 1,
                                                       {{{1, 0}, 1, 0}}))),
            "LEASE_LOST");
  EXPECT_THAT(h.Call<RenewAnswer>(h.Rollout(), Renew{.leases = {lease}})->lost,
              testing::ElementsAre(lease));

  h.Sample(h.Rollout("r2"), taken->grants[0], member, {{{1, 0}, 2, 0}});
  EXPECT_EQ(h.job().group(0)->members[0].log.tokens(), 7u);
}

TEST(AdmitTest, ALeaseThatRunsOutPutsTheMemberBack) {
  Harness h;
  h.Start();
  ASSERT_TRUE(h.Admitted(1).ok());
  h.now += absl::Seconds(61);
  h.Load(h.Rollout("r2"), {1, 0});
  h.Advance(absl::ZeroDuration());

  EXPECT_EQ(h.job().counters().leases_expired.at("trajectory"), 1);
  EXPECT_EQ(h.Admitted(1, "r2")->grants[0].members[0].attempt, 2u);
}

TEST(AdmitTest, TheHolderOfASiblingIsPreferred) {
  Harness h;
  h.Start();
  h.Load(h.Rollout("r2"), {1, 0});
  const auto first = h.Admitted(3, "r1");   // Both members of group 0; member 0 of group 1.
  const auto second = h.Admitted(1, "r2");  // Member 1 of group 1.
  ASSERT_EQ(second->grants[0].group.ordinal, 1u);

  Release release{.reason = ReleaseReason::kDrain};
  for (const queue::Grant& grant : first->grants) {
    for (const Member& member : grant.members) release.leases.push_back(member.lease.id);
  }
  ASSERT_EQ(h.Call<ReleaseAnswer>(h.Rollout("r1"), release)->released, 3u);

  // Group 0 is older, but r2 holds a member of group 1.
  EXPECT_EQ(h.Admitted(1, "r2")->grants[0].group.ordinal, 1u);
  EXPECT_EQ(h.Admitted(1, "r1")->grants[0].group.ordinal, 0u);
}

TEST(AdmitTest, AFailedPromptIsDrawnAgainThenQuarantined) {  // reissues = 1
  Harness h;
  h.Start();
  const auto first = h.Admitted(2);
  const RowRef row = first->grants[0].row.ref;
  const auto drop = [&](const queue::Grant& grant) {
    return h
        .Call<ItemsAnswer>(h.Rollout(),
                           Drop{{{{.group = grant.group}, grant.members[0].lease.id, "env_lost"}}})
        ->items[0];
  };

  EXPECT_TRUE(drop(first->grants[0]).status.ok());

  const auto second = h.Admitted(2);
  EXPECT_EQ(second->grants[0].row.ref.index, row.index);
  EXPECT_EQ(second->grants[0].row.ref.occurrence, 1u);
  EXPECT_TRUE(drop(second->grants[0]).status.ok());
  EXPECT_EQ(h.job().counters().quarantined, 1);
  EXPECT_NE(h.Admitted(2)->grants[0].row.ref.index, row.index);
  EXPECT_EQ(h.job().ledger().dropped.at("env_lost"), 4);
  EXPECT_EQ(h.job().Peek(PeekWhat::kPrompts, "quarantined", h.now).size(), 1u);
}

TEST(AdmitTest, EachWaitSaysWhatItWaitsFor) {
  const auto edge = [](Harness& h) {
    const uint64_t call =
        h.Send(h.Rollout(), Admit{.request = h.Request(), .room = 1, .wait = absl::Seconds(1)});
    EXPECT_FALSE(h.job().Explain(h.now).empty());

    h.Advance(absl::Seconds(1));
    const auto answer = h.Result<AdmitAnswer>(call);
    EXPECT_TRUE(answer.ok()) << answer.status();
    EXPECT_TRUE(answer->edge.has_value() && !answer->edge->cause.empty() &&
                !answer->edge->on.id.empty());

    return *answer->edge;
  };

  {
    Harness h;
    h.SetWorkers();
    h.Load(h.Rollout(), {1, 0});
    EXPECT_THAT(edge(h).cause, HasSubstr("Restore"));
  }

  {
    Harness h;
    h.Start();
    h.SetWorkers(Phase::kHold);
    EXPECT_THAT(edge(h).cause, HasSubstr("hold"));
  }

  {
    Harness h;
    h.Start();
    ASSERT_TRUE(h.Admitted(100).ok());
    EXPECT_EQ(edge(h).on.kind, NodeKind::kSlot);
  }

  {
    Spec spec = SmallSpec();
    // There is room for three steps, and none becomes durable.
    spec.quota_bytes = 3 * 2 * 2 * spec.member_bytes();
    Harness h(spec);
    h.Start();
    h.RunStep();
    h.RunStep();

    EXPECT_EQ(edge(h).on.kind, NodeKind::kBytes);
  }

  {
    Spec spec = SmallSpec();
    spec.epochs = 1;
    Harness h(spec, {2});
    h.Start();
    ASSERT_TRUE(h.Admitted(100).ok());
    EXPECT_THAT(edge(h).cause, HasSubstr("epochs"));
  }

  {
    Spec spec = SmallSpec();
    spec.rows_only = true;
    spec.tasks.clear();
    Harness h(spec);
    h.Start();
    EXPECT_EQ(edge(h).cause, "the job trains the rows themselves, so there is nothing to sample");
  }

  {
    Harness h(SmallSpec(), {1});  // Without a limit of epochs.
    h.Start();
    h.SampleAll(h.Rollout(), *h.Admitted(2), {1, 0});
    const auto leased = h.Call<LeaseTasksAnswer>(
        h.Reward(), LeaseTasks{.request = h.Request(), .rooms = {{"cpu", 1}}});
    ASSERT_TRUE(h.PutReward(leased->tasks[0], 0, "bad_row").ok());
    // The job fails for want of rows, until a trainer restores it.
    ASSERT_TRUE(RestartTrainer(h, "", "").ok());
    EXPECT_EQ(edge(h).cause, "each row of the data is quarantined");
  }

  {
    Spec spec = SmallSpec();
    spec.max_steps = 1;
    Harness h(spec);
    h.Start();
    h.RunStep();
    EXPECT_EQ(edge(h).on.kind, NodeKind::kStep);
  }
}

TEST(AdmitTest, AJobReservesWithinItsShareOfTheMemoryAndGoesOnWhenThatGrows) {
  const uint64_t group = 2 * SmallSpec().member_bytes();
  Harness h;
  h.Start();
  h.Send({}, MemoryShare{group});
  EXPECT_EQ(h.Admitted(100)->grants.size(), 1u);

  const uint64_t waits = h.Send(h.Rollout(), Admit{.request = h.Request(), .room = 100});
  EXPECT_FALSE(h.Answered(waits));

  const WaitEdge edge = h.job().Explain(h.now).at(0);
  EXPECT_EQ(edge.on.kind, NodeKind::kBytes);
  EXPECT_THAT(edge.cause, HasSubstr(absl::StrCat(group, " of ", group, " B")));
  EXPECT_THAT(edge.hint, HasSubstr("--memory"));

  h.Send({}, MemoryShare{2 * group});
  EXPECT_EQ(h.Result<AdmitAnswer>(waits)->grants.size(), 1u);
}

// The window has four slots.
TEST(AdmitTest, APromptFromOutsideGetsASlotNowOrNone) {
  Harness h;
  h.Start();
  const auto own = [&](uint32_t room) {
    return h.Call<AdmitAnswer>(h.Rollout(),
                               Admit{.request = h.Request(),
                                     .room = room,
                                     .own = Row{.source = "api", .json = "{\"prompt\":\"hi\"}"},
                                     .wait = absl::ZeroDuration()});
  };

  const auto first = own(1);
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_EQ(first->grants.size(), 1u);
  EXPECT_EQ(first->grants[0].row.source, "api");
  EXPECT_EQ(first->grants[0].row.json, "{\"prompt\":\"hi\"}");
  ASSERT_EQ(first->grants[0].members.size(), 1u) << "room is for one of its two members";

  const auto rest = h.Admitted(7);  // Its other member first, then the queue's own prompts.
  EXPECT_EQ(rest->grants[0].group, first->grants[0].group);
  EXPECT_EQ(rest->grants[0].row.source, "api");

  const auto none = own(2);
  ASSERT_TRUE(none.ok());
  EXPECT_TRUE(none->grants.empty());
  EXPECT_EQ(none->edge->on.kind, NodeKind::kSlot);

  h.SampleAll(h.Rollout(), *first, {1, 0});
  h.SampleAll(h.Rollout(), *rest, {1, 0});
  h.ScoreAll();
  const auto batch = h.Acquired(0);
  ASSERT_TRUE(batch.ok() && batch->filled);
  EXPECT_EQ(batch->groups[0].row.source, "api");

  ASSERT_TRUE(h.ApplyBatch(*batch).ok());
}

TEST(AdmitTest, APromptFromOutsideThatFailsIsNotDrawnAgain) {
  Harness h;
  h.Start();
  const auto own = h.Call<AdmitAnswer>(h.Rollout(), Admit{.request = h.Request(),
                                                          .room = 2,
                                                          .own = Row{.source = "api", .json = "{}"},
                                                          .wait = absl::ZeroDuration()});

  const DropItem drop{.ref = {.group = own->grants[0].group},
                      .lease = own->grants[0].members[0].lease.id,
                      .reason = "env_lost"};
  EXPECT_TRUE(h.Call<ItemsAnswer>(h.Rollout(), Drop{{drop}})->items[0].status.ok());
  EXPECT_EQ(h.Admitted(2)->grants[0].row.source, "digits");
  EXPECT_EQ(h.job().ledger().dropped.at("env_lost"), 2);

  // A prompt from outside needs the name of a source.
  EXPECT_EQ(
      ReasonOf(h.Call<AdmitAnswer>(
                    h.Rollout(), Admit{.request = h.Request(), .room = 1, .own = Row{.json = "{}"}})
                   .status()),
      "BAD_ROW");
}

TEST(SetJobTest, WhatThisBuildCannotKeepIsRefusedByName) {
  const auto refused = [](auto change, const std::string& name) {
    Spec spec = SmallSpec();
    change(spec);
    const absl::Status status = Job::CheckSpec(spec);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << name;
    EXPECT_THAT(std::string(status.message()), HasSubstr(name));
  };

  EXPECT_TRUE(Job::CheckSpec(SmallSpec()).ok());

  refused([](Spec& s) { s.straggler = static_cast<Straggler>(0); }, "queue.straggler.policy");
  refused([](Spec& s) { s.wait = absl::ZeroDuration(); }, "queue.straggler.wait");
  refused([](Spec& s) { s.deterministic = true; }, "max_staleness 0");
  refused([](Spec& s) { s.deterministic = true, s.max_staleness = 0, s.oversample = 0.5; },
          "oversample 0");
  refused(
      [](Spec& s) { s.deterministic = true, s.max_staleness = 0, s.straggler = Straggler::kDrop; },
      "wait or mask");
  refused([](Spec& s) { s.policies.push_back("other"); }, "policies");
  refused([](Spec& s) { s.tasks[0].produces.push_back("verdict"); }, "granularity must be group");
  refused([](Spec& s) { s.statistic = Statistic::kStrict; }, "masked");
  refused([](Spec& s) { s.admission_staleness = 2; }, "admission");
  refused([](Spec& s) { s.quota_bytes = 1000; }, "quota");
  refused([](Spec& s) { s.group_min = 3; }, "min 3 of size 2");
  refused([](Spec& s) { s.filter = Filter::kSignal, s.tasks.clear(); }, "task_reward");
}

TEST(SetJobTest, ARepeatChangesNothingAndALowerRevisionLoses) {
  Harness h;
  const SetJob set{.revision = 5, .spec = h.spec(), .workers = {{"t1", WorkerRole::kTrainer, 1}}};
  EXPECT_FALSE(h.Call<SetJobAnswer>({"controller", 0}, set)->repeat);
  const auto again = h.Call<SetJobAnswer>({"controller", 0}, set);
  EXPECT_TRUE(again->repeat);
  EXPECT_FALSE(again->restored);

  SetJob lower = set;
  lower.revision = 4;
  const absl::Status status = h.Call<SetJobAnswer>({"controller", 0}, lower).status();
  EXPECT_EQ(ReasonOf(status), "LOST_RACE");
  EXPECT_EQ(DetailOf(status).current, "5");
}

TEST(SetJobTest, ClosedDropsWhatLivesAndTheLedgerIsFinal) {
  Harness h;
  h.Start();
  h.RunStep();
  ASSERT_TRUE(h.Admitted(100).ok());
  const uint64_t waits = h.Send(h.Rollout(), Admit{.request = h.Request(), .room = 1});
  h.SetWorkers(Phase::kClosed);

  EXPECT_TRUE(absl::IsFailedPrecondition(h.Result<AdmitAnswer>(waits).status()));
  EXPECT_EQ(h.job().ledger().live, 0);
  EXPECT_EQ(h.job().ledger().applied, 4);
  EXPECT_GT(h.job().ledger().dropped.at("closed"), 0);
  EXPECT_FALSE(h.cancel.empty());
}

}  // namespace
}  // namespace sluice::queue
