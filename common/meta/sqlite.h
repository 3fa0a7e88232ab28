#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/meta/store.h"

namespace sluice::meta {

// Opens a store in the SQLite file `path`, which is created if it is absent; its folder must exist.
// The file uses a write-ahead log and synchronous=FULL. One connection writes and one reads.
// Transactions that come while a commit is under way are committed together after it, with one
// sync.
//
// Only one process at a time may open it: the controller ensures that by the lock of its data
// directory.
// FAILED_PRECONDITION: the file was written by a newer build, or belongs to another program, or may
// not be opened.
// DATA_LOSS: it is not an SQLite file, or it is damaged.
absl::StatusOr<std::unique_ptr<Store>> OpenSqlite(const std::string& path);

}  // namespace sluice::meta
