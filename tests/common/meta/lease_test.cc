// Properties of the leader's lease over seeds: several processes and a store, with clocks that run
// at different rates, late and lost messages, pauses, kills, and a store that is away.

#include "common/meta/lease.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace sluice::meta {
namespace {

constexpr absl::Duration kStep = absl::Milliseconds(10);

TEST(LeaseTest, ALateAnswerGivesLessTimeAndNeverMore) {
  Lease lease({.ttl = absl::Seconds(10), .margin = absl::Seconds(3)});
  EXPECT_FALSE(lease.MayAct(absl::Seconds(100)));
  lease.OnGranted(absl::Seconds(100));  // Whenever the answer came.
  EXPECT_TRUE(lease.MayAct(absl::Milliseconds(106'999)));
  EXPECT_FALSE(lease.MayAct(absl::Seconds(107)));
}

TEST(LeaseTest, AnAnswerThatOvertookAnotherDoesNotShortenTheLease) {
  Lease lease({.ttl = absl::Seconds(10), .margin = absl::Seconds(3)});
  lease.OnGranted(absl::Seconds(103));
  lease.OnGranted(absl::Seconds(100));
  EXPECT_TRUE(lease.MayAct(absl::Seconds(109)));
}

TEST(LeaseTest, WhoHasLostTheLeaseNeverActsAgain) {
  Lease lease({});
  lease.OnGranted(absl::Seconds(100));
  lease.OnLost();
  lease.OnGranted(absl::Seconds(101));
  EXPECT_FALSE(lease.MayAct(absl::Seconds(101)));
}

TEST(LeaseTest, ItIsRenewedInTimeAndAskedForSoonerAfterAFailure) {
  Lease lease({.renew = absl::Seconds(3), .poll = absl::Milliseconds(500)});
  lease.OnGranted(absl::Seconds(100));
  EXPECT_EQ(lease.next(), absl::Seconds(103));
  lease.OnNoAnswer(absl::Seconds(103));
  EXPECT_EQ(lease.next(), absl::Milliseconds(103'500));
}

TEST(LeaseTest, UnderANewTermWhoMayActGoesOnAndWhoMayNotWaitsForTheOldLease) {
  Lease lease({.ttl = absl::Seconds(10), .margin = absl::Seconds(3)});
  lease.OnGranted(absl::Seconds(100), "1");
  EXPECT_TRUE(lease.MayAsk("2", absl::Seconds(106)));
  EXPECT_TRUE(lease.MayAsk("1", absl::Seconds(200)));
  EXPECT_FALSE(lease.MayAsk("2", absl::Seconds(200)));
  EXPECT_FALSE(lease.MayAsk("2", absl::Seconds(209)));
  EXPECT_FALSE(lease.MayAsk("3", absl::Seconds(209)));
  EXPECT_FALSE(lease.MayAsk("3", absl::Seconds(218)));
  EXPECT_TRUE(lease.MayAsk("3", absl::Seconds(219)));
}

// The store's side of the lease, as the scripts of redis_scripts.h have it.
struct FakeStore {
  std::string held, by;
  absl::Duration expires;

  bool Take(absl::Duration now, const std::string& token, bool renew, absl::Duration ttl) {
    if (now >= expires) held.clear();
    if (!held.empty() && held != token) return false;
    // An expired lease is renewed only if nobody has had it since.
    if (renew && held.empty() && by != token) return false;
    held = by = token;
    expires = now + ttl;
    return true;
  }
};

class World {
 public:
  // `calm`: nothing goes wrong but what the test does.
  World(uint32_t seed, bool calm) : random_(seed), calm_(calm) {
    for (int i = 0; i < 3; ++i) Start(&processes_.emplace_back());
  }

  // Lets 10 ms pass.
  void Step() {
    now_ += kStep;
    while (!messages_.empty() && messages_.begin()->first <= now_) {
      const std::function<void()> deliver = std::move(messages_.begin()->second);
      messages_.erase(messages_.begin());
      deliver();
    }
    for (Process& process : processes_) {
      if (!calm_) Disturb(&process);
      if (now_ >= process.paused_until) Run(&process);
    }
    if (!calm_ && Chance(0.0005)) store_away_until_ = now_ + Uniform(0, 20'000);
  }

  // The processes that act at this moment. A paused one does not.
  std::vector<std::string> Leaders() const {
    std::vector<std::string> leaders;
    for (const Process& process : processes_) {
      if (now_ >= process.paused_until && process.lease->MayAct(ClockOf(process)))
        leaders.push_back(process.token);
    }
    return leaders;
  }

  void Kill(const std::string& token) {
    for (Process& process : processes_) {
      if (process.token == token) Start(&process);
    }
  }

  absl::Duration now() const { return now_; }

 private:
  struct Process {
    std::string token;
    std::shared_ptr<Lease> lease;
    bool holds = false, waiting = false;
    absl::Duration ask_at;  // Of its own clock.
    double rate = 1;        // Of its clock.
    absl::Duration paused_until;
  };

  bool Chance(double p) { return std::uniform_real_distribution<>(0, 1)(random_) < p; }
  absl::Duration Uniform(int from_ms, int to_ms) {
    return absl::Milliseconds(std::uniform_int_distribution<>(from_ms, to_ms)(random_));
  }
  absl::Duration ClockOf(const Process& process) const { return now_ * process.rate; }

  void Start(Process* process) {
    const double rate = calm_ ? 1 : std::uniform_real_distribution<>(0.95, 1.05)(random_);
    *process = {.token = "process " + std::to_string(++started_),
                .lease = std::make_shared<Lease>(times_),
                .rate = rate};
  }

  void Disturb(Process* process) {
    if (Chance(0.0005)) process->paused_until = now_ + Uniform(0, 30'000);
    if (Chance(0.0001)) Start(process);
  }

  void Run(Process* process) {
    if (process->lease->lost()) return Start(process);  // It ends, and is started again.
    const absl::Duration clock = ClockOf(*process);
    const absl::Duration due = process->holds ? process->lease->next() : process->ask_at;
    if (process->waiting || clock < due) return;
    process->waiting = true;
    Ask(process, clock);
  }

  // Sends a request. It and its answer may be late or lost, and the request may be done although
  // its sender has given it up.
  void Ask(Process* process, absl::Duration sent) {
    const std::string token = process->token;
    const bool renew = process->holds;
    const absl::Duration there = calm_ ? kStep : Uniform(1, 1500);
    const absl::Duration back = calm_ ? kStep : Uniform(1, 1500);
    const bool request_lost = !calm_ && Chance(0.05), answer_lost = !calm_ && Chance(0.05);
    const absl::Duration done = std::max(now_ + there, store_away_until_);
    auto granted = std::make_shared<bool>(false);
    if (!request_lost) {
      Send(done, [=, this] { *granted = store_.Take(now_, token, renew, times_.ttl); });
    }
    const bool answered = !request_lost && !answer_lost && done + back < now_ + absl::Seconds(2);
    Send(answered ? done + back : now_ + absl::Seconds(2), [=, this] {
      if (process->token != token) return;  // It was killed.
      OnAnswer(process, sent, answered, *granted);
    });
  }

  // A paused process reads the answer once it goes on.
  void OnAnswer(Process* process, absl::Duration sent, bool answered, bool granted) {
    if (now_ < process->paused_until) {
      const std::string token = process->token;
      return Send(process->paused_until, [=, this] {
        if (process->token == token) OnAnswer(process, sent, answered, granted);
      });
    }
    process->waiting = false;
    process->ask_at = ClockOf(*process) + times_.poll;
    if (!answered) return process->lease->OnNoAnswer(ClockOf(*process));
    if (granted) {
      process->holds = true;
      process->lease->OnGranted(sent);
    } else if (process->holds) {
      process->lease->OnLost();
    }
  }

  void Send(absl::Duration when, std::function<void()> deliver) {
    messages_.emplace(when, std::move(deliver));
  }

  std::mt19937 random_;
  const bool calm_;
  const LeaseTimes times_;
  absl::Duration now_ = absl::Seconds(1000);
  absl::Duration store_away_until_;
  FakeStore store_;
  std::vector<Process> processes_ = [] {
    std::vector<Process> processes;
    processes.reserve(3);  // Messages point to them.
    return processes;
  }();
  std::multimap<absl::Duration, std::function<void()>> messages_;
  int started_ = 0;
};

// Lets ten minutes pass in the world, in which leaders come and go.
template <typename AnyWorld>
void ExpectOneLeaderAtAnyInstant(AnyWorld& world, uint32_t seed) {
  std::string last;
  int changes = 0;
  const absl::Duration end = world.now() + absl::Minutes(10);
  while (world.now() < end) {
    world.Step();
    const std::vector<std::string> leaders = world.Leaders();
    ASSERT_LE(leaders.size(), 1u) << "seed " << seed << ", " << leaders[0] << " and " << leaders[1]
                                  << " at " << world.now();
    if (!leaders.empty() && leaders[0] != last) ++changes, last = leaders[0];
  }
  ASSERT_GE(changes, 2) << "seed " << seed << ": no leader was ever replaced";
}

TEST(LeaseSimulationTest, ThereIsOneLeaderAtAnyInstantWhateverGoesWrong) {
  for (uint32_t seed = 0; seed < 100; ++seed) {
    World world(seed, /*calm=*/false);
    ASSERT_NO_FATAL_FAILURE(ExpectOneLeaderAtAnyInstant(world, seed));
  }
}

TEST(LeaseSimulationTest, AKilledLeaderIsReplacedWithinTwelveSeconds) {
  for (uint32_t seed = 0; seed < 100; ++seed) {
    World world(seed, /*calm=*/true);
    std::mt19937 random(seed);
    for (int kill = 0; kill < 5; ++kill) {
      const absl::Duration settled =
          world.now() + absl::Milliseconds(std::uniform_int_distribution<>(5000, 15000)(random));
      while (world.now() < settled) world.Step();
      ASSERT_EQ(world.Leaders().size(), 1u) << "seed " << seed;

      const absl::Duration killed = world.now();
      world.Kill(world.Leaders()[0]);
      while (world.Leaders().empty()) {
        world.Step();
        ASSERT_LE(world.now() - killed, absl::Seconds(12)) << "seed " << seed;
      }
    }
  }
}

// A store with Sentinels. Each failover begins a term whose master has data of some time ago. The
// old masters live on and answer whoever still speaks to them. Each Sentinel hears of a new term at
// a time of its own.
class FailoverWorld {
 public:
  explicit FailoverWorld(uint32_t seed) : random_(seed) {
    for (int i = 0; i < 3; ++i) Start(&processes_.emplace_back());
  }

  // Lets 10 ms pass.
  void Step() {
    now_ += kStep;
    history_.push_back(masters_.back());
    if (history_.size() > 1500) history_.pop_front();
    if (Chance(0.0004)) FailOver();
    for (Heard& sentinel : sentinels_) {
      if (now_ >= sentinel.at) sentinel.term = sentinel.next;
    }
    for (Process& process : processes_) {
      if (Chance(0.0005)) process.paused_until = now_ + Uniform(0, 30'000);
      if (Chance(0.0002)) Start(&process);
      if (Chance(0.0005)) process.cut_until = now_ + Uniform(0, 30'000);
      if (now_ >= process.paused_until && now_ >= process.ready) Run(&process);
    }
  }

  std::vector<std::string> Leaders() const {
    std::vector<std::string> leaders;
    for (const Process& process : processes_) {
      if (now_ >= process.paused_until && process.lease->MayAct(ClockOf(process)))
        leaders.push_back(process.token);
    }
    return leaders;
  }

  absl::Duration now() const { return now_; }
  size_t terms() const { return masters_.size(); }

 private:
  struct Master {
    std::string held, by;
    size_t term = 0;  // Under which the lease was last given here.
    absl::Duration expires;
  };
  struct Heard {
    size_t term = 0, next = 0;
    absl::Duration at;
  };
  // What a process does next. Between two of them anything may happen.
  enum class Phase { kFind, kAsk, kConfirm };
  struct Process {
    std::string token;
    std::shared_ptr<Lease> lease;
    double rate = 1;  // Of its clock.
    absl::Duration paused_until, cut_until, ready;
    bool holds = false;
    Phase phase = Phase::kFind;
    size_t term = 0;              // Of the master that it has found.
    absl::Duration sent;          // Of its own clock, as is `may_take`:
    absl::Duration may_take;      // when it may take the lease under
    size_t waits_for = SIZE_MAX;  // this term.
  };

  bool Chance(double p) { return std::uniform_real_distribution<>(0, 1)(random_) < p; }
  absl::Duration Uniform(int from_ms, int to_ms) {
    return absl::Milliseconds(std::uniform_int_distribution<>(from_ms, to_ms)(random_));
  }
  absl::Duration ClockOf(const Process& process) const { return now_ * process.rate; }

  void Start(Process* process) {
    *process = {.token = "process " + std::to_string(++started_),
                .lease = std::make_shared<Lease>(times_),
                .rate = std::uniform_real_distribution<>(0.95, 1.05)(random_)};
  }

  void FailOver() {
    Master master =
        history_[std::uniform_int_distribution<size_t>(0, history_.size() - 1)(random_)];
    masters_.push_back(master);
    history_.clear();
    history_.push_back(master);
    for (Heard& sentinel : sentinels_) {
      sentinel.term = sentinel.next;
      sentinel.next = masters_.size() - 1;
      sentinel.at = now_ + Uniform(0, 4000);
    }
  }

  // The term that two of three Sentinels name. They are asked at one moment, because whether one
  // of them is asked later makes no difference to the proof. SIZE_MAX: there is none.
  size_t FindTerm(const Process& process) const {
    if (now_ < process.cut_until) return SIZE_MAX;
    for (int i = 0; i < 3; ++i) {
      if (sentinels_[i].term == sentinels_[(i + 1) % 3].term) return sentinels_[i].term;
    }
    return SIZE_MAX;
  }

  // Begins again later.
  void Retry(Process* process) {
    process->phase = Phase::kFind;
    process->ready = now_ + times_.poll;
  }

  void Run(Process* process) {
    if (process->lease->lost()) return Start(process);
    const absl::Duration clock = ClockOf(*process);
    const absl::Duration delay = Uniform(1, 800);
    switch (process->phase) {
      case Phase::kFind: {
        if (process->holds && clock < process->lease->next()) return;
        // A connection that is there is used without asking.
        if (!process->holds || !process->lease->MayAct(clock) || Chance(0.3))
          process->term = FindTerm(*process);
        if (process->term == SIZE_MAX) return NoAnswer(process);
        process->phase = Phase::kAsk;
        process->sent = clock;
        process->ready = now_ + delay;
        if (!MayAsk(process, clock)) return NoAnswer(process);
        return;
      }
      case Phase::kAsk:
        if (!Ask(process)) return;
        process->phase = Phase::kConfirm;
        process->ready = now_ + delay;
        return;
      case Phase::kConfirm:
        if (FindTerm(*process) != process->term) {
          process->term = SIZE_MAX;
          return NoAnswer(process);
        }
        process->holds = true;
        process->lease->OnGranted(process->sent, std::to_string(process->term));
        process->phase = Phase::kFind;
    }
  }

  void NoAnswer(Process* process) {
    process->lease->OnNoAnswer(ClockOf(*process));
    Retry(process);
  }

  // The wait of one that renews, and of one that opens the store. The latter ends early if somebody
  // claims the lease.
  bool MayAsk(Process* process, absl::Duration clock) {
    if (process->holds) return process->lease->MayAsk(std::to_string(process->term), clock);
    if (process->waits_for != process->term || clock >= process->may_take) return true;
    if (now_ >= masters_[process->term].expires) return false;
    process->waits_for = SIZE_MAX;
    return true;
  }

  // Takes or renews the lease at the master, as the scripts of redis_scripts.h do.
  bool Ask(Process* process) {
    Master& master = masters_[process->term];
    if (now_ >= master.expires) master.held.clear();
    const bool other = !master.held.empty() && master.held != process->token;
    const bool led = master.term == process->term;  // Somebody has, under this term.
    // It has lost data. Then it does not count who led under an earlier term.
    const bool behind = Chance(0.5);
    if (process->holds &&
        (other || (master.held.empty() && master.by != process->token && (led || !behind)))) {
      process->lease->OnLost();
      return false;
    }
    const bool waited = std::exchange(process->waits_for, SIZE_MAX) == process->term;
    if (!process->holds && !waited && master.held.empty() && !led) {
      process->waits_for = process->term;
      process->may_take = ClockOf(*process) + times_.ttl + times_.renew + times_.poll;
      Retry(process);
      return false;
    }
    if (other) {
      Retry(process);
      return false;
    }
    master = {.held = process->token,
              .by = process->holds && led ? master.by : process->token,
              .term = process->term,
              .expires = now_ + times_.ttl};
    return true;
  }

  std::mt19937 random_;
  const LeaseTimes times_;
  absl::Duration now_ = absl::Seconds(1000);
  std::vector<Master> masters_ = std::vector<Master>(1);  // By term.
  std::deque<Master> history_;                            // Of the newest one, each 10 ms.
  Heard sentinels_[3];
  std::vector<Process> processes_;
  int started_ = 0;
};

TEST(LeaseSimulationTest, ThereIsOneLeaderAtAnyInstantWhateverFailsOver) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    FailoverWorld world(seed);
    ASSERT_NO_FATAL_FAILURE(ExpectOneLeaderAtAnyInstant(world, seed));
    ASSERT_GE(world.terms(), 5u) << "seed " << seed << ": it failed over too rarely";
  }
}

}  // namespace
}  // namespace sluice::meta
