#include "common/base/id.h"

#include <sys/random.h>

#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace sluice {

std::string ToHex(absl::string_view bytes) { return absl::BytesToHexString(bytes); }

absl::StatusOr<std::string> FromHex(absl::string_view hex) {
  if (hex.size() % 2 != 0)
    return absl::InvalidArgumentError(
        absl::StrCat("\"", hex, "\" has an odd number of hex digits"));
  for (const char c : hex) {
    if (!absl::ascii_isxdigit(c))
      return absl::InvalidArgumentError(absl::StrCat("\"", hex, "\" is not hexadecimal"));
  }
  return absl::HexStringToBytes(hex);
}

std::string RandomId16() {
  std::string id(16, '\0');
  SLUICE_CHECK(getrandom(id.data(), id.size(), 0) == 16);
  return id;
}

absl::StatusOr<Id16> Id16::FromBytes(absl::string_view bytes) {
  Id16 id;
  if (bytes.size() != id.bytes.size()) {
    return absl::InvalidArgumentError(absl::StrCat("an id has 16 bytes, not ", bytes.size()));
  }
  std::memcpy(id.bytes.data(), bytes.data(), bytes.size());
  return id;
}

}  // namespace sluice
