#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "common/base/mutex.h"

namespace sluice::bench {

// Measures how much of the time each of two kinds of threads runs, and how much of it both run at
// once. Every few milliseconds it reads from /proc whether any thread of a kind is running or ready
// to run. A thread is of a kind if it is named `thread` and belongs to one of `processes`.
//
// Owns one thread, the sampler, from construction to Stop().
class OverlapSampler {
 public:
  struct Kind {
    std::string thread;
    std::vector<pid_t> processes;
  };
  struct Shares {
    uint64_t samples = 0;
    double first = 0, second = 0, both = 0;  // Shares of the samples, from 0 to 1.
  };

  // `active` tells whether a sample counts. It is called on the sampler's thread.
  OverlapSampler(Kind first, Kind second, std::function<bool()> active);
  ~OverlapSampler();
  // Ends the sampler and returns the shares. Idempotent.
  Shares Stop();

 private:
  void Run();

  const Kind first_, second_;
  const std::function<bool()> active_;
  Mutex mu_;
  CondVar stopped_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t samples_ = 0, first_runs_ = 0, second_runs_ = 0, both_run_ = 0;
  std::thread thread_;
};

}  // namespace sluice::bench
