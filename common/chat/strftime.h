#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/chat/limits.h"

namespace sluice::chat {

// Formats `time` in UTC like C's strftime in the C locale. `-` means no padding: %-d. Directives:
// %a %A %b %B %c %d %D %e %f %F %h %H %I %j %m %M %n %p %R %S %t %T %u %w %x %X %y %Y %Z %z %%. Any
// other directive is refused by name.
std::string FormatTime(const Meter& meter, absl::Time time, absl::string_view format);

}  // namespace sluice::chat
