#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace sluice::redis {
class MasterConnection;
struct Reply;
}  // namespace sluice::redis

namespace sluice::meta {

struct Stored {
  std::string value;
  int64_t revision = 0;  // Of the transaction that wrote the value.
};
using Content = std::map<std::string, Stored, std::less<>>;

// The number that `text` is, or -1.
int64_t RevisionOf(absl::string_view text);
// An error of a Redis that is away, or whose answer makes no sense for now.
absl::Status AwayError(absl::string_view message);

// A copy in memory of a store in Redis, which another process may write to at the same time. After
// the first Update(), the later ones read only what has changed.
//
// What has changed stands in P:changes, a stream to which every transaction adds its keys. Its
// entries have the IDs REVISION-1, REVISION-2, .. and the fields `writer` (a text that no two
// transactions share) and `key` (several). The copy knows the entry that it has read last. As long
// as the stream has that entry with the same writer, the copy is of the same history. Otherwise
// (the stream was cut, the store was written back, or a failover lost some transactions) everything
// is read again.
//
// Values are read after the stream. They may be of a later transaction, which the next Update()
// reads then too. So the copy is exact as soon as nobody writes, and may be a mixture of several
// revisions before.
//
// Not thread-safe.
class RedisCopy {
 public:
  // `prefix`: as Target::prefix.
  explicit RedisCopy(std::string prefix) : prefix_(std::move(prefix)) {}

  // Reads what has changed since the last call, or everything. Asks `cancelled` before each
  // exchange with Redis.
  // UNAVAILABLE: Redis does not answer; or the stream lacks the newest transaction, because a build
  // that knows no stream has written it.
  // DATA_LOSS STORE_DAMAGED: a value has no revision.
  // CANCELLED: `cancelled` has returned true.
  absl::Status Update(redis::MasterConnection& redis, const std::function<bool()>& cancelled);

  // The revision up to which the copy has read; 0: nothing was read yet.
  int64_t revision() const { return place_ ? place_->revision : 0; }
  // How many values the last Update() has read.
  int64_t values_read() const { return values_read_; }
  const Content& content() const { return content_; }
  // Moves the content out. The next Update() reads everything again.
  Content Take();

 private:
  // An entry of the stream.
  struct Place {
    int64_t revision = 0;
    std::string id;
    std::string writer;
    bool operator==(const Place&) const = default;
  };
  // Of an entry as XRANGE answers it.
  static Place PlaceOf(const redis::Reply& entry);
  std::string Key(absl::string_view part) const;
  // Reads all values, and then knows the end of the stream as it was before. UNAVAILABLE: the
  // stream ends before `newest`.
  absl::Status ReadAll(redis::MasterConnection& redis, int64_t newest,
                       const std::function<bool()>& cancelled);
  // Reads the stream from place_ to its end. Returns false if it does not continue the copy, or if
  // it ends before `newest`.
  absl::StatusOr<bool> ReadChanges(redis::MasterConnection& redis, int64_t newest,
                                   const std::function<bool()>& cancelled);
  // Reads the values of the keys that these entries of the stream name.
  absl::Status ReadValues(redis::MasterConnection& redis, absl::Span<const redis::Reply> changes);
  absl::Status Put(redis::MasterConnection& redis, const std::string& key, absl::string_view text);

  const std::string prefix_;
  Content content_;
  std::optional<Place> place_;  // The last entry that was read. Unset: the content means nothing.
  int64_t values_read_ = 0;
};

}  // namespace sluice::meta
