#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/meta/store.h"

namespace sluice::meta {

// A store in the SQLite file `path` (made if absent; its folder must exist): write-ahead log,
// synchronous=FULL, one connection that writes and one that reads. Transactions that wait for each
// other share one commit and so one sync.
//
// One process at a time: the controller holds its data directory's lock. FAILED_PRECONDITION: the
// file was written by a newer build, or is another program's. DATA_LOSS: it is no SQLite file, or a
// damaged one.
absl::StatusOr<std::unique_ptr<Store>> OpenSqlite(const std::string& path);

}  // namespace sluice::meta
