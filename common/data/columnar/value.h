#pragma once

#include <arrow/api.h>

#include "nlohmann/json.hpp"

namespace sluice::columnar {

// The JSON form of element i of a column: null, a boolean, number, text, list or object. Dates,
// times and decimal numbers become the text that Arrow prints for them.
// Takes about the bytes of its text from *room.
// Invalid: the type has no such form (raw bytes, say), a text is not UTF-8, a number is not finite,
// or there is not enough room.
arrow::Result<nlohmann::json> ValueAt(const arrow::Array& array, int64_t i, int64_t* room);

// The room of a value of a row.
inline constexpr int64_t kMostRowBytes = 64 << 20;

}  // namespace sluice::columnar
