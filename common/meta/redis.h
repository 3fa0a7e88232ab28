#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/meta/redis_copy.h"
#include "common/meta/store.h"

namespace sluice::redis {
struct MasterSource;
}  // namespace sluice::redis

namespace sluice::meta {

// Reads along in a store in Redis that another process has open. When this process opens it, only
// what has changed since the last Follow() is left to be read. Changes nothing in Redis.
//
// Not thread-safe.
class RedisFollower {
 public:
  // INVALID_ARGUMENT: as OpenRedis().
  static absl::StatusOr<std::unique_ptr<RedisFollower>> Make(const Target& target);
  ~RedisFollower();

  // Reads what has changed since the last call, or everything. Asks `cancelled` before each
  // exchange with Redis, which ends after a second.
  // Errors: those of RedisCopy::Update() and of the connection.
  absl::Status Follow(const std::function<bool()>& cancelled);
  RedisCopy& copy() { return copy_; }

 private:
  RedisFollower(const redis::MasterSource& source, const std::string& prefix);

  const std::unique_ptr<redis::MasterConnection> redis_;
  RedisCopy copy_;
};

// Opens a store in a Redis. The process that opens it holds a lease there (`target.lease`) until
// the store is destroyed, so one process at a time has it open. Under the prefix P there are
//   P:lease   the lease: a token and `target.holder`; a key that expires
//   P:state   a hash: `format`, `revision` (of the newest transaction), `by` (the lease under which
//             the store was last taken, written, rebuilt or brought to a new term), `term` (with
//             Sentinels: that of the master when the lease was last given)
//   P:values  a hash: the store's keys, each with "<revision> <value>"
//   P:changes a stream: the keys that the newest transactions have changed (see RedisCopy)
//
// The whole content is also in memory, from which Get() and List() answer, so they neither wait nor
// fail. That copy is right, because only the holder of the lease writes. A transaction is compared
// in memory, and is one Lua script in Redis. The script does nothing unless the lease is still this
// process's and Redis is at the revision that memory is at. So a process that was paused writes
// nothing after another has taken over, and a transaction whose answer was lost is done once.
//
// If Redis is at a lower revision than memory (it was flushed, or started again from an older
// state), this process writes everything back. A Redis without any data is taken only after
// `renew` + `poll`, within which a process that has the data in memory would claim it.
//
// With Sentinels the store follows the master. When a connection is lost, or Redis refuses a write
// (READONLY: it has become a replica), it asks the Sentinels again, connects to the master that
// most of them name, and checks its role and settings as at the start. Replication does not wait,
// so the new master may lack the last writes that the old one has acknowledged. That is the case
// above: it is at a lower revision, and this process writes everything back. So an acknowledged
// write is lost only if this process ends too before it has reached the new master, or comes there
// after another one has led under the new term. It has lost the lease then (LEASE_LOST), and what
// the other one has written stays.
//
// Two masters may seem to lead at once: one that is cut off does not know that it was replaced.
// Therefore a lease counts only if after its renewal a majority of the Sentinels still names that
// Redis, and under a new master the lease is taken up by the rule of Lease::MayAsk(). A process
// that opens the store under a term in which nobody has led yet waits even longer, for `ttl` +
// `renew` + `poll` after it has found no lease there, so that one that has the data in memory comes
// first. It follows that nobody leads while most Sentinels are away.
//
// WAIT is not used, and `min-replicas-to-write` is not demanded. Neither makes an acknowledged
// write safe, because Sentinels may promote another replica than the one that had it. Both stop all
// writes while too few replicas are there: with one replica, after every failover. What they would
// protect against is the loss of leader and master within the same moment, when at most the newest
// events of jobs are lost. With two replicas or more, `min-replicas-to-write 1` in redis.conf is
// good: a master that is cut off then refuses writes (NOREPLICAS), which is UNAVAILABLE here.
//
// Each call of Txn() waits four seconds for Redis at most (to find, to connect, to check, to
// write), apart from Sentinels that do not answer, a second each, and from writing everything back.
//
// Owns one thread, `lease`, which renews the lease.
// INVALID_ARGUMENT: the URL, the prefix, or the password file is wrong; or password and data would
// go over a network in clear.
// FAILED_PRECONDITION: Redis refuses the connection or its certificate is not accepted; a setting
// of Redis would lose data, and the message names it; a newer build wrote the data; or the
// Sentinels do not know the master, or are more than the URL names (BAD_SENTINEL).
// UNAVAILABLE: Redis does not answer, another process has the lease (HELD), or the Sentinels name
// no master (NO_MASTER).
//
// What `copy` has read of the same target is not read again. It is empty afterwards. Null: none.
absl::StatusOr<std::unique_ptr<Store>> OpenRedis(const Target& target, RedisCopy* copy = nullptr);

// Looks at that Redis as OpenRedis() does, but changes nothing. Returns what was found in words:
// where the master is, and who has the lease.
// Errors: those of OpenRedis(), except HELD.
absl::StatusOr<std::string> DescribeRedis(const Target& target);

}  // namespace sluice::meta
