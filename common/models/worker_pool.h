#pragma once

#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "common/base/mutex.h"

namespace sluice {

// A few threads that run one function together with their caller, and sleep between. Run() is for one caller at a time.
class WorkerPool {
 public:
  // `helpers` threads beside the caller's own, named sluice-decode.
  explicit WorkerPool(int helpers);
  ~WorkerPool();

  // Calls work(0) on this thread and work(1) .. work(helpers) on the others; returns when all have returned.
  void Run(const std::function<void(int)>& work) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Help(int index) ABSL_LOCKS_EXCLUDED(mu_);

  Mutex mu_;
  CondVar started_, finished_;
  const std::function<void(int)>* work_ ABSL_GUARDED_BY(mu_) = nullptr;
  uint64_t round_ ABSL_GUARDED_BY(mu_) = 0;  // Counts calls of Run().
  int busy_ ABSL_GUARDED_BY(mu_) = 0;        // Helpers still in this round.
  bool stop_ ABSL_GUARDED_BY(mu_) = false;

  std::vector<std::thread> helpers_;
};

}  // namespace sluice
