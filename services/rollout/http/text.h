#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace sluice::rollout::http {

// Characters of UTF-8 text.
inline uint64_t CharactersIn(absl::string_view text) {
  return static_cast<uint64_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

}  // namespace sluice::rollout::http
