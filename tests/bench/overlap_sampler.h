#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "common/base/mutex.h"

namespace sluice::bench {

// How much of the time two kinds of threads of different processes run, and run at once: looks
// every few milliseconds whether one of them is running or ready to run, as /proc tells it. A
// thread is of a kind if its name is `thread`.
//
// Owns one thread, `sampler`, from construction to Stop().
class OverlapSampler {
 public:
  struct Kind {
    std::string thread;
    std::vector<pid_t> processes;
  };
  struct Shares {
    uint64_t samples = 0;
    double first = 0, second = 0, both = 0;  // Of the samples.
  };

  // `active` tells whether a sample counts now; called on the sampler.
  OverlapSampler(Kind first, Kind second, std::function<bool()> active);
  ~OverlapSampler();
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
