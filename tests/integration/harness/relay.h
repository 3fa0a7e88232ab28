#pragma once

#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "common/base/fd.h"
#include "common/base/mutex.h"

namespace sluice::integration {

// Passes TCP connections on to a port of loopback, as a network between two processes that a test
// can cut and make slow.
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
  // What comes from now on, the end of a connection included, arrives so much later: `there` at the
  // port, `back` at who has connected to the relay. So a request that its sender has given up still
  // arrives. Connections are accepted at once.
  void Delay(absl::Duration there, absl::Duration back) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // One direction of a connection.
  struct Flow {
    struct Chunk {
      absl::Duration due;  // By the monotonic clock.
      std::string bytes;   // Empty: the end.
    };
    std::deque<Chunk> under_way;
    bool ended = false;  // Its sender has closed the connection.
  };
  struct Pair {
    Fd near, far;
    Flow there, back;
  };
  static void Receive(int from, absl::Duration due, Flow* flow);
  static bool PassOn(int to, absl::Duration now, Flow* flow);
  int PollMilliseconds() const;
  void Run();
  void Accept(bool is_cut);

  const int to_;
  Fd listener_;
  int port_ = 0;
  Fd wake_;                  // Written by Cut() and by the destructor.
  std::vector<Pair> pairs_;  // Of the thread.
  Mutex mu_;
  bool cut_ ABSL_GUARDED_BY(mu_) = false;
  absl::Duration there_ ABSL_GUARDED_BY(mu_), back_ ABSL_GUARDED_BY(mu_);  // The delays.
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace sluice::integration
