#include <cmath>

#include "common/base/splitmix.h"
#include "tests/services/queue/core/model.h"

// Random schedules of everything that may happen to a job, faults included. These invariants must
// hold in all of them; to the right is what checks each.
//
//   I1  no token above max_staleness is trained   Model::CheckGroup, by each token's version
//   I2  no more slots are used than there are     Job::Violations counts them after every event;
//                                                 Model::Granted checks the window of steps
//   I3  a member is sealed once, in one attempt   Model::Sealed, Granted
//   I4  batches have whole, accepted groups       Model::CheckGroup
//   I5  a batch has one value on a branch         Model::Handed
//   I6  nothing is trained twice on a branch      Model::Applied
//   I7  everything admitted comes to an end       EndWell: nothing is live in a closed job
//   I8  bytes read are those written, or GONE     Model::Read
//   I9  what is leased or not durable is kept     Model::Read
//   I10 a recovered job equals this one           Harness: a twin gets each event through the
//                                                 codec, and is loaded from a dump every 16 events
//   I11 a fenced incarnation changes nothing      ExpectUnchanged
//   I12 published versions rise                   Publish
//   I13 stored <= reserved <= quota               Job::Violations
//   I14 other jobs change no byte                 MemoryShare comes at random; shares_test.cc reads
//                                                 one job's bytes while another writes
//   I15 each wait ends if workers behave          EndWell: steps go on
//   I16 the ledger adds up                        Model::Check, Job::Violations
namespace sluice::queue {
namespace {

Spec RandomSpec(SplitMix64& random) {
  Spec spec = SmallSpec();
  spec.groups_per_step = 1 + random.Below(3);
  spec.group_size = 1 + random.Below(4);
  spec.group_min = 1 + random.Below(spec.group_size);
  spec.max_staleness = std::vector<uint32_t>{0, 1, 2, 4}[random.Below(4)];
  spec.oversample = random.Below(2) == 0 ? 0 : 0.5;
  spec.statistic = random.Below(3) == 0 ? Statistic::kStrict : Statistic::kMasked;
  // Job::Check refuses the policy mask with the statistic strict.
  const bool strict = spec.statistic == Statistic::kStrict;
  spec.straggler =
      std::vector<Straggler>{Straggler::kWait, Straggler::kDrop, Straggler::kShrink,
                             strict ? Straggler::kDrop : Straggler::kMask}[random.Below(4)];
  spec.wait = absl::Seconds(random.Below(3) == 0 ? 4 : 40);
  spec.durability = std::vector<Durability>{Durability::kMemory, Durability::kMetadata,
                                            Durability::kFull}[random.Below(3)];
  spec.filter = spec.group_size > 1 && random.Below(3) == 0 ? Filter::kSignal : Filter::kNone;
  spec.max_rejected_steps = 0;  // No number of rejected groups fails the job.
  spec.min_trainable = 1 + random.Below(2);
  spec.reissues = random.Below(3);
  if (random.Below(4) == 0) spec.admission_staleness = random.Below(spec.max_staleness + 1);
  if (random.Below(4) == 0) {
    spec.tasks.push_back({.name = "judge",
                          .needs = {"task_reward"},
                          .produces = {"verdict"},
                          .granularity = Granularity::kGroup,
                          .pool = "judges",
                          .deadline = absl::Seconds(10),
                          .tries = 3});
  }
  // Waves of a group: Job::CheckSpec refuses tasks of groups with them.
  if (spec.group_size > 2 && !spec.has_task(Granularity::kGroup) && random.Below(2) == 0) {
    spec.first_wave = 2 + random.Below(spec.group_size - 2);
    spec.group_min = std::min(spec.group_min, spec.first_wave);
  }
  EXPECT_TRUE(Job::CheckSpec(spec).ok());
  spec.quota_bytes = (1 + random.Below(4)) * Job::NeededBytes(spec);
  return spec;
}

// Plays all workers of a job at random, and tells the model of each call and its answer.
class Simulation {
 public:
  explicit Simulation(uint64_t seed)
      : random_(seed), h_(RandomSpec(random_), {500}), model_(h_.spec()) {}

  void Run(int events) {
    h_.SetWorkers();
    Restart();
    Publish();
    for (int i = 0; i < events && !testing::Test::HasFailure(); ++i) Act();
    if (!testing::Test::HasFailure()) EndWell();
  }

 private:
  struct Held {
    std::string rollout;
    queue::Grant grant;  // Without its members.
    Member member;
    TrajectoryRef ref() const { return {grant.group, member.member, member.attempt}; }
  };
  struct Checkpoint {
    int64_t version;
    std::string cursor, hash;
  };

  uint64_t Below(uint64_t n) { return random_.Below(n); }
  bool OneIn(uint64_t n) { return Below(n) == 0; }
  std::string AnyRollout() { return OneIn(2) ? "r1" : "r2"; }

  // The number of an action's cases says how frequent it is.
  void Act() {
    switch (Below(35)) {
      case 0:
      case 1:
      case 2: return AdmitSome(AnyRollout(), 1 + Below(6));
      case 3:
      case 4:
      case 5:
      case 6:
      case 7:
      case 8:
      case 9: return Write();
      case 10:
      case 11:
      case 12:
      case 13: return SealAny();
      case 14:
      case 15:
      case 16: return Score();
      case 17:
      case 18:
      case 19: return Acquire();
      case 20:
      case 21:
      case 22: return ApplyNext();
      case 23:
      case 24: return LoadNewest(AnyRollout());
      case 25: return MakeDurable();
      case 26:  // After 61 s all leases have run out.
        h_.Advance(absl::Seconds(OneIn(25) ? 61 : 1 + Below(2)));
        return;
      case 27: return OneIn(6) ? DropAny() : RenewAll();
      case 28: return RenewAll();
      case 29:
        if (OneIn(3)) KillWorker();
        return;
      case 30:
        if (OneIn(3)) ReleaseAny();
        return;
      case 31:
        if (OneIn(5)) KillTrainer();
        return;
      case 32:
        if (OneIn(6)) RestartQueue();
        return;
      case 33:
        if (OneIn(6)) Rescore();
        return;
      case 34: return OneIn(3) ? FillDisk() : SetRandomShare();
    }
  }

  // Rollouts. -------------------------------------------------------------------------------------
  void AdmitSome(const std::string& rollout, uint32_t room) {
    Admit admit{.request = h_.Request(), .room = room, .wait = absl::ZeroDuration()};
    if (!fair_ && OneIn(12))
      admit.own = Row{.ref = {.source = RowRef::kOutside}, .source = "api", .json = "{}"};

    const auto answer = h_.Call<AdmitAnswer>(h_.Rollout(rollout), admit);
    if (!answer.ok()) {
      EXPECT_EQ(ReasonOf(answer.status()), "NOT_YET");
      return;
    }
    if (answer->grants.empty()) {
      EXPECT_TRUE(answer->edge.has_value() && !answer->edge->cause.empty());
      return;
    }

    for (const queue::Grant& grant : answer->grants) {
      const auto& members = h_.job().group(grant.group.ordinal)->members;
      model_.Granted(grant, std::max(loaded_["r1"].number, loaded_["r2"].number),
                     std::any_of(members.begin(), members.end(), [](const GroupMember& m) {
                       return m.state == MemberState::kDropped;
                     }));
      for (const Member& member : grant.members) {
        Held held{rollout, grant, member};
        held.grant.members.clear();
        held_.push_back(held);
      }
    }

    if (OneIn(4)) {
      const auto again = h_.Call<AdmitAnswer>(h_.Rollout(rollout), admit);
      EXPECT_TRUE(again->repeat);
      EXPECT_EQ(again->grants[0].members[0].lease.id, answer->grants[0].members[0].lease.id);
    }
  }

  // True if the call was refused because its lease is lost: the rollout then gives the member up.
  bool GiveUpIfLost(size_t i, const absl::Status& status) {
    if (status.ok()) return false;
    EXPECT_THAT(ReasonOf(status), testing::AnyOf("LEASE_LOST", "GONE", "FENCED")) << status;
    held_.erase(held_.begin() + static_cast<int64_t>(i));
    return true;
  }

  void Write() {
    if (!held_.empty()) WriteTo(Below(held_.size()), OneIn(6) ? 20 : 1 + Below(3));
  }

  // Puts the prompt, if it is not stored yet, and sampled tokens. Returns false if the rollout lost
  // the member.
  bool WriteTo(size_t i, uint32_t count) {
    const Held held = held_[i];
    const Caller caller = h_.Rollout(held.rollout);
    const uint64_t own = model_.tokens(held.ref());
    if (own > 40) return true;  // 20 more might not fit into the 64 tokens that it reserved.

    if (own == 0 && GiveUpIfLost(i, h_.PutOne(caller, PieceRecord({.group = held.grant.group},
                                                                  held.member.lease.id,
                                                                  SegmentRole::kPrompt, 0, 4))))
      return false;

    std::vector<VersionRun> runs = {{loaded_[held.rollout], count, 0}};
    const Record record = PieceRecord(held.ref(), held.member.lease.id, SegmentRole::kSampled,
                                      Model::kPrompt + own, count, runs);
    uint32_t repeats = 0;
    const absl::Status status = h_.PutOne(caller, record, nullptr, &repeats);
    if (GiveUpIfLost(i, status)) return false;
    EXPECT_EQ(repeats, 0u);
    model_.Stored(held.ref(), runs);

    if (OneIn(5)) {
      EXPECT_TRUE(h_.PutOne(caller, record, nullptr, &repeats).ok());
      EXPECT_EQ(repeats, 1u);
    }

    if (OneIn(20)) {
      Record bad = PieceRecord(held.ref(), held.member.lease.id, SegmentRole::kSampled,
                               Model::kPrompt + own + count, 1, {{loaded_[held.rollout], 1, 0}});
      bad.fields[1] = MakeField<float>("logprobs", Dtype::kF32, {std::nanf("")});
      EXPECT_EQ(ReasonOf(h_.PutOne(caller, bad)), "NOT_FINITE");
    }
    return true;
  }

  void SealAny() {
    if (!held_.empty()) SealOne(Below(held_.size()));
  }

  void SealOne(size_t i) {
    const Held held = held_[i];
    if (model_.tokens(held.ref()) == 0) return;
    const Caller caller = h_.Rollout(held.rollout);
    if (GiveUpIfLost(i, h_.PutOne(caller, {.owner = held.ref(),
                                           .lease = held.member.lease.id,
                                           .fields = {TextField("messages", "[]")}})))
      return;

    const Item sealed = h_.SealIt(caller, held.ref(), held.member.lease.id);
    if (GiveUpIfLost(i, sealed.status)) return;
    EXPECT_FALSE(sealed.repeat);
    model_.Sealed(held.ref());
    held_.erase(held_.begin() + static_cast<int64_t>(i));

    if (OneIn(4) && h_.job().group(held.grant.group.ordinal) != nullptr) {
      EXPECT_TRUE(h_.SealIt(caller, held.ref(), held.member.lease.id).repeat);
    }
  }

  void DropAny() {
    if (held_.empty()) return;
    const size_t i = Below(held_.size());
    const Held held = held_[i];
    DropItem item{.ref = held.ref(),
                  .lease = held.member.lease.id,
                  .reason = OneIn(2) ? "env_lost" : "prompt_too_long"};
    if (OneIn(2)) item.ref.member.reset();
    const auto answer = h_.Call<ItemsAnswer>(h_.Rollout(held.rollout), Drop{{item}});
    if (GiveUpIfLost(i, answer->items[0].status)) return;
    held_.erase(held_.begin() + static_cast<int64_t>(i));
    EXPECT_TRUE(h_.Call<ItemsAnswer>(h_.Rollout(held.rollout), Drop{{item}})->repeat);
  }

  void ReleaseAny() {
    if (held_.empty()) return;
    const size_t i = Below(held_.size());
    EXPECT_TRUE(h_.Call<ReleaseAnswer>(h_.Rollout(held_[i].rollout),
                                       Release{.leases = {held_[i].member.lease.id},
                                               .reason = ReleaseReason::kDrain})
                    .ok());
    held_.erase(held_.begin() + static_cast<int64_t>(i));
  }

  void LoadNewest(const std::string& rollout) {
    loaded_[rollout] = *published_;
    h_.Load(h_.Rollout(rollout), *published_);
  }

  void RenewAll() {
    for (const char* rollout : {"r1", "r2"})
      EXPECT_TRUE(h_.Call<RenewAnswer>(h_.Rollout(rollout), Renew{}).ok());
    EXPECT_TRUE(h_.Call<RenewAnswer>(h_.Reward(), Renew{}).ok());
    EXPECT_TRUE(h_.Call<RenewAnswer>(h_.Trainer(), Renew{}).ok());
  }

  // Rewards. --------------------------------------------------------------------------------------
  void Score() {
    const auto leased = h_.Call<LeaseTasksAnswer>(
        h_.Reward(),
        LeaseTasks{.request = h_.Request(),
                   .rooms = {{"cpu", fair_ ? 1000 : 1 + static_cast<uint32_t>(Below(3))},
                             {"judges", fair_ ? 1000u : 1}},
                   .wait = absl::ZeroDuration()});
    ASSERT_TRUE(leased.ok()) << leased.status();
    EXPECT_NE(leased->tasks.empty(), !leased->edge.has_value());

    for (const TaskGrant& task : leased->tasks) {
      const double reward = static_cast<double>(Below(3)) / 2;
      if (!fair_ && OneIn(12)) {
        EXPECT_TRUE(h_.Call<ReleaseAnswer>(h_.Reward(), Release{.leases = {task.lease.id},
                                                                .reason = ReleaseReason::kFault})
                        .ok());
      } else if (task.name == "judge") {
        const bool accept = fair_ || !OneIn(8);
        const absl::Status put = h_.PutOne(
            h_.Reward(), {.owner = task.owner,
                          .task = task.id,
                          .lease = task.lease.id,
                          .fields = {TextField("verdict", accept ? "accept" : "reject:dull")},
                          .last = true});
        EXPECT_TRUE(put.ok()) << put;
        model_.Judged(task.owner.group.ordinal, accept);
      } else if (!fair_ && OneIn(25)) {
        const absl::Status put = h_.PutReward(task, 0, "timeout");
        EXPECT_TRUE(put.ok() || ReasonOf(put) == "LEASE_LOST") << put;
      } else if (fair_ || !OneIn(15)) {  // Otherwise the reward never answers.
        const absl::Status put = h_.PutReward(task, reward);
        // A sibling's score may have ended the group.
        EXPECT_TRUE(put.ok() || ReasonOf(put) == "LEASE_LOST") << put;
        if (put.ok()) model_.Scored(task.owner, reward);
      }
    }
  }

  void Rescore() {
    EXPECT_TRUE(h_.Call<RetaskAnswer>({"controller", 0}, Retask{}).ok());
    model_.Rescored();
  }

  // The daemon: it dies, its disk fills, other jobs come and go. ----------------------------------
  void RestartQueue() {
    if (h_.spec().durability == Durability::kMemory) return;
    h_.RestartQueue();
    if (h_.spec().durability == Durability::kMetadata) {
      model_.LostPayload();
    }
    for (const auto& [rollout, version] : loaded_) {
      if (OneIn(2)) h_.Load(h_.Rollout(rollout), version);
    }
    model_.Check(h_.job().ledger());
  }

  void FillDisk() {
    if (held_.empty()) return;
    h_.Send({}, DiskSpace{Space::kFull});

    const Held& held = held_[Below(held_.size())];
    const Record record = PieceRecord(held.ref(), held.member.lease.id, SegmentRole::kSampled,
                                      Model::kPrompt, 1, {{loaded_[held.rollout], 1, 0}});
    const StatsAnswer before = h_.job().Stats();
    EXPECT_EQ(ReasonOf(h_.PutOne(h_.Rollout(held.rollout), record)), "DISK_FULL");
    const auto admitted = h_.Call<AdmitAnswer>(
        h_.Rollout(held.rollout),
        Admit{.request = h_.Request(), .room = 1, .wait = absl::ZeroDuration()});
    EXPECT_TRUE(ReasonOf(admitted.status()) == "NOT_YET" || admitted->grants.empty());
    ExpectUnchanged(before);

    h_.Send({}, DiskSpace{Space::kOk});
  }

  void SetRandomShare() { h_.Send({}, MemoryShare{Job::NeededBytes(h_.spec()) * (1 + Below(3))}); }

  // Workers die; later calls of the dead change nothing. ------------------------------------------
  void KillWorker() {
    if (OneIn(3)) {
      ++h_.reward_incarnation;
      h_.SetWorkers();
      return;
    }
    const std::string rollout = AnyRollout();
    if (OneIn(2)) {
      EXPECT_TRUE(
          h_.Call<ReleaseAnswer>({"controller", 0}, Release{.worker = rollout,
                                                            .incarnation = h_.rollouts[rollout],
                                                            .reason = ReleaseReason::kLost})
              .ok());
      return;
    }

    const Caller old = h_.Rollout(rollout);
    ++h_.rollouts[rollout];
    h_.SetWorkers();

    const StatsAnswer before = h_.job().Stats();
    EXPECT_EQ(
        ReasonOf(h_.Call<AdmitAnswer>(old, Admit{.request = h_.Request(), .room = 1}).status()),
        "FENCED");
    for (const Held& held : held_) {
      if (held.rollout == rollout) {
        const Record record =
            PieceRecord(held.ref(), held.member.lease.id, SegmentRole::kSampled,
                        Model::kPrompt + model_.tokens(held.ref()), 1, {{loaded_[rollout], 1, 0}});
        EXPECT_EQ(ReasonOf(h_.PutOne(old, record)), "FENCED");
      }
    }

    ExpectUnchanged(before);
    if (OneIn(2)) LoadNewest(rollout);
  }

  void ExpectUnchanged(const StatsAnswer& before) {
    const StatsAnswer after = h_.job().Stats();
    EXPECT_EQ(after.groups, before.groups);
    EXPECT_EQ(after.slots, before.slots);
    EXPECT_EQ(after.bytes, before.bytes);
    EXPECT_EQ(after.version, before.version);
    EXPECT_EQ(after.ledger.hash, before.ledger.hash);
    EXPECT_EQ(after.ledger.accepted, before.ledger.accepted);
    EXPECT_EQ(after.ledger.dropped, before.ledger.dropped);
  }

  // The trainer. ----------------------------------------------------------------------------------
  void Acquire() {
    const int64_t k = model_.version() + (OneIn(3) ? 1 : 0);
    const bool stream = h_.spec().max_staleness == 0 || OneIn(4);
    const uint32_t from = OneIn(2) ? 0 : static_cast<uint32_t>(place_[k]);
    const auto answer = h_.Call<AcquireBatchAnswer>(
        h_.Trainer(),
        AcquireBatch{.k = k, .from = from, .stream = stream, .wait = absl::ZeroDuration()});
    ASSERT_TRUE(answer.ok()) << answer.status();
    if (!answer->filled) {
      EXPECT_FALSE(answer->edge->cause.empty());
      return;
    }

    model_.Handed(*answer);
    place_[k] = std::max<size_t>(place_[k], answer->from + answer->groups.size());
    batch_[k] = *answer;

    // Nothing handed out is freed: all of it can be read.
    for (const BatchGroup& group : answer->groups) {
      for (const BatchMember& member : group.members) {
        const auto read = h_.job().Read(
            h_.Trainer(), false, answer->lease.id,
            {{.owner = {group.group, member.member, member.attempt}, .names = {"tokens"}}});
        ASSERT_TRUE(read.ok()) << read.status();
        model_.Read(group, member, *read);
      }
    }
  }

  void ApplyNext() {
    const int64_t k = model_.version();
    const auto it = batch_.find(k);
    if (it == batch_.end() || !it->second.closed) return;

    const bool want_cursor = fair_ || OneIn(2);
    const auto applied = h_.ApplyBatch(it->second, want_cursor);
    if (!applied.ok()) {
      EXPECT_EQ(ReasonOf(applied.status()), "LEASE_LOST") << applied.status();
      batch_.erase(it);
      return;
    }
    EXPECT_FALSE(applied->repeat);
    model_.Applied(k, applied->ledger);

    if (OneIn(3)) {
      const auto again = h_.ApplyBatch(it->second);
      EXPECT_TRUE(again->repeat);
      model_.Check(again->ledger);
    }

    if (want_cursor) checkpoints_.push_back({k + 1, applied->cursor, applied->ledger.hash});
    Publish();
  }

  void Publish() {
    const PolicyVersion next{h_.trainer_incarnation, model_.version()};
    const auto answer = h_.Call<AdvanceVersionAnswer>(
        h_.Trainer(), AdvanceVersion{.expected = published_, .next = next});
    ASSERT_TRUE(answer.ok()) << answer.status();
    if (published_) {
      EXPECT_LT(*published_, next);
    }
    published_ = next;
    if (loaded_.empty()) LoadNewest("r1"), LoadNewest("r2");
  }

  void MakeDurable() {
    if (checkpoints_.empty()) return;
    const Checkpoint& checkpoint =
        checkpoints_[fair_ ? checkpoints_.size() - 1 : Below(checkpoints_.size())];

    const auto answer =
        h_.Call<DurableAnswer>(h_.Trainer(), Durable{checkpoint.version, "c", checkpoint.hash});
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_EQ(answer->repeat, checkpoint.version <= model_.durable());
    if (!answer->repeat) model_.MadeDurable(checkpoint.version);
    model_.Check(h_.job().ledger());
  }

  void KillTrainer() {
    const Caller old = h_.Trainer();
    ++h_.trainer_incarnation;
    h_.SetWorkers();

    const StatsAnswer before = h_.job().Stats();
    EXPECT_EQ(
        ReasonOf(h_.Call<AcquireBatchAnswer>(old, AcquireBatch{.k = model_.version()}).status()),
        "FENCED");
    EXPECT_EQ(ReasonOf(h_.Call<ApplyAnswer>(old, queue::Apply{.k = model_.version()}).status()),
              "FENCED");
    EXPECT_EQ(ReasonOf(h_.Call<DurableAnswer>(old, Durable{model_.version(), "", ""}).status()),
              "FENCED");
    EXPECT_EQ(ReasonOf(h_.Acquired(model_.version()).status()), "RESTORE_FIRST");
    ExpectUnchanged(before);

    Restart();
    Publish();
  }

  // Restores the newest checkpoint mostly, sometimes an older one or none.
  void Restart() {
    Checkpoint from{0, "", ""};
    if (!checkpoints_.empty() && !OneIn(5))
      from = OneIn(4) ? checkpoints_[Below(checkpoints_.size())] : checkpoints_.back();
    const Restore restore{from.cursor, from.cursor.empty() ? "" : "c",
                          OneIn(3) ? RestoreMode::kRequeue : RestoreMode::kReplay};

    const bool gone = from.version < model_.durable() || model_.LostBatchFrom(from.version);
    const auto answer = h_.Call<RestoreAnswer>(h_.Trainer(), restore);
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_EQ(answer->version, from.version);
    EXPECT_EQ(answer->mode, gone ? RestoreMode::kRequeue : restore.mode);
    model_.Restored(h_.trainer_incarnation, *answer, !from.cursor.empty());
    EXPECT_TRUE(h_.Call<RestoreAnswer>(h_.Trainer(), restore)->repeat);

    while (!checkpoints_.empty() && checkpoints_.back().version > from.version)
      checkpoints_.pop_back();
    batch_.clear();
    if (answer->mode == RestoreMode::kRequeue) place_.clear();
  }

  // In the end all workers behave: steps go on, and nothing is live in the closed job. ------------
  void EndWell() {
    // After 100 s all leases have run out, so no rollout holds a member any more.
    fair_ = true;
    h_.Advance(absl::Seconds(100));
    held_.clear();

    // What was applied may fill the quota. A checkpoint of the last step frees it.
    if (const auto last = batch_.find(model_.version() - 1); last != batch_.end()) {
      const auto again = h_.ApplyBatch(last->second, /*want_cursor=*/true);
      ASSERT_TRUE(again.ok() && again->repeat) << again.status();
      checkpoints_.push_back({model_.version(), again->cursor, again->ledger.hash});
    }

    const int64_t goal = model_.version() + 2;
    for (int round = 0; round < 60 && model_.version() < goal && !testing::Test::HasFailure();
         ++round) {
      // Both waves of a group, if it has two, come before its straggler time may be over.
      for (int wave = 0; wave < 2; ++wave) {
        for (const char* rollout : {"r1", "r2"}) {
          LoadNewest(rollout);
          AdmitSome(rollout, 100);
        }

        while (!held_.empty()) {
          const size_t held = held_.size();
          if (WriteTo(held - 1, 3)) SealOne(held - 1);
          ASSERT_LT(held_.size(), held);
        }

        for (int i = 0; i < 3; ++i) Score();
      }
      RenewAll();
      h_.Advance(absl::Seconds(5));
      for (int i = 0; i < 3; ++i) Acquire();
      ApplyNext();
      MakeDurable();
    }

    EXPECT_GE(model_.version(), goal) << "no progress although all workers behave";

    h_.SetWorkers(Phase::kClosed);
    EXPECT_EQ(h_.job().ledger().live, 0);
    model_.Check(h_.job().ledger());
  }

  SplitMix64 random_;
  Harness h_;
  Model model_;
  bool fair_ = false;       // All workers behave from now on.
  std::vector<Held> held_;  // Members that the rollouts sample.
  std::map<std::string, PolicyVersion> loaded_;
  std::optional<PolicyVersion> published_;
  std::map<int64_t, AcquireBatchAnswer> batch_;  // The newest answer, by step.
  std::map<int64_t, size_t> place_;              // How many groups were handed out, by step.
  std::vector<Checkpoint> checkpoints_;
};

class PropertyTest : public testing::TestWithParam<int> {};

TEST_P(PropertyTest, NoScheduleBreaksAPromise) {
  constexpr int kSchedules = 1250;
  for (int i = 0; i < kSchedules; ++i) {
    const uint64_t seed = 10000 * GetParam() + i;
    Simulation(seed).Run(i % 25 == 0 ? 500 : 40 + i % 80);
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, PropertyTest, testing::Range(1, 9));

}  // namespace
}  // namespace sluice::queue
