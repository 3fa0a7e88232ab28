#include "common/redis/endpoint.h"

#include <cstdlib>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/file.h"
#include "common/base/loopback.h"
#include "common/base/status.h"

namespace sluice::redis {
namespace {

constexpr uint64_t kMaxPassword = 4096;
constexpr uint64_t kMaxAuthorities = 4 << 20;

absl::Status BadUrl(absl::string_view why) {
  return ErrorWith(
      absl::StatusCode::kInvalidArgument,
      {.reason = "BAD_URL", .hint = "write it as redis://HOST[:PORT][/DB], or rediss://.. for TLS"},
      absl::StrCat("Redis URL: ", why));
}

absl::Status NotLoopbackError(const Endpoint& endpoint) {
  return ErrorWith(
      absl::StatusCode::kInvalidArgument,
      {.reason = "NOT_LOOPBACK",
       .catalogue = "SLUICE-AUTH-0020",
       .hint = absl::StrCat("enable TLS in that Redis (tls-port), and write rediss://",
                            endpoint.str())},
      absl::StrCat("redis://", endpoint.str(),
                   " is not on loopback; without TLS the password and all data would go over the "
                   "network in clear"));
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

}  // namespace

std::string Endpoint::str() const {
  return absl::StrCat(absl::StrContains(host, ':') ? absl::StrCat("[", host, "]") : host, ":", port,
                      "/", db);
}

absl::StatusOr<Endpoint> ParseUrl(absl::string_view url) {
  Endpoint endpoint;
  endpoint.tls = absl::ConsumePrefix(&url, "rediss://");
  if (!endpoint.tls && !absl::ConsumePrefix(&url, "redis://"))
    return BadUrl("it begins with neither redis:// nor rediss://");
  // A password in the URL would appear in process lists and logs.
  if (absl::StrContains(url, '@'))
    return BadUrl("it carries a user or password; give the password by file or environment");

  if (const size_t slash = url.find('/'); slash != url.npos) {
    const absl::string_view db = url.substr(slash + 1);
    if (!db.empty() && (!absl::SimpleAtoi(db, &endpoint.db) || endpoint.db < 0))
      return BadUrl(absl::StrCat("database \"", db, "\" is not a whole number of 0 or more"));
    url = url.substr(0, slash);
  }
  SLUICE_RETURN_IF_ERROR(ParseHostAndPort(url, &endpoint));

  if (!endpoint.tls && !IsLoopback(endpoint.host)) return NotLoopbackError(endpoint);
  return endpoint;
}

absl::StatusOr<Endpoint> MakeEndpoint(const EndpointFlags& flags) {
  SLUICE_ASSIGN_OR_RETURN(Endpoint endpoint, ParseUrl(flags.url));

  if (!flags.password_file.empty()) {
    SLUICE_ASSIGN_OR_RETURN(std::string text, ReadFile(flags.password_file, kMaxPassword));
    absl::StripTrailingAsciiWhitespace(&text);
    endpoint.password = Secret(std::move(text));
  } else if (const char* password = std::getenv(flags.password_variable.c_str());
             password != nullptr) {
    endpoint.password = Secret(password);
  }
  if (absl::StrContains(endpoint.password.Reveal(), '\n')) {
    return ErrorWith(
        absl::StatusCode::kInvalidArgument,
        {.reason = "BAD_PASSWORD", .hint = "write the password alone into the file"},
        absl::StrCat("the password for Redis at ", endpoint.str(), " has more than one line"));
  }

  if (flags.ca_file.empty()) return endpoint;
  if (!endpoint.tls) {
    return ErrorWith(
        absl::StatusCode::kInvalidArgument,
        {.reason = "NO_TLS",
         .hint = absl::StrCat("write rediss://", endpoint.str(), ", or leave the CA file away")},
        absl::StrCat("the CA file ", flags.ca_file, " is given for redis://", endpoint.str(),
                     ", which has no TLS"));
  }
  SLUICE_RETURN_IF_ERROR(ReadFile(flags.ca_file, kMaxAuthorities).status());
  endpoint.ca_file = flags.ca_file;
  return endpoint;
}

}  // namespace sluice::redis
