#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/redis/redis.h"

// Redis Sentinel: several processes that watch a Redis and its replicas. When the master fails,
// they make a replica the master, and whoever asks them is told the new one.
namespace sluice::redis {

// The Redis that takes writes.
struct Master {
  Endpoint endpoint;
  // Names the time in which it is the master: each failover begins a new term, and no term comes
  // back. Empty without Sentinels.
  std::string term;
  // How many Sentinels of it there are, by the word of those that name it. 0 without Sentinels.
  size_t sentinels = 0;
};

// Finds the master of a source.
//
// A Sentinel that is cut off from the others goes on to name the old master. Therefore only what
// the majority of the source's Sentinels says at one time counts. Once a process has heard of a new
// term in this way, no process hears of an older one: the two majorities share a Sentinel, and a
// Sentinel never goes back. This needs the same list of Sentinels in all processes, with an address
// of its own for each: behind one address of several, another Sentinel may answer each time.
//
// Not thread-safe.
class MasterFinder {
 public:
  // Each Sentinel is waited for `timeout` at most.
  MasterFinder(MasterSource source, absl::Duration timeout);
  ~MasterFinder();

  // Asks one Sentinel after the other until a majority names the same master under the same term.
  // Without Sentinels it returns the only Redis and asks nobody.
  // UNAVAILABLE NO_MASTER: no majority answers, or they do not agree (yet).
  // FAILED_PRECONDITION BAD_SENTINEL: most of them know no master of this name, or are no
  // Sentinels; or the errors of Connection::Connect().
  // INVALID_ARGUMENT NOT_LOOPBACK: the master would have to be spoken to in clear over a network.
  absl::StatusOr<Master> Find();

 private:
  struct Sentinel;
  absl::StatusOr<Master> Ask(Sentinel& sentinel);
  absl::Status Connect(Sentinel& sentinel);

  const MasterSource source_;
  const absl::Duration timeout_;
  std::vector<std::unique_ptr<Sentinel>> sentinels_;  // Those that answered last time are first.
};

// A connection to the Redis that is the master at the moment of Connect().
//
// Not thread-safe.
class MasterConnection {
 public:
  // Each wait for the Redis ends after `timeout`, and for a Sentinel after a second.
  MasterConnection(const MasterSource& source, absl::Duration timeout);

  // Closes the old connection if there is one, finds the master and connects to it.
  // UNAVAILABLE NO_MASTER: the Sentinels name none, or one that has not become a master yet.
  // Else the errors of MasterFinder::Find() and Connection::Connect().
  absl::Status Connect();
  // As Connection::Run(). UNAVAILABLE: the connection is closed then.
  absl::StatusOr<std::vector<Reply>> Run(absl::Span<const Command> commands);
  // OK: this Redis is still the master, in the same term.
  // UNAVAILABLE: the Sentinels name another one, and the connection is closed; or no majority of
  // them answers.
  absl::Status CheckIsMaster();
  // OK: the last Connect() found no more Sentinels than the source lists. Ask once, at the start: a
  // Sentinel that is added to a running group is no reason to stop.
  // FAILED_PRECONDITION BAD_SENTINEL: there are more. One address may stand for several of them,
  // and then a single one that is cut off could be a majority.
  absl::Status CheckAllAreListed() const;

  void Close() { connection_ = nullptr; }
  bool connected() const { return connection_ != nullptr; }
  // Of the last Connect() that succeeded.
  const Master& master() const { return master_; }

 private:
  const size_t sentinels_;  // How many the source lists.
  const absl::Duration timeout_;
  MasterFinder finder_;
  Master master_;
  std::unique_ptr<Connection> connection_;  // Null without a connection.
};

}  // namespace sluice::redis
