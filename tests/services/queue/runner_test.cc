#include "services/queue/runner.h"

#include <atomic>
#include <thread>

#include "tests/services/queue/core/harness.h"

namespace sluice::queue {
namespace {

// The test uses threads of its own, so that ThreadSanitizer sees everything: rollouts that admit,
// wait, drop and leave, a timer, a watcher that comes and goes, and readers.
TEST(RunnerTest, AnyThreadMayCallAtAnyTimeAndEachCallIsAnsweredOnceOrForgotten) {
  constexpr int kRollouts = 3, kRounds = 200;
  Spec spec = SmallSpec();
  std::atomic<int> wakes = 0;
  JobRunner runner({.job = {.id = std::string(32, 'c')},
                    .name = "threads",
                    .clock = Clock::Real(),
                    .wake = [&](Instant) { ++wakes; }},
                   spec, std::make_shared<Rows>(std::vector<uint64_t>{1000}));
  const auto call = [&](const Caller& caller, Input input) {
    Reply reply;
    runner.Run(caller, std::move(input), [&](Reply answer) { reply = std::move(answer); });
    return reply;
  };

  SetJob set{.revision = 1, .spec = spec, .workers = {{"t", WorkerRole::kTrainer, 1}}};
  for (int r = 0; r < kRollouts; ++r)
    set.workers.push_back({absl::StrCat("r", r), WorkerRole::kRollout, 1});
  call({"controller", 0}, set);
  call({"t", 1}, Restore{});

  std::atomic<int> asked = 0, settled = 0;
  std::atomic<bool> over = false;

  std::vector<std::thread> threads;
  for (int r = 0; r < kRollouts; ++r) {
    threads.emplace_back([&, r] {
      const Caller caller{absl::StrCat("r", r), 1};
      call(caller, Renew{.loaded = {{0, {1, 0}, true}}});
      for (int i = 0; i < kRounds; ++i) {
        Id16 request;
        request.bytes = {static_cast<uint8_t>(r), static_cast<uint8_t>(i),
                         static_cast<uint8_t>(i >> 8)};
        ++asked;

        // 0: open, 1: answered, 2: forgotten.
        const auto state = std::make_shared<std::atomic<int>>(0);
        const uint64_t number = runner.Run(
            caller, Admit{.request = request, .room = 1}, [&, state, caller](Reply reply) {
              int open = 0;
              if (!state->compare_exchange_strong(open, 1)) return;
              ++settled;
              const auto* admitted = std::get_if<AdmitAnswer>(&reply);
              if (admitted == nullptr || admitted->grants.empty()) return;
              const queue::Grant& grant = admitted->grants[0];
              runner.Run(caller,
                         Drop{{{{.group = grant.group}, grant.members[0].lease.id, "bad_row"}}},
                         [](Reply) {});
            });

        // Every third call is forgotten, unless its answer came first.
        if (i % 3 == 0) {
          runner.ForgetCall(number);
          int open = 0;
          if (state->compare_exchange_strong(open, 2)) ++settled;
        }
      }
    });
  }

  threads.emplace_back([&] {
    while (!over) runner.Tick(), runner.NextWake();
  });
  threads.emplace_back([&] {
    while (!over) {
      int told = 0;
      runner.RemoveWatcher(runner.AddWatcher([&told](const WatchUpdate&) { ++told; }));
      EXPECT_TRUE(
          runner.ReadJob([](const Job& job, Instant) { return job.FindViolations(); }).empty());
    }
  });

  for (int r = 0; r < kRollouts; ++r) threads[r].join();
  runner.Stop(absl::UnavailableError("over"));
  over = true;
  for (size_t t = kRollouts; t < threads.size(); ++t) threads[t].join();

  EXPECT_EQ(asked, kRollouts * kRounds);
  EXPECT_EQ(settled, asked);
  EXPECT_TRUE(absl::IsUnavailable(std::get<absl::Status>(call({"t", 1}, Renew{}))));
}

}  // namespace
}  // namespace sluice::queue
