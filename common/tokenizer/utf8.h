#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace sluice {

// Length of the well-formed UTF-8 sequence at the start of `bytes`, 1 to 4; 0 if there is none.
size_t Utf8Length(absl::string_view bytes);
bool IsUtf8(absl::string_view bytes);
// Bytes at the end of `bytes` that begin a well-formed sequence and do not complete it, 0 to 3.
size_t Utf8IncompleteTail(absl::string_view bytes);
void AppendUtf8(uint32_t code_point, std::string* out);

// `bytes` with each maximal ill-formed part replaced by one U+FFFD (Unicode 3.9, "substitution of maximal subparts").
std::string Utf8Lossy(absl::string_view bytes);

}  // namespace sluice
