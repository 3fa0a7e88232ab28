#include "common/redis/endpoint.h"

#include <cstdlib>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/file.h"
#include "common/base/loopback.h"
#include "common/base/status.h"

namespace sluice::redis {
namespace {

constexpr uint64_t kMaxPassword = 4096;
constexpr uint64_t kMaxAuthorities = 4 << 20;
constexpr int kSentinelPort = 26379;
constexpr size_t kMaxSentinels = 15;

absl::Status BadUrl(absl::string_view why) {
  return ErrorWith(
      absl::StatusCode::kInvalidArgument,
      {.reason = "BAD_URL", .hint = "write it as redis://HOST[:PORT][/DB], or rediss://.. for TLS"},
      absl::StrCat("Redis URL: ", why));
}

absl::Status BadSentinelUrl(absl::string_view why) {
  return ErrorWith(absl::StatusCode::kInvalidArgument,
                   {.reason = "BAD_URL",
                    .hint = "write it as redis+sentinel://HOST[:PORT],HOST[:PORT],../NAME[/DB], or "
                            "rediss+sentinel://.. for TLS"},
                   absl::StrCat("URL of Sentinels: ", why));
}

// Reads HOST, HOST:PORT, [HOST] or [HOST]:PORT into `endpoint`.
absl::Status ParseHostAndPort(absl::string_view text, Endpoint* endpoint) {
  absl::string_view host = text, port;
  if (absl::StartsWith(text, "[")) {
    const size_t end = text.find(']');
    if (end == text.npos) return BadUrl("the [ of its host is not closed");
    host = text.substr(1, end - 1);
    port = text.substr(end + 1);
    if (!port.empty() && !absl::ConsumePrefix(&port, ":"))
      return BadUrl(absl::StrCat("\"", port, "\" follows the host; wanted: :PORT"));
  } else if (const size_t colon = text.rfind(':'); colon != text.npos) {
    host = text.substr(0, colon);
    port = text.substr(colon + 1);
    if (port.empty()) return BadUrl("its port is empty");
  }

  if (host.empty()) return BadUrl("it names no host");
  if (!port.empty() &&
      (!absl::SimpleAtoi(port, &endpoint->port) || endpoint->port < 1 || endpoint->port > 65535)) {
    return BadUrl(absl::StrCat("port \"", port, "\" is not within 1 to 65535"));
  }
  endpoint->host = std::string(host);
  return absl::OkStatus();
}

absl::Status ParseDatabase(absl::string_view text, int* db) {
  if (text.empty() || (absl::SimpleAtoi(text, db) && *db >= 0)) return absl::OkStatus();
  return BadUrl(absl::StrCat("database \"", text, "\" is not a whole number of 0 or more"));
}

// A password in the URL would appear in process lists and logs.
absl::Status CheckNoPassword(absl::string_view url) {
  if (!absl::StrContains(url, '@')) return absl::OkStatus();
  return BadUrl("it carries a user or password; give the password by file or environment");
}

// Reads what follows redis+sentinel://.
absl::StatusOr<MasterSource> ParseSentinels(absl::string_view text, bool tls) {
  SLUICE_RETURN_IF_ERROR(CheckNoPassword(text));
  const std::vector<absl::string_view> parts = absl::StrSplit(text, '/');
  if (parts.size() < 2 || parts[1].empty())
    return BadSentinelUrl("it does not say which master the Sentinels are to name: /NAME");
  if (parts.size() > 3)
    return BadSentinelUrl(absl::StrCat("\"", parts[3], "\" follows the database"));

  MasterSource source;
  source.name = std::string(parts[1]);
  source.redis.tls = tls;
  if (parts.size() == 3) SLUICE_RETURN_IF_ERROR(ParseDatabase(parts[2], &source.redis.db));
  for (const absl::string_view part : absl::StrSplit(parts[0], ',')) {
    Endpoint sentinel{.port = kSentinelPort, .tls = tls};
    SLUICE_RETURN_IF_ERROR(ParseHostAndPort(part, &sentinel));
    SLUICE_RETURN_IF_ERROR(
        CheckNotInClear(sentinel, absl::StrCat("the Sentinel at ", part), "rediss+sentinel://.."));
    for (const Endpoint& other : source.sentinels) {
      if (absl::EqualsIgnoreCase(other.address(), sentinel.address()))
        return BadSentinelUrl(absl::StrCat("it names the Sentinel ", other.address(), " twice"));
    }
    source.sentinels.push_back(std::move(sentinel));
  }
  if (source.sentinels.size() > kMaxSentinels) {
    return BadSentinelUrl(absl::StrCat("it names ", source.sentinels.size(),
                                       " Sentinels; the limit is ", kMaxSentinels));
  }
  return source;
}

// Reads the password and the CA file of `flags` into `redis`. `where` is for messages.
absl::Status ReadSecrets(const EndpointFlags& flags, const std::string& where, Endpoint* redis) {
  if (!flags.password_file.empty()) {
    SLUICE_ASSIGN_OR_RETURN(std::string text, ReadFile(flags.password_file, kMaxPassword));
    absl::StripTrailingAsciiWhitespace(&text);
    redis->password = Secret(std::move(text));
  } else if (const char* password = std::getenv(flags.password_variable.c_str());
             password != nullptr) {
    redis->password = Secret(password);
  }
  if (absl::StrContains(redis->password.Reveal(), '\n')) {
    return ErrorWith(absl::StatusCode::kInvalidArgument,
                     {.reason = "BAD_PASSWORD", .hint = "write the password alone into the file"},
                     absl::StrCat("the password for Redis at ", where, " has more than one line"));
  }

  if (flags.ca_file.empty()) return absl::OkStatus();
  if (!redis->tls) {
    return ErrorWith(
        absl::StatusCode::kInvalidArgument,
        {.reason = "NO_TLS", .hint = "write rediss in the URL, or leave the CA file away"},
        absl::StrCat("the CA file ", flags.ca_file, " is given for Redis at ", where,
                     ", which has no TLS"));
  }
  SLUICE_RETURN_IF_ERROR(ReadFile(flags.ca_file, kMaxAuthorities).status());
  redis->ca_file = flags.ca_file;
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckNotInClear(const Endpoint& endpoint, absl::string_view what,
                             absl::string_view url) {
  if (endpoint.tls || IsLoopback(endpoint.host)) return absl::OkStatus();
  return ErrorWith(
      absl::StatusCode::kInvalidArgument,
      {.reason = "NOT_LOOPBACK",
       .catalogue = "SLUICE-AUTH-0020",
       .hint = absl::StrCat("enable TLS in that Redis (tls-port), and write ", url)},
      absl::StrCat(what,
                   " is not on loopback; without TLS the password and all data would go over "
                   "the network in clear"));
}

std::string Endpoint::str() const { return absl::StrCat(address(), "/", db); }

std::string Endpoint::address() const {
  return absl::StrCat(absl::StrContains(host, ':') ? absl::StrCat("[", host, "]") : host, ":",
                      port);
}

absl::StatusOr<Endpoint> ParseUrl(absl::string_view url) {
  Endpoint endpoint;
  endpoint.tls = absl::ConsumePrefix(&url, "rediss://");
  if (!endpoint.tls && !absl::ConsumePrefix(&url, "redis://"))
    return BadUrl("it begins with neither redis:// nor rediss://");
  SLUICE_RETURN_IF_ERROR(CheckNoPassword(url));
  if (const size_t slash = url.find('/'); slash != url.npos) {
    SLUICE_RETURN_IF_ERROR(ParseDatabase(url.substr(slash + 1), &endpoint.db));
    url = url.substr(0, slash);
  }
  SLUICE_RETURN_IF_ERROR(ParseHostAndPort(url, &endpoint));

  SLUICE_RETURN_IF_ERROR(CheckNotInClear(endpoint, absl::StrCat("redis://", endpoint.str()),
                                         absl::StrCat("rediss://", endpoint.str())));
  return endpoint;
}

std::string MasterSource::str() const {
  if (sentinels.empty()) return redis.str();
  return absl::StrCat(name, " at the Sentinels ",
                      absl::StrJoin(sentinels, ", ", [](std::string* out, const Endpoint& at) {
                        absl::StrAppend(out, at.address());
                      }));
}

absl::StatusOr<MasterSource> ParseMasterUrl(absl::string_view url) {
  for (const bool tls : {false, true}) {
    absl::string_view rest = url;
    if (absl::ConsumePrefix(&rest, tls ? "rediss+sentinel://" : "redis+sentinel://"))
      return ParseSentinels(rest, tls);
  }
  SLUICE_ASSIGN_OR_RETURN(Endpoint redis, ParseUrl(url));
  return MasterSource{.redis = std::move(redis)};
}

absl::StatusOr<Endpoint> MakeEndpoint(const EndpointFlags& flags) {
  SLUICE_ASSIGN_OR_RETURN(Endpoint endpoint, ParseUrl(flags.url));
  SLUICE_RETURN_IF_ERROR(ReadSecrets(flags, endpoint.str(), &endpoint));
  return endpoint;
}

absl::StatusOr<MasterSource> MakeMasterSource(const EndpointFlags& flags) {
  SLUICE_ASSIGN_OR_RETURN(MasterSource source, ParseMasterUrl(flags.url));
  SLUICE_RETURN_IF_ERROR(ReadSecrets(flags, source.str(), &source.redis));
  for (Endpoint& sentinel : source.sentinels) {
    sentinel.ca_file = source.redis.ca_file;
    sentinel.password = source.redis.password;
  }
  return source;
}

}  // namespace sluice::redis
