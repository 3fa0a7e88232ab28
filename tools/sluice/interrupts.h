#pragma once

#include <functional>
#include <thread>

namespace sluice::cli {

// Takes SIGINT and SIGTERM from now on, for the whole process; make it before any other thread. `on_signal` gets 1, 2, .. on
// the thread `interrupts`. The destructor gives them back.
class Interrupts {
 public:
  explicit Interrupts(std::function<void(int count)> on_signal);
  ~Interrupts();
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

 private:
  std::function<void(int)> on_signal_;
  std::thread thread_;
};

}  // namespace sluice::cli
