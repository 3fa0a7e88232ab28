#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/redis/sentinel.h"
#include "tests/integration/harness/process.h"
#include "tests/integration/harness/redis_server.h"

namespace sluice::integration {

// A Redis with one replica and three Sentinels, all of Debian's package and on loopback. A master
// that does not answer for a second is replaced.
class RedisGroup {
 public:
  struct Options {
    std::string password;            // Of the Redis servers and of the Sentinels; empty: none.
    std::string tls_dir;             // As RedisServer::Options.
    std::vector<std::string> args;   // Further arguments of both Redis servers.
    std::vector<std::string> lines;  // Further lines of the Sentinels' files.
    bool replica = true;             // Without one nothing can be failed over.
  };
  // Returns once the replica has the master's data and the Sentinels know each other and it.
  // Returns null, and fails the test, if that does not happen.
  static std::unique_ptr<RedisGroup> Start(Options options);
  static std::unique_ptr<RedisGroup> Start() { return Start(Options()); }
  ~RedisGroup();

  // redis+sentinel://.. of all Sentinels, or rediss+sentinel://..
  std::string url() const;
  // The same with other ports, such as those of relays.
  std::string UrlOf(const std::vector<int>& ports) const;
  const std::vector<int>& ports() const { return ports_; }  // Of the Sentinels.
  RedisServer& server(int index) { return *servers_[static_cast<size_t>(index)]; }

  // Runs one command on a Sentinel.
  redis::Reply Ask(int sentinel, const redis::Command& command);
  // Waits until most Sentinels name this server. False: they do not after kLong.
  bool AwaitMaster(int index);
  // Waits until a text is in the answer of a server to INFO. False: it is not after kLong.
  bool AwaitInfo(int index, const std::string& text);
  void SignalSentinel(int sentinel, int signal) {
    sentinels_[static_cast<size_t>(sentinel)]->Signal(signal);
  }
  // Starts one Sentinel more. False: the others do not know it after kLong.
  bool AddSentinel();
  // What state:term of a store would be that is kept under the first master from the start. A store
  // that has it is opened without a wait.
  std::string FirstTerm();

 private:
  RedisGroup() = default;
  absl::Status StartSentinel();
  bool IsReady();

  Options options_;
  std::string dir_;
  std::vector<std::unique_ptr<RedisServer>> servers_;
  std::vector<int> ports_;
  std::vector<std::unique_ptr<Process>> sentinels_;
  std::vector<std::unique_ptr<redis::Connection>> connections_;
};

}  // namespace sluice::integration
