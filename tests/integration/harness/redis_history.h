#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace sluice::integration {

// A change of a job store in Redis, as its append-only file has it.
struct StoreWrite {
  std::string writer;    // The lease under which it was made; another one for each leader.
  int64_t revision = 0;  // 0: the lease was taken, and nothing written.
};

// Who has written to the store whose Redis has its files in `dir`, in the order in which Redis did
// it. Redis must have written each command to disk before it answered (RedisServer::Options), so
// that the history is whole even if it was killed.
// DATA_LOSS: the file has another form.
absl::StatusOr<std::vector<StoreWrite>> ReadStoreHistory(const std::string& dir);

// OK if one leader at a time wrote: a writer that another one has followed never writes again, and
// each revision is one above the last. (After data was lost the revision may fall, but it is back
// before the next write.) The message names the first write that breaks this.
// `failed_over`: the Redis was a replica first, which may have missed writes before it became the
// master. The writer then may skip those that it has written back all at once.
absl::Status CheckOneLeaderAtATime(const std::vector<StoreWrite>& history,
                                   bool failed_over = false);

// How many writers there were.
int CountLeaders(const std::vector<StoreWrite>& history);

}  // namespace sluice::integration
