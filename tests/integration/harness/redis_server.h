#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/redis/redis.h"
#include "tests/integration/harness/process.h"

namespace sluice::integration {

// A redis-server of Debian's package on a free port of loopback, that keeps nothing on disk.
class RedisServer {
 public:
  // Returns null, and fails the test, if it does not start. `password`: what it requires; empty:
  // none.
  static std::unique_ptr<RedisServer> Start(const std::string& password = "");

  redis::Endpoint endpoint() const { return {.port = port_, .password = password_}; }
  // Runs one command over a connection of the test's own. An error is a reply of kind kError.
  redis::Reply Run(const redis::Command& command);

  void Signal(int signal) { process_->Signal(signal); }
  // Kills it with SIGKILL and waits for its end.
  void Kill();
  // Starts it again on the same port, without data.
  absl::Status Restart();

 private:
  RedisServer() = default;

  int port_ = 0;
  std::string password_;
  std::unique_ptr<Process> process_;
  std::unique_ptr<redis::Connection> connection_;
};

}  // namespace sluice::integration
