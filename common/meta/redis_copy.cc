#include "common/meta/redis_copy.h"

#include <set>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"
#include "common/redis/sentinel.h"

namespace sluice::meta {
namespace {

constexpr char kScanCount[] = "200";
constexpr char kChangesCount[] = "500";

absl::Status CheckNotCancelled(const std::function<bool()>& cancelled) {
  return cancelled() ? absl::CancelledError("the store is no longer read") : absl::OkStatus();
}

bool IsNil(const redis::Reply& reply) { return reply.kind == redis::Reply::Kind::kNil; }

// OK: `reply` is a list of `size` parts at least.
absl::Status CheckList(const redis::Reply& reply, size_t size, absl::string_view what) {
  if (reply.kind == redis::Reply::Kind::kList && reply.list.size() >= size) return absl::OkStatus();
  return AwayError(absl::StrCat("Redis does not list ", what, ": ", reply.text));
}

// OK: `entry` is one of P:changes, an ID and its fields.
absl::Status CheckChange(const redis::Reply& entry) {
  SLUICE_RETURN_IF_ERROR(CheckList(entry, 2, "a change of the store"));
  return CheckList(entry.list[1], 2, "the fields of a change of the store");
}

}  // namespace

int64_t RevisionOf(absl::string_view text) {
  int64_t revision = 0;
  return absl::SimpleAtoi(text, &revision) ? revision : -1;
}

absl::Status AwayError(absl::string_view message) {
  return ErrorWith(absl::StatusCode::kUnavailable,
                   {"STORE_AWAY", "SLUICE-META-0005", "", absl::Seconds(1)}, message);
}

std::string RedisCopy::Key(absl::string_view part) const {
  return absl::StrCat(prefix_, ":", part);
}

RedisCopy::Place RedisCopy::PlaceOf(const redis::Reply& entry) {
  const std::string& id = entry.list[0].text;
  return {RevisionOf(id.substr(0, id.find('-'))), id, entry.list[1].list[1].text};
}

absl::Status RedisCopy::Update(redis::MasterConnection& redis,
                               const std::function<bool()>& cancelled) {
  values_read_ = 0;
  SLUICE_RETURN_IF_ERROR(CheckNotCancelled(cancelled));
  const redis::Command ask = {"HGET", Key("state"), "revision"};
  SLUICE_ASSIGN_OR_RETURN(const std::vector<redis::Reply> said, redis.Run({&ask, 1}));
  const int64_t newest = IsNil(said[0]) ? 0 : RevisionOf(said[0].text);

  SLUICE_ASSIGN_OR_RETURN(bool done, ReadChanges(redis, newest, cancelled));
  if (!done) {
    SLUICE_RETURN_IF_ERROR(ReadAll(redis, newest, cancelled));
    SLUICE_ASSIGN_OR_RETURN(done, ReadChanges(redis, newest, cancelled));
  }
  if (done) return absl::OkStatus();
  place_ = std::nullopt;
  return AwayError(absl::StrCat("the store at ", redis.master().endpoint.str(),
                                " was replaced while it was read"));
}

Content RedisCopy::Take() {
  place_ = std::nullopt;
  return std::exchange(content_, {});
}

absl::Status RedisCopy::ReadAll(redis::MasterConnection& redis, int64_t newest,
                                const std::function<bool()>& cancelled) {
  place_ = std::nullopt;
  content_.clear();
  const redis::Command ask_end = {"XREVRANGE", Key("changes"), "+", "-", "COUNT", "1"};
  SLUICE_ASSIGN_OR_RETURN(const std::vector<redis::Reply> end, redis.Run({&ask_end, 1}));
  SLUICE_RETURN_IF_ERROR(CheckList(end[0], 0, "the changes of the store"));
  std::optional<Place> last;
  if (!end[0].list.empty()) {
    SLUICE_RETURN_IF_ERROR(CheckChange(end[0].list[0]));
    last = PlaceOf(end[0].list[0]);
  }
  if (!last || last->revision < newest) {
    return AwayError(absl::StrCat("the stream ", Key("changes"), " at ",
                                  redis.master().endpoint.str(), " ends before revision ", newest,
                                  ", because an older build writes the store"));
  }

  std::string cursor = "0";
  do {
    SLUICE_RETURN_IF_ERROR(CheckNotCancelled(cancelled));
    const redis::Command ask = {"HSCAN", Key("values"), cursor, "COUNT", kScanCount};
    SLUICE_ASSIGN_OR_RETURN(const std::vector<redis::Reply> said, redis.Run({&ask, 1}));
    SLUICE_RETURN_IF_ERROR(CheckList(said[0], 2, "the store"));
    cursor = said[0].list[0].text;
    const std::vector<redis::Reply>& found = said[0].list[1].list;
    for (size_t i = 0; i + 1 < found.size(); i += 2)
      SLUICE_RETURN_IF_ERROR(Put(redis, found[i].text, found[i + 1].text));
  } while (cursor != "0");
  // What has changed meanwhile stands in the stream after this entry.
  place_ = std::move(last);
  return absl::OkStatus();
}

absl::StatusOr<bool> RedisCopy::ReadChanges(redis::MasterConnection& redis, int64_t newest,
                                            const std::function<bool()>& cancelled) {
  while (place_) {
    SLUICE_RETURN_IF_ERROR(CheckNotCancelled(cancelled));
    const redis::Command ask = {"XRANGE", Key("changes"), place_->id, "+", "COUNT", kChangesCount};
    SLUICE_ASSIGN_OR_RETURN(const std::vector<redis::Reply> said, redis.Run({&ask, 1}));
    SLUICE_RETURN_IF_ERROR(CheckList(said[0], 0, "the changes of the store"));
    const std::vector<redis::Reply>& entries = said[0].list;
    for (const redis::Reply& entry : entries) SLUICE_RETURN_IF_ERROR(CheckChange(entry));

    // The entry that was read last comes first again.
    if (entries.empty() || PlaceOf(entries[0]) != *place_) return false;
    if (entries.size() == 1) return place_->revision >= newest;
    SLUICE_RETURN_IF_ERROR(ReadValues(redis, absl::MakeSpan(entries).subspan(1)));
    place_ = PlaceOf(entries.back());
  }
  return false;
}

absl::Status RedisCopy::ReadValues(redis::MasterConnection& redis,
                                   absl::Span<const redis::Reply> changes) {
  std::set<std::string> keys;
  for (const redis::Reply& change : changes) {
    const std::vector<redis::Reply>& fields = change.list[1].list;
    for (size_t i = 0; i + 1 < fields.size(); i += 2)
      if (fields[i].text == "key") keys.insert(fields[i + 1].text);
  }
  if (keys.empty()) return absl::OkStatus();

  redis::Command ask = {"HMGET", Key("values")};
  ask.insert(ask.end(), keys.begin(), keys.end());
  SLUICE_ASSIGN_OR_RETURN(const std::vector<redis::Reply> said, redis.Run({&ask, 1}));
  SLUICE_RETURN_IF_ERROR(CheckList(said[0], keys.size(), "values of the store"));
  size_t i = 0;
  for (const std::string& key : keys) {
    const redis::Reply& value = said[0].list[i++];
    if (IsNil(value)) content_.erase(key);
    else SLUICE_RETURN_IF_ERROR(Put(redis, key, value.text));
  }
  return absl::OkStatus();
}

absl::Status RedisCopy::Put(redis::MasterConnection& redis, const std::string& key,
                            absl::string_view text) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(text, absl::MaxSplits(' ', 1));
  const int64_t revision = RevisionOf(parts.first);
  if (revision <= 0) {
    return ErrorWith(
        absl::StatusCode::kDataLoss,
        {"STORE_DAMAGED", "SLUICE-META-0003", "put the data of that Redis back from a copy"},
        absl::StrCat("Redis at ", redis.master().endpoint.str(), ", ", Key("values"), ", key ", key,
                     ": its value does not begin with a revision"));
  }
  content_[key] = {std::string(parts.second), revision};
  ++values_read_;
  return absl::OkStatus();
}

}  // namespace sluice::meta
