#include "common/base/loopback.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"

namespace sluice {

bool IsLoopback(absl::string_view host) {
  const bool numeric = absl::StartsWith(host, "127.") &&
                       host.find_first_not_of("0123456789.") == absl::string_view::npos;
  return numeric || host == "localhost" || host == "::1" || host == "[::1]";
}

std::string HostOfHeader(absl::string_view header) {
  const size_t colon = header.rfind(':');
  // The colons of an IPv6 address come before its bracket.
  const bool port =
      colon != absl::string_view::npos && header.find(']', colon) == absl::string_view::npos;
  return absl::AsciiStrToLower(port ? header.substr(0, colon) : header);
}

}  // namespace sluice
