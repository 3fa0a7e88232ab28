#pragma once

#include <signal.h>

#include <functional>
#include <thread>

namespace sluice::cli {

// Catches SIGINT and SIGTERM for the whole process. At most one may exist at a time. `on_signal` is
// called with 1 for the first signal, 2 for the second, and so on. It runs on a thread of this
// class, so it may call anything. The destructor restores the former handlers.
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
