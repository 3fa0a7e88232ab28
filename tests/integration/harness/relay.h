#pragma once

#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/base/fd.h"
#include "common/base/mutex.h"

namespace sluice::integration {

// Passes TCP connections on to a port of loopback, as a network between two processes that a test
// can cut.
//
// Thread-safe. Owns one thread.
class Relay {
 public:
  explicit Relay(int to);
  ~Relay();
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  int port() const { return port_; }
  // Ends all connections, and each new one at once, until Heal().
  void Cut() ABSL_LOCKS_EXCLUDED(mu_);
  void Heal() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Pair {
    Fd near, far;
  };
  void Run();
  void Accept(bool is_cut);

  const int to_;
  Fd listener_;
  int port_ = 0;
  Fd wake_;                  // Written by Cut() and by the destructor.
  std::vector<Pair> pairs_;  // Of the thread.
  Mutex mu_;
  bool cut_ ABSL_GUARDED_BY(mu_) = false;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace sluice::integration
