#include "services/queue/mirror.h"

#include <signal.h>

#include "common/base/status.h"
#include "common/metrics/metrics.h"
#include "services/queue/program.h"
#include "tests/services/queue/core/harness.h"
#include "tests/services/queue/ledger_follower.h"

namespace sluice::queue {
namespace {
using integration::RedisServer;
using testing::AnyOf;
using testing::ElementsAre;

const std::string kJob = std::string(32, 'a');

// A job whose ledger is copied to Redis, as its JobRunner does it.
class MirrorTest : public testing::Test {
 protected:
  void SetUp() override {
    redis_ = RedisServer::Start({.password = password_});
    ASSERT_NE(redis_, nullptr);
  }

  LedgerMirror::Options MirrorOptions() const {
    // Short times make the test quick. Nothing else depends on them.
    return {.redis = redis_->endpoint(),
            .timeout = absl::Milliseconds(200),
            .check = absl::Milliseconds(20),
            .retry = absl::Milliseconds(20)};
  }

  void StartMirror(LedgerMirror::Options options) {
    mirror_ = std::make_unique<LedgerMirror>(std::move(options));
    StartRun();
  }

  // Starts a run of the queue, which has the job in its current state.
  void StartRun() {
    watch_ = std::make_unique<LedgerWatch>(h_.job());
    mirror_->AddEntry(kJob, incarnation_, std::make_shared<LedgerEntry>(LedgerOf(h_.job())));
    h_.after = [this](const Event& event) {
      const auto entry = watch_->FindChange(event, h_.job());
      if (entry == nullptr) return;
      ++told_;
      mirror_->AddEntry(kJob, incarnation_, entry);
      noted_ = entry->ledger.event;
    };
  }

  void RunSteps(int steps) {
    for (int i = 0; i < steps; ++i) {
      h_.RunStep();
      MakeDurable();
    }
  }

  void MakeDurable() {
    ASSERT_TRUE(h_.Call<DurableAnswer>(h_.Trainer(), Durable{.version = h_.job().version(),
                                                             .checkpoint = "c",
                                                             .hash = h_.job().ledger().hash})
                    .ok());
  }

  std::string password_;
  std::unique_ptr<RedisServer> redis_;
  Harness h_;
  // `noted_` is the event of the newest entry, `told_` the number of entries.
  uint64_t incarnation_ = 1, noted_ = 0, told_ = 0;
  std::unique_ptr<LedgerWatch> watch_;
  std::unique_ptr<LedgerMirror> mirror_;
};

TEST_F(MirrorTest, AFollowerRecomputesBooksAndHashChain) {
  StartMirror(MirrorOptions());
  h_.Start();
  RunSteps(5);

  LedgerFollower follower(redis_.get(), kJob);
  ASSERT_TRUE(follower.FollowTo(noted_));
  follower.ExpectIs(h_.job());

  EXPECT_EQ(follower.checked_hashes, 5);
  EXPECT_THAT(follower.gaps(), ElementsAre("start"));
  EXPECT_EQ(follower.entries.size(), told_ + 1);
}

TEST_F(MirrorTest, RestoresAndDropsAreFollowedToo) {
  StartMirror(MirrorOptions());
  h_.Start();
  RunSteps(1);
  h_.RunStep(/*want_cursor=*/true);
  const std::string cursor = h_.cursor;
  h_.RunStep();

  ++h_.trainer_incarnation;  // The trainer dies, and its next incarnation goes back a step.
  h_.SetWorkers();
  ASSERT_TRUE(
      h_.Call<RestoreAnswer>(h_.Trainer(), Restore{.cursor = cursor, .checkpoint = "c"}).ok());

  LedgerFollower follower(redis_.get(), kJob);
  ASSERT_TRUE(follower.FollowTo(noted_));
  EXPECT_EQ(follower.entries.back().second.at("kind"), "restored");
  follower.ExpectIs(h_.job());

  const auto batch = h_.Acquired(2);  // The same batch as before.
  ASSERT_TRUE(batch.ok()) << batch.status();
  ASSERT_TRUE(h_.ApplyBatch(*batch).ok());
  h_.SetWorkers(Phase::kClosed);
  ASSERT_TRUE(follower.FollowTo(noted_));
  follower.ExpectIs(h_.job());

  EXPECT_EQ(follower.checked_hashes, 4);  // Three before the restore, and one after it.
  EXPECT_THAT(follower.gaps(), ElementsAre("start"));
}

TEST_F(MirrorTest, AStoppedRedisHoldsNothingUpAndGetsTheSumsLater) {
  LedgerMirror::Options options = MirrorOptions();
  options.buffer_bytes = 16 << 10;  // The entries of 20 steps do not fit.
  StartMirror(options);
  h_.Start();
  RunSteps(1);

  LedgerFollower follower(redis_.get(), kJob);
  ASSERT_TRUE(follower.FollowTo(noted_));

  redis_->Signal(SIGSTOP);
  RunSteps(20);  // This thread is the queue's. It does not wait for Redis.
  EXPECT_GT(mirror_->state().dropped, 0u);
  EXPECT_GT(mirror_->state().lag, 0u);

  redis_->Signal(SIGCONT);
  ASSERT_TRUE(follower.FollowTo(noted_));
  follower.ExpectIs(h_.job());
  EXPECT_THAT(follower.gaps(), testing::Contains("overflow"));

  int64_t missed = 0;
  for (const auto& [id, fields] : follower.entries) {
    if (fields.contains("missed")) missed += std::stoll(fields.at("missed"));
  }

  EXPECT_EQ(follower.entries.size() + missed, told_ + 1)
      << "each entry is there or counted as missed";
  EXPECT_EQ(mirror_->state().dropped, static_cast<uint64_t>(missed));

  RunSteps(1);
  ASSERT_TRUE(follower.FollowTo(noted_));
  EXPECT_GE(follower.checked_hashes, 1) << "from the gap on the chain is whole again";
}

TEST_F(MirrorTest, AFlushedRedisIsToldThatEntriesAreMissing) {
  StartMirror(MirrorOptions());
  h_.Start();
  RunSteps(2);
  LedgerFollower follower(redis_.get(), kJob);
  ASSERT_TRUE(follower.FollowTo(noted_));

  redis_->Run({"FLUSHALL"});
  follower.StartOver();  // Nothing more happens in the job: the mirror finds out by itself.
  ASSERT_TRUE(follower.FollowTo(noted_));
  follower.ExpectIs(h_.job());
  EXPECT_THAT(follower.gaps(), ElementsAre("start", "lost"));

  redis_->Run({"FLUSHALL"});
  RunSteps(2);
  follower.StartOver();
  ASSERT_TRUE(follower.FollowTo(noted_));
  follower.ExpectIs(h_.job());
  EXPECT_THAT(follower.gaps(), ElementsAre("start", "lost", "lost"));
}

TEST_F(MirrorTest, ARedisThatIsKilledAndComesBackEmptyGetsTheNewestBooks) {
  StartMirror(MirrorOptions());
  h_.Start();
  RunSteps(2);
  LedgerFollower follower(redis_.get(), kJob);
  ASSERT_TRUE(follower.FollowTo(noted_));

  redis_->Kill();
  RunSteps(2);
  ASSERT_TRUE(redis_->Restart().ok());
  follower.StartOver();
  ASSERT_TRUE(follower.FollowTo(noted_));
  follower.ExpectIs(h_.job());

  // The second gap is "start" if Redis was killed before it could acknowledge an entry.
  EXPECT_THAT(follower.gaps(), ElementsAre("start", AnyOf("lost", "start")));
  EXPECT_GE(follower.checked_hashes, 3) << "what waited meanwhile comes entry by entry";
  EXPECT_EQ(mirror_->state().dropped, 0u);
}

TEST_F(MirrorTest, BrokenConnectionsRepeatNoEntry) {
  StartMirror(MirrorOptions());
  h_.Start();
  for (int i = 0; i < 20; ++i) {
    RunSteps(1);
    redis_->Run({"CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"});
  }

  LedgerFollower follower(redis_.get(), kJob);
  ASSERT_TRUE(follower.FollowTo(noted_));
  follower.ExpectIs(h_.job());
  EXPECT_EQ(follower.entries.size(), told_ + 1);
  EXPECT_THAT(follower.gaps(), ElementsAre("start"));
}

TEST_F(MirrorTest, AnotherRunOfTheQueueGoesOnInTheStreamAndSaysSo) {
  StartMirror(MirrorOptions());
  h_.Start();
  RunSteps(1);
  LedgerFollower follower(redis_.get(), kJob);
  ASSERT_TRUE(follower.FollowTo(noted_));

  mirror_ = nullptr;
  ++incarnation_;
  StartMirror(MirrorOptions());
  RunSteps(1);
  ASSERT_TRUE(follower.FollowTo(noted_));
  follower.ExpectIs(h_.job());

  EXPECT_THAT(follower.gaps(), ElementsAre("start", "start"));
}

TEST_F(MirrorTest, AForeignStreamIsLeftAloneAndHoldsUpNoOther) {
  // Redis refuses entries of the mirror: their ids are below 999-0, and a text takes no entries.
  redis_->Run({"XADD", LedgerMirror::KeyOf(kJob), "999-0", "kind", "of someone else"});
  redis_->Run({"SET", LedgerMirror::KeyOf("text"), "of someone else"});
  StartMirror(MirrorOptions());
  mirror_->AddEntry("text", 1, std::make_shared<LedgerEntry>(LedgerOf(h_.job())));
  mirror_->AddEntry("other", 1, std::make_shared<LedgerEntry>(LedgerOf(h_.job())));
  h_.Start();
  RunSteps(2);

  LedgerFollower follower(redis_.get(), "other");
  ASSERT_TRUE(follower.FollowTo(0));
  EXPECT_EQ(redis_->Run({"XLEN", LedgerMirror::KeyOf(kJob)}).number, 1);
  EXPECT_GT(mirror_->state().lag, 0u);

  redis_->Run({"DEL", LedgerMirror::KeyOf(kJob)});
  LedgerFollower freed(redis_.get(), kJob);
  ASSERT_TRUE(freed.FollowTo(noted_));
  freed.ExpectIs(h_.job());
}

TEST_F(MirrorTest, AFreedJobsStreamExpires) {
  LedgerMirror::Options options = MirrorOptions();
  options.linger = absl::Minutes(1);
  StartMirror(options);
  h_.Start();
  RunSteps(1);
  LedgerFollower follower(redis_.get(), kJob);
  ASSERT_TRUE(follower.FollowTo(noted_));
  mirror_->OnJobFreed(kJob);
  mirror_->Stop();  // Sends what waits.

  EXPECT_GT(redis_->Run({"PTTL", LedgerMirror::KeyOf(kJob)}).number, 0);
}

class MirrorPasswordTest : public MirrorTest {
 protected:
  MirrorPasswordTest() { password_ = "right"; }
};

TEST_F(MirrorPasswordTest, AWrongPasswordHoldsNothingUpUntilItIsRight) {
  LedgerMirror::Options options = MirrorOptions();
  options.redis.password = Secret("wrong");
  StartMirror(options);
  h_.Start();
  RunSteps(3);

  EXPECT_FALSE(mirror_->state().connected);
  EXPECT_EQ(mirror_->state().lag, told_ + 1);

  redis_->Run({"CONFIG", "SET", "requirepass", "wrong"});
  LedgerFollower follower(redis_.get(), kJob);
  ASSERT_TRUE(follower.FollowTo(noted_));
  follower.ExpectIs(h_.job());
}

TEST(MirrorFlagsTest, ARedisOnAnotherHostWithoutTlsIsRefusedBeforeAnythingIsSent) {
  daemon::Flags flags;
  flags.own_flags["--mirror"] = "redis://10.0.0.1:6379";
  metrics::Registry metrics;

  const absl::Status refused = QueueProgram::Make({.flags = &flags, .metrics = &metrics}).status();

  EXPECT_EQ(DetailOf(refused).catalogue, "SLUICE-AUTH-0020");
  EXPECT_THAT(std::string(refused.message()),
              testing::StartsWith("--mirror: redis://10.0.0.1:6379/0"));
}

}  // namespace
}  // namespace sluice::queue
