#include "common/models/parallel.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>

#include "common/models/team.h"

namespace sluice {
namespace {

struct Helpers {
  std::mutex mu;  // Held while a loop runs.
  std::function<int()> threads = [] { return 1; };
  Team team{1, "sluice-train"};
};

// Never destroyed, because a loop may still run while the process ends.
Helpers& TheHelpers() {
  static Helpers* const helpers = new Helpers;
  return *helpers;
}

}  // namespace

void SetParallelThreads(std::function<int()> threads) {
  Helpers& helpers = TheHelpers();
  const std::lock_guard<std::mutex> lock(helpers.mu);
  helpers.threads = std::move(threads);
}

void ParallelEach(int64_t n, absl::FunctionRef<void(int64_t)> work) {
  Helpers& helpers = TheHelpers();
  const std::unique_lock<std::mutex> lock(helpers.mu, std::try_to_lock);
  const int threads = lock.owns_lock() ? std::max(1, helpers.threads()) : 1;
  if (threads == 1 || n < 2) {
    for (int64_t i = 0; i < n; ++i) work(i);
    return;
  }

  helpers.team.Resize(threads);
  std::atomic<int64_t> next{0};
  helpers.team.Offer([&](int) {
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < n;) work(i);
  });
}

void ParallelFor(int64_t n, int64_t grain, absl::FunctionRef<void(int64_t, int64_t)> work) {
  Helpers& helpers = TheHelpers();
  const std::unique_lock<std::mutex> lock(helpers.mu, std::try_to_lock);
  const int64_t most = lock.owns_lock() ? std::max(1, helpers.threads()) : 1;
  const int64_t parts = std::min(most, (n + grain - 1) / std::max<int64_t>(1, grain));
  if (parts < 2) {
    if (n > 0) work(0, n);
    return;
  }

  helpers.team.Resize(static_cast<int>(most));
  const int64_t size = (n + parts - 1) / parts;
  std::atomic<int64_t> next{0};
  helpers.team.Offer([&](int) {
    for (int64_t begin; (begin = size * next.fetch_add(1, std::memory_order_relaxed)) < n;) {
      work(begin, std::min(n, begin + size));
    }
  });
}

}  // namespace sluice
