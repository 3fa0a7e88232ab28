#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/base/status.h"
#include "common/meta/redis.h"
#include "common/meta/sqlite.h"
#include "common/meta/store.h"

namespace sluice::meta {
namespace {

absl::StatusOr<std::unique_ptr<Store>> OpenSqliteTarget(const Target& target) {
  return OpenSqlite(std::string(absl::StripPrefix(target.url, "sqlite:")));
}

absl::StatusOr<std::unique_ptr<Store>> OpenRedisTarget(const Target& target) {
  return OpenRedis(target);
}

}  // namespace

const std::vector<Kind>& Kinds() {
  static const auto* const kinds = new std::vector<Kind>{
      {"sqlite", "a file of this machine: sqlite:DIR/meta.db", &OpenSqliteTarget},
      {"redis", "a Redis on loopback: redis://HOST[:PORT][/DB]", &OpenRedisTarget},
      {"rediss", "a Redis with TLS: rediss://HOST[:PORT][/DB]", &OpenRedisTarget},
      {"redis+sentinel",
       "a Redis on loopback that Sentinels watch: redis+sentinel://HOST[:PORT],../NAME[/DB]",
       &OpenRedisTarget},
      {"rediss+sentinel", "the same with TLS: rediss+sentinel://HOST[:PORT],../NAME[/DB]",
       &OpenRedisTarget},
  };
  return *kinds;
}

absl::StatusOr<std::unique_ptr<Store>> Open(const Target& target) {
  const size_t colon = target.url.find(':');
  const absl::string_view name = absl::string_view(target.url).substr(0, colon);
  for (const Kind& kind : Kinds()) {
    if (name == kind.name && colon != std::string::npos) return kind.open(target);
  }

  const std::string known = absl::StrJoin(Kinds(), "; ", [](std::string* out, const Kind& kind) {
    absl::StrAppend(out, kind.name, " (", kind.doc, ")");
  });
  return ErrorWith(absl::StatusCode::kInvalidArgument,
                   {"STORE", "SLUICE-META-0001", "name one of these"},
                   absl::StrCat("\"", target.url, "\" names no job store; this build has ", known));
}

namespace internal {
namespace {
constexpr size_t kMaxKey = 512;
constexpr size_t kMaxValue = 16u << 20;
}  // namespace

absl::Status CheckSizes(const Op& op) {
  if (op.key.empty() || op.key.size() > kMaxKey) {
    return absl::InvalidArgumentError(
        absl::StrCat("a key has ", op.key.size(), " bytes; it must have 1 to ", kMaxKey));
  }
  if (op.value && op.value->size() > kMaxValue) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the value of ", op.key, " has ", op.value->size(), " bytes; the limit is ", kMaxValue));
  }
  return absl::OkStatus();
}

absl::Status LostRaceError(const Compare& compare, int64_t current) {
  return ErrorWith(
      absl::StatusCode::kAborted, {.reason = "LOST_RACE", .current = absl::StrCat(current)},
      absl::StrCat(compare.key, " is at revision ", current, ", not ", compare.revision));
}
}  // namespace internal

}  // namespace sluice::meta
