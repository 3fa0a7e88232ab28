#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/redis/redis.h"
#include "tests/integration/harness/process.h"

namespace sluice::integration {

// A port of loopback on which nobody listens now.
int FindFreePort();

// Makes the folder `dir` with a certificate of a Redis on 127.0.0.1, of an authority of its own,
// for RedisServer::Options::tls_dir. Returns `dir`.
std::string MakeRedisTlsDir(const std::string& dir);

// A redis-server of Debian's package on a free port of loopback.
class RedisServer {
 public:
  struct Options {
    std::string password;  // What it requires; empty: none.
    // A folder with its certificate (common/pki/tls_dir.h). It then speaks TLS alone. Empty: it
    // speaks no TLS.
    std::string tls_dir;
    // Whether it keeps its data in an append-only file. It then answers a write once the write is
    // on disk.
    bool durable = false;
    std::vector<std::string> args;  // Further arguments.
  };
  // Returns null, and fails the test, if it does not start.
  static std::unique_ptr<RedisServer> Start(Options options);
  static std::unique_ptr<RedisServer> Start() { return Start(Options()); }
  ~RedisServer();

  redis::Endpoint endpoint() const;
  // The folder of its files.
  const std::string& dir() const { return dir_; }
  // Runs one command over a connection of the test's own. An error is a reply of kind kError.
  redis::Reply Run(const redis::Command& command);

  void Signal(int signal) { process_->Signal(signal); }
  // Kills it with SIGKILL and waits for its end.
  void Kill();
  // Starts it again on the same port, with what it has on disk.
  absl::Status Restart();

 private:
  RedisServer() = default;

  Options options_;
  int port_ = 0;
  std::string dir_;
  std::unique_ptr<Process> process_;
  std::unique_ptr<redis::Connection> connection_;
};

}  // namespace sluice::integration
