#include "common/rpc/identity.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/status.h"

namespace sluice::rpc {
namespace {

constexpr absl::string_view kScheme = "spiffe://";
constexpr size_t kMaxNameBytes = 63;

absl::Status BadIdentity(absl::string_view uri) {
  return ErrorWith(
      absl::StatusCode::kUnauthenticated,
      {.reason = "BAD_IDENTITY",
       .catalogue = "SLUICE-AUTH-0003",
       .hint = "use a certificate of `sluice pki issue`"},
      absl::StrCat("'", uri, "' is not an identity; wanted: spiffe://DOMAIN/sluice/ROLE/NAME"));
}

}  // namespace

std::string DescribeIdentity(const Identity& identity) {
  return absl::StrCat(RoleName(identity.role), " '", identity.name, "'");
}

bool IsName(absl::string_view name) {
  constexpr absl::string_view kFirst = "abcdefghijklmnopqrstuvwxyz0123456789";
  constexpr absl::string_view kOther = "abcdefghijklmnopqrstuvwxyz0123456789._-";
  return !name.empty() && name.size() <= kMaxNameBytes &&
         kFirst.find(name.front()) != absl::string_view::npos &&
         name.find_first_not_of(kOther) == absl::string_view::npos;
}

std::string IdentityUri(absl::string_view domain, const Identity& identity) {
  return absl::StrCat(kScheme, domain, "/sluice/", RoleName(identity.role), "/", identity.name);
}

absl::StatusOr<Identity> ParseIdentity(absl::string_view uri, absl::string_view domain) {
  SLUICE_ASSIGN_OR_RETURN(const std::string found, DomainOf(uri));
  const std::vector<absl::string_view> parts =
      absl::StrSplit(uri.substr(kScheme.size() + found.size()), '/');
  if (parts.size() != 4 || parts[1] != "sluice") return BadIdentity(uri);
  const Identity identity = {ParseRole(parts[2]), std::string(parts[3])};
  if (identity.role == Role::kUnspecified || (identity.name != "*" && !IsName(identity.name)))
    return BadIdentity(uri);
  if (found == domain) return identity;
  return ErrorWith(
      absl::StatusCode::kUnauthenticated,
      {.reason = "OTHER_DOMAIN", .catalogue = "SLUICE-AUTH-0004"},
      absl::StrCat("'", uri, "' belongs to the domain '", found, "', not to '", domain, "'"));
}

absl::StatusOr<std::string> DomainOf(absl::string_view uri) {
  absl::string_view rest = uri;
  if (!absl::ConsumePrefix(&rest, kScheme)) return BadIdentity(uri);
  const absl::string_view domain = rest.substr(0, rest.find('/'));
  if (!IsName(domain)) return BadIdentity(uri);
  return std::string(domain);
}

}  // namespace sluice::rpc
