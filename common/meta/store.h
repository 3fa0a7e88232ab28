#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sluice::meta {

// A value under its key, with the revision of the transaction that wrote it.
struct Entry {
  std::string key;
  std::string value;
  int64_t revision = 0;
};

// What a transaction requires: `key` was last written at `revision`; 0: it does not exist.
struct Compare {
  std::string key;
  int64_t revision = 0;
};

// What a transaction does: sets `key`, or without a value deletes it (no error where it is absent).
struct Op {
  std::string key;
  std::optional<std::string> value;
};

// The controller's memory: an ordered map from keys to values, changed by transactions that are on
// disk when they are answered. Revisions rise by one with each transaction that does something and
// are never re-used, deletions included. Keys are ordered by their bytes; the controller's are
//   names/N  jobs/ID/{spec,hash,status,result,events/SEQ,steps/K}  assign/ID  daemons/ID
// Keys have 1 to 512 bytes, values at most 16 MiB: INVALID_ARGUMENT.
//
// Every call may give UNAVAILABLE (the store is away for now; again later), RESOURCE_EXHAUSTED
// DISK_FULL, and DATA_LOSS (it is damaged); a transaction that fails has changed nothing.
//
// Thread-safe. Calls block for the disk or the network.
class Store {
 public:
  virtual ~Store() = default;

  // NOT_FOUND: no such key.
  virtual absl::StatusOr<Entry> Get(absl::string_view key) = 0;

  // Entries whose key begins with `prefix` and is above `after`, by key; at most `limit`, 0: all.
  virtual absl::StatusOr<std::vector<Entry>> List(absl::string_view prefix,
                                                  absl::string_view after = {}, int limit = 0) = 0;

  // Does all of `ops` in their order if all of `compares` hold, else nothing. Answers the revision
  // written (without ops: the newest). ABORTED LOST_RACE: a compare did not hold; the detail's
  // `current` is that key's revision (0: absent).
  virtual absl::StatusOr<int64_t> Txn(std::vector<Compare> compares, std::vector<Op> ops) = 0;

  // One key; with `expected`, by compare-and-set (0: the key is new). Answers its revision;
  // LOST_RACE as Txn.
  absl::StatusOr<int64_t> Put(std::string key, std::string value,
                              std::optional<int64_t> expected = std::nullopt) {
    std::vector<Compare> compares;
    if (expected) compares.push_back({key, *expected});
    std::vector<Op> ops;
    ops.push_back({std::move(key), std::move(value)});
    return Txn(std::move(compares), std::move(ops));
  }
};

// A kind of store that Open() knows.
struct Kind {
  const char* name;  // As in --store sqlite:DIR/meta.db.
  const char* doc;
  absl::StatusOr<std::unique_ptr<Store>> (*open)(const std::string& where);
};
const std::vector<Kind>& Kinds();

// Opens `KIND:WHERE`. INVALID_ARGUMENT: no such kind; the message lists them.
absl::StatusOr<std::unique_ptr<Store>> Open(absl::string_view url);

}  // namespace sluice::meta
