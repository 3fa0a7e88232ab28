#include "common/collective/port_range.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace sluice {

std::string PortRange::text() const {
  return first == last ? absl::StrCat(first) : absl::StrCat(first, "-", last);
}

absl::StatusOr<PortRange> ParsePortRange(absl::string_view text) {
  if (text.empty()) return PortRange{};

  const std::pair<absl::string_view, absl::string_view> ends =
      absl::StrSplit(text, absl::MaxSplits('-', 1));
  PortRange range;
  const bool numbers =
      absl::SimpleAtoi(ends.first, &range.first) &&
      absl::SimpleAtoi(text.find('-') == text.npos ? ends.first : ends.second, &range.last);
  if (!numbers || range.first < 1 || range.last < range.first || range.last > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text,
                     "\" is no range of ports; write FIRST-LAST, as 29500-29600, with ports from 1 "
                     "to 65535"));
  }
  return range;
}

}  // namespace sluice
