#pragma once

#include "absl/strings/string_view.h"

namespace sluice {

// Whether `host` is surely on loopback: 127.x.x.x, ::1 (also in brackets) or localhost. Other names
// are not resolved.
bool IsLoopback(absl::string_view host);

}  // namespace sluice
