#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sluice {

std::string ToHex(absl::string_view bytes);
// INVALID_ARGUMENT: odd length or a character that is no hex digit.
absl::StatusOr<std::string> FromHex(absl::string_view hex);

// 16 random bytes from the system: request ids, lease ids, boot ids. For draws that must repeat,
// see splitmix.h.
std::string RandomId16();

// An opaque name of 128 bits, ordered by its bytes.
struct Id16 {
  std::array<uint8_t, 16> bytes{};

  // INVALID_ARGUMENT: not 16 bytes.
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
