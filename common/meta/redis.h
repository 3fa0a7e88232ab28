#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "common/meta/store.h"

namespace sluice::meta {

// Opens a store in a Redis. The process that opens it holds a lease there (`target.lease`) until
// the store is destroyed, so one process at a time has it open. Under the prefix P there are
//   P:lease   the lease: a token and `target.holder`; a key that expires
//   P:state   a hash: `format`, `revision` (of the newest transaction), `by` (the lease under which
//             the store was last taken, written or rebuilt)
//   P:values  a hash: the store's keys, each with "<revision> <value>"
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
// Each call of Txn() waits two seconds for Redis at most, apart from writing everything back.
//
// Owns one thread, `lease`, which renews the lease.
// INVALID_ARGUMENT: the URL, the prefix, or the password file is wrong.
// FAILED_PRECONDITION: Redis refuses the connection or its certificate is not accepted; a setting
// of Redis would lose data, and the message names it; or a newer build wrote the data.
// UNAVAILABLE: Redis does not answer, or another process has the lease (HELD).
absl::StatusOr<std::unique_ptr<Store>> OpenRedis(const Target& target);

}  // namespace sluice::meta
