#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace sluice {

// Whether `host` is surely on loopback: 127.x.x.x, ::1 (also in brackets) or localhost. Other names
// are not resolved.
bool IsLoopback(absl::string_view host);

// The host that an HTTP request's header Host names, in lower case and without the port.
//
// A web page must not reach a server on loopback through the browser of who opened it: its site can
// let its own name resolve to 127.0.0.1 (DNS rebinding), but its requests still carry that name. So
// a server without authentication answers only if this is one of its own names. It may answer a
// request without the header, because browsers always send one.
std::string HostOfHeader(absl::string_view header);

}  // namespace sluice
