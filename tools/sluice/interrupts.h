#pragma once

#include <signal.h>

#include <functional>
#include <thread>

namespace sluice::cli {

// Takes SIGINT and SIGTERM, for the whole process; at most one at a time. `on_signal` gets 1, 2, ..
// on the thread `interrupts`, so it may call anything. The destructor gives the signals back.
class Interrupts {
 public:
  explicit Interrupts(std::function<void(int count)> on_signal);
  ~Interrupts();
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

 private:
  const std::function<void(int)> on_signal_;
  struct sigaction old_int_, old_term_;
  std::thread thread_;
};

}  // namespace sluice::cli
