#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/chat/limits.h"

namespace sluice::chat {

// `time` in UTC, as C's strftime writes it in the C locale, with `-` for no padding: %-d.
// Directives: %a %A %b %B %c %d %D %e %f %F %H %I %j %m %M %n %p %R %S %t %T %u %w %x %X %y %Y %Z
// %z %%. Another one is refused by name.
std::string FormatTime(const Meter& meter, absl::Time time, absl::string_view format);

}  // namespace sluice::chat
