#pragma once

#include "absl/strings/string_view.h"

namespace sluice::controller {

// A file of the web page, which is part of the program (services/controller/ui/page).
struct Asset {
  absl::string_view path;  // Such as "/ui/app.js".
  const char* type;        // Its Content-Type.
  absl::string_view text;
};

// Null if there is no such file.
const Asset* FindAsset(absl::string_view path);

}  // namespace sluice::controller
