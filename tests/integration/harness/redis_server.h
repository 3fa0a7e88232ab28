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
  // Null, with a failure of the test, if it does not come up. `password`: what it requires; empty:
  // none.
  static std::unique_ptr<RedisServer> Start(const std::string& password = "");

  redis::Endpoint endpoint() const { return {.port = port_, .password = password_}; }
  // One command, over a connection of the test's own; its answer, or a kError.
  redis::Reply Run(const redis::Command& command);

  void Signal(int signal) { process_->Signal(signal); }
  // kill -9, and waits for the end.
  void Kill();
  // Starts it again on its port, empty.
  absl::Status Restart();

 private:
  RedisServer() = default;

  int port_ = 0;
  std::string password_;
  std::unique_ptr<Process> process_;
  std::unique_ptr<redis::Connection> connection_;
};

}  // namespace sluice::integration
