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
#include "common/meta/lease.h"

namespace sluice::meta {

// A key and its value, with the revision of the transaction that wrote it.
struct Entry {
  std::string key;
  std::string value;
  int64_t revision = 0;
};

// A condition of a transaction: `key` was last written at `revision`. 0: the key does not exist.
struct Compare {
  std::string key;
  int64_t revision = 0;

  bool operator==(const Compare&) const = default;
};

// A change by a transaction: it sets `key`, or deletes it if there is no value. To delete an absent
// key is no error.
struct Op {
  std::string key;
  std::optional<std::string> value;

  bool operator==(const Op&) const = default;
};

// The controller's store: an ordered map from keys to values. It is changed by transactions, which
// are on disk when they are answered. Each transaction that changes something (a deletion too) gets
// the next revision, and no revision is used twice. Keys are ordered by their bytes; the controller
// uses
//   names/N  jobs/ID/{spec,hash,status,result,events/SEQ,steps/K}  assign/ID  daemons/ID
//   fleet/floor
//
// One process at a time has the store open. Each kind of store ensures that.
//
// Every call may return these errors. Except after UNAVAILABLE, a transaction that fails has
// changed nothing.
// INVALID_ARGUMENT: a key does not have 1 to 512 bytes, or a value has more than 16 MiB.
// UNAVAILABLE: the store is away for now; try the same again later. A transaction may have been
// done. If the next call of Txn() repeats it, it is done once; any other call of Txn() does it
// first.
// RESOURCE_EXHAUSTED DISK_FULL or STORE_FULL: there is no room.
// ABORTED LEASE_LOST: another process has taken the store. This one must end.
// DATA_LOSS: the store is damaged.
//
// Thread-safe. Calls block for the disk or the network.
class Store {
 public:
  virtual ~Store() = default;

  // NOT_FOUND: there is no such key.
  virtual absl::StatusOr<Entry> Get(absl::string_view key) = 0;

  // The entries whose key begins with `prefix` and is above `after`, ordered by key. At most
  // `limit` entries; 0: all.
  virtual absl::StatusOr<std::vector<Entry>> List(absl::string_view prefix,
                                                  absl::string_view after = {}, int limit = 0) = 0;

  // Does all of `ops` in their order if all of `compares` hold, else nothing. Returns the revision
  // written, or the newest revision if `ops` is empty.
  // ABORTED LOST_RACE: a compare did not hold. The error's `current` is the revision of that key
  // (0: it does not exist).
  virtual absl::StatusOr<int64_t> Txn(std::vector<Compare> compares, std::vector<Op> ops) = 0;

  // OK: this process may act on what the store holds. Ask before each act that others can see.
  // UNAVAILABLE: it may not for now, because it has not heard from the store for too long.
  // ABORTED LEASE_LOST: it may never again.
  virtual absl::Status CheckMayAct() { return absl::OkStatus(); }

  // How often the store has lost data and got it back from this process's memory.
  virtual int64_t times_rebuilt() const { return 0; }

  // Sets one key and returns its revision. With `expected`, it does so only if the key is at that
  // revision (0: it does not exist yet).
  // ABORTED LOST_RACE: as in Txn().
  absl::StatusOr<int64_t> Put(std::string key, std::string value,
                              std::optional<int64_t> expected = std::nullopt) {
    std::vector<Compare> compares;
    if (expected) compares.push_back({key, *expected});
    std::vector<Op> ops;
    ops.push_back({std::move(key), std::move(value)});
    return Txn(std::move(compares), std::move(ops));
  }
};

// Where the store is, and what its kind needs to open it.
struct Target {
  std::string url;  // sqlite:FILE, or a URL of redis::ParseMasterUrl().
  // The rest is for Redis only. See redis::EndpointFlags.
  std::string password_file, ca_file;
  // Before each key, so that several fleets can share a Redis.
  std::string prefix = "sluice";
  // The name of this process, which others are told while it has the store.
  std::string holder;
  LeaseTimes lease;
};

// A kind of store that Open() knows.
struct Kind {
  const char* name;  // What stands before the colon of Target::url.
  const char* doc;
  absl::StatusOr<std::unique_ptr<Store>> (*open)(const Target& target);
};
// All kinds of store that this build has.
const std::vector<Kind>& Kinds();

// Opens the store.
// INVALID_ARGUMENT: there is no such kind; the message lists the known ones.
// UNAVAILABLE HELD: another process has it; `current` of the error is its Target::holder.
absl::StatusOr<std::unique_ptr<Store>> Open(const Target& target);

namespace internal {
// The checks that each kind of store makes of a change.
absl::Status CheckSizes(const Op& op);
// The error of a compare that does not hold: `compare.key` is at revision `current`.
absl::Status LostRaceError(const Compare& compare, int64_t current);
}  // namespace internal

}  // namespace sluice::meta
