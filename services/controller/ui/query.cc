#include "services/controller/ui/query.h"

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/id.h"

namespace sluice::controller {
namespace {

std::string DecodePart(absl::string_view text) {
  std::string out;
  while (!text.empty()) {
    // A "%" that no two hex digits follow stands for itself.
    if (text[0] == '%' && text.size() >= 3) {
      if (const auto byte = FromHex(text.substr(1, 2)); byte.ok()) {
        out += *byte;
        text.remove_prefix(3);
        continue;
      }
    }
    out += text[0] == '+' ? ' ' : text[0];
    text.remove_prefix(1);
  }
  return out;
}

}  // namespace

Query Query::Parse(absl::string_view text) {
  Query query;
  for (const absl::string_view pair : absl::StrSplit(text, '&', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(pair, absl::MaxSplits('=', 1));
    query.values[DecodePart(parts.first)] = DecodePart(parts.second);
  }
  return query;
}

std::string Query::Find(const std::string& name) const {
  const auto it = values.find(name);
  return it == values.end() ? "" : it->second;
}

absl::StatusOr<int64_t> Query::FindNumber(const std::string& name, int64_t otherwise, int64_t least,
                                          int64_t most) const {
  const auto it = values.find(name);
  if (it == values.end()) return otherwise;
  int64_t value = 0;
  if (absl::SimpleAtoi(it->second, &value) && value >= least && value <= most) return value;
  return absl::InvalidArgumentError(absl::StrCat(name, "=", absl::CEscape(it->second.substr(0, 40)),
                                                 ": wanted a whole number from ", least, " to ",
                                                 most));
}

}  // namespace sluice::controller
