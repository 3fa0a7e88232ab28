#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/secret.h"

namespace sluice::redis {

// Where a Redis is, and how to reach it.
struct Endpoint {
  std::string host = "127.0.0.1";
  int port = 6379;
  int db = 0;
  bool tls = false;
  // PEM file with the authorities that may have signed the server's certificate. Empty: those of
  // the system. Used with `tls` only.
  std::string ca_file;
  // Empty: none. It is never part of a URL, because URLs appear in process lists and logs.
  Secret password;

  std::string str() const;      // HOST:PORT/DB, for people.
  std::string address() const;  // HOST:PORT, as of a Sentinel, which has no databases.
};

// Parses redis://HOST[:PORT][/DB] or, for TLS, rediss://HOST[:PORT][/DB]; an IPv6 host is in
// brackets.
// INVALID_ARGUMENT BAD_URL: it has another form, or contains a user or password.
// INVALID_ARGUMENT NOT_LOOPBACK: it is a redis:// to a host that is not on loopback. Password and
// data would go over the network in clear.
absl::StatusOr<Endpoint> ParseUrl(absl::string_view url);

// Where the Redis that takes writes is: at one address, or where its Sentinels say.
struct MasterSource {
  // Without Sentinels, this Redis. With them, what every Redis that they name has: `db`, `tls`,
  // `ca_file` and `password`. Its host and port mean nothing then.
  Endpoint redis;
  // All Sentinels of that Redis, each once. Those that require a password have that of the Redis.
  std::vector<Endpoint> sentinels;
  std::string name;  // By which the Sentinels know the master. Empty without Sentinels.

  std::string str() const;  // HOST:PORT/DB, or NAME at the Sentinels HOST:PORT, .., for people.
};

// Parses a URL of ParseUrl(), or that of Sentinels: redis+sentinel://HOST[:PORT],../NAME[/DB] or,
// for TLS, rediss+sentinel://... The port of a Sentinel is 26379 if it is not given. With TLS, both
// the Sentinels and the Redis that they name have it.
// INVALID_ARGUMENT: as ParseUrl(). BAD_URL: it names a Sentinel twice, which would count as two.
// NOT_LOOPBACK: one of the Sentinels is not on loopback.
absl::StatusOr<MasterSource> ParseMasterUrl(absl::string_view url);

// OK: the endpoint has TLS, or is on loopback.
// INVALID_ARGUMENT NOT_LOOPBACK: else. The message names it `what`, and advises a URL like `url`.
absl::Status CheckNotInClear(const Endpoint& endpoint, absl::string_view what,
                             absl::string_view url);

// Where a Redis is, as a daemon's command line says it.
struct EndpointFlags {
  std::string url;
  std::string password_file;      // Empty: none.
  std::string password_variable;  // Environment variable with the password if there is no file.
  std::string ca_file;            // Empty: none.
};
// Parses the URL, reads the password, and checks that the CA file can be read.
// INVALID_ARGUMENT: as ParseUrl(); or `ca_file` is given without TLS; or the password has a newline
// within.
// Else the errors of ReadFile().
absl::StatusOr<Endpoint> MakeEndpoint(const EndpointFlags& flags);
// The same with a URL of ParseMasterUrl().
absl::StatusOr<MasterSource> MakeMasterSource(const EndpointFlags& flags);

}  // namespace sluice::redis
