#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/rpc/role.h"

namespace sluice::rpc {

// Who a process or a person is to others. Its certificate carries it as the URI
// spiffe://DOMAIN/sluice/ROLE/NAME, where DOMAIN is common to all processes that trust each other.
struct Identity {
  Role role = Role::kUnspecified;
  // The id of a daemon or the name of a person. "*" in the certificate of a whole role: any daemon
  // of the role, whose word for its own id is believed.
  std::string name;

  bool operator==(const Identity&) const = default;
};

// "rollout 'rollout-1'", for messages.
std::string DescribeIdentity(const Identity& identity);

// Whether `name` can be the id of a daemon, the name of a person or a domain: 1 to 63 of the
// characters a-z, 0-9, '.', '_' and '-', of which the first is a letter or a digit.
bool IsName(absl::string_view name);

std::string IdentityUri(absl::string_view domain, const Identity& identity);

// Reads an identity of `domain`.
// UNAUTHENTICATED BAD_IDENTITY: `uri` has another form, an unknown role or a bad name.
// UNAUTHENTICATED OTHER_DOMAIN: it belongs to another domain.
absl::StatusOr<Identity> ParseIdentity(absl::string_view uri, absl::string_view domain);

// The domain of an identity or of an authority, "spiffe://DOMAIN" with or without a path.
// UNAUTHENTICATED BAD_IDENTITY: `uri` has another form.
absl::StatusOr<std::string> DomainOf(absl::string_view uri);

}  // namespace sluice::rpc
