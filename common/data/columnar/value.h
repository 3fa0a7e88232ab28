#pragma once

#include <arrow/api.h>

#include "nlohmann/json.hpp"

namespace sluice::columnar {

// The JSON form of element i of a column: null, a boolean, number, text, list or object. Dates,
// times and decimal numbers become the text that Arrow prints for them.
// Invalid: the type has no such form (raw bytes, say), or a text is not UTF-8.
arrow::Result<nlohmann::json> ValueAt(const arrow::Array& array, int64_t i);

}  // namespace sluice::columnar
