#pragma once

#include <string>

#include "common/base/utf8.h"

namespace sluice {

// A JSON value as text for a message, cut after 80 bytes. `Json` is nlohmann::json or
// nlohmann::ordered_json.
template <typename Json>
std::string JsonExcerpt(const Json& value) {
  return Excerpt(value.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace));
}

}  // namespace sluice
