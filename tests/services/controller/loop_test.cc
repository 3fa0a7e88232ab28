#include "services/controller/loop.h"

#include <gtest/gtest.h>

#include "common/base/watchdog.h"
#include "tests/services/controller/world.h"

namespace sluice::controller {
namespace {

// Notes what the watchdog says of a process in the middle of a transaction.
class WatchedStore : public meta::Store {
 public:
  explicit WatchedStore(meta::Store* store) : store_(store) {}

  absl::StatusOr<meta::Entry> Get(absl::string_view key) override { return store_->Get(key); }
  absl::StatusOr<std::vector<meta::Entry>> List(absl::string_view prefix, absl::string_view after,
                                                int limit) override {
    return store_->List(prefix, after, limit);
  }
  absl::StatusOr<int64_t> Txn(std::vector<meta::Compare> compares,
                              std::vector<meta::Op> ops) override {
    ++transactions;
    seen.Update(ProcessWatchdog()->Check());
    return store_->Txn(std::move(compares), std::move(ops));
  }

  int transactions = 0;
  absl::Status seen;

 private:
  meta::Store* const store_;
};

TEST(LoopTest, ALongTransactionDoesNotCountAsALoopThatIsStuck) {
  // Whatever takes any time is too long for a loop that does not say what it does.
  ProcessWatchdog()->SetLimit(absl::ZeroDuration());
  World world;
  WatchedStore store(world.store());
  Loop loop(std::move(world.core), &store, &world.clock);
  loop.Start({.set_job = [](Controller&, const SetJobCall&) {},
              .release = [](const ReleaseCall&) {},
              .daemon_changed = [](Controller&, const std::string&) {},
              .job_changed = [](Controller&, const std::string&) {},
              .diagnose = [](Controller&, const std::string&) {},
              .tick = [](Controller&) {},
              .transaction_tried = [](const char*, absl::Duration) {}});
  loop.Post([](Controller& core, Instant now) {
    const std::string id(32, '0');
    EXPECT_TRUE(core.Submit(now, {id, "digits", "aa", "spec", World::DefaultNeeds()}).ok());
  });
  loop.Stop();  // It first does what was posted.
  ProcessWatchdog()->SetLimit(Watchdog::kLimit);

  EXPECT_GE(store.transactions, 1);
  EXPECT_TRUE(store.seen.ok()) << store.seen;
}

}  // namespace
}  // namespace sluice::controller
