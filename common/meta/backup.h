#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/meta/store.h"

// A copy of a store in one file, which any kind of store can be filled from.
namespace sluice::meta {

// The bytes of such a file, from all entries of a store as Store::List("") returns them. They are a
// line "sluice-meta 1"; of each entry the sizes of key and value (4 bytes each, little-endian), the
// key and the value; a key size of 0; the number of entries (8 bytes); and the CRC32C of everything
// before it (4 bytes). Revisions are left out, because a new store draws its own.
std::string EncodeBackup(const std::vector<Entry>& entries);

// DATA_LOSS BAD_CRC: the file is cut or damaged.
// FAILED_PRECONDITION STORE: it is not such a file, or a newer build wrote it.
absl::StatusOr<std::vector<Entry>> DecodeBackup(absl::string_view bytes);

// Puts `entries` into the store. If it is not empty, `replace` says whether they take the place of
// what is there. They do not become visible at once: a store in which a restore was broken off has
// a mark (IsHalfRestored()), and the next restore needs `replace`.
// FAILED_PRECONDITION NOT_EMPTY: the store is not empty, and not `replace`.
// Else the errors of Store::Txn().
absl::Status RestoreBackup(Store& store, const std::vector<Entry>& entries, bool replace);

// Whether a restore of this store was broken off.
absl::StatusOr<bool> IsHalfRestored(Store& store);

}  // namespace sluice::meta
