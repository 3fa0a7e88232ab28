#include "common/base/loopback.h"

#include "absl/strings/match.h"

namespace sluice {

bool IsLoopback(absl::string_view host) {
  const bool numeric = absl::StartsWith(host, "127.") &&
                       host.find_first_not_of("0123456789.") == absl::string_view::npos;
  return numeric || host == "localhost" || host == "::1" || host == "[::1]";
}

}  // namespace sluice
