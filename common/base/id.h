#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sluice {

// Two lower-case hex digits per byte.
std::string ToHex(absl::string_view bytes);
// INVALID_ARGUMENT: the length is odd, or a character is not a hex digit.
absl::StatusOr<std::string> FromHex(absl::string_view hex);

// 16 random bytes from the system, for request ids, lease ids and boot ids. Aborts if the system
// gives none. Use splitmix.h for random numbers that must be reproducible.
std::string RandomId16();

// An opaque id of 128 bits, ordered by its bytes.
struct Id16 {
  std::array<uint8_t, 16> bytes{};

  // INVALID_ARGUMENT: `bytes` does not have 16 bytes.
  static absl::StatusOr<Id16> FromBytes(absl::string_view bytes);
  absl::string_view view() const {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  std::string str() const { return std::string(view()); }
  std::string hex() const { return ToHex(view()); }
  auto operator<=>(const Id16&) const = default;
  template <typename H>
  friend H AbslHashValue(H h, const Id16& id) {
    return H::combine(std::move(h), id.bytes);
  }
};

}  // namespace sluice
