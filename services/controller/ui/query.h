#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sluice::controller {

// What follows the "?" of a request: NAME=VALUE, separated by "&".
struct Query {
  std::map<std::string, std::string> values;

  // Decodes %XX and "+". Of a name that comes twice, the last value counts.
  static Query Parse(absl::string_view text);

  // The value of this name; empty if it is absent.
  std::string Find(const std::string& name) const;
  // The number of this name, or `otherwise` if it is absent.
  // INVALID_ARGUMENT: it is not a whole number from `least` to `most`.
  absl::StatusOr<int64_t> FindNumber(const std::string& name, int64_t otherwise, int64_t least,
                                     int64_t most) const;
};

}  // namespace sluice::controller
