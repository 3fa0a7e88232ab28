#pragma once

#include <string>

#include "absl/status/status.h"

namespace sluice::redis {
class MasterConnection;
}  // namespace sluice::redis

namespace sluice::meta {

// OK: this Redis is a master of its own and keeps what it has answered: `appendonly yes`,
// `appendfsync everysec` or `always`, `maxmemory-policy noeviction`, no Cluster.
// FAILED_PRECONDITION STORE: it is not; the message names the setting, and `where`.
absl::Status CheckRedis(redis::MasterConnection& redis, const std::string& where);

}  // namespace sluice::meta
