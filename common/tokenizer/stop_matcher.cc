#include "common/tokenizer/stop_matcher.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/utf8.h"

namespace sluice {

absl::StatusOr<StopMatcher> StopMatcher::Create(std::vector<std::string> stops) {
  if (stops.size() > kMaxStops)
    return absl::InvalidArgumentError(
        absl::StrCat("stop has ", stops.size(), " strings; the limit is ", kMaxStops));
  StopMatcher matcher;
  for (size_t n = 0; n < stops.size(); ++n) {
    std::string& text = stops[n];
    if (text.empty() || text.size() > kMaxBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("stop[", n, "] has ", text.size(), " bytes; want 1 to ", kMaxBytes));
    }
    if (!IsUtf8(text))
      return absl::InvalidArgumentError(absl::StrCat("stop[", n, "] is not UTF-8"));
    std::vector<uint16_t> fallback(text.size(), 0);
    for (size_t i = 1, k = 0; i < text.size(); ++i) {
      while (k > 0 && text[i] != text[k]) k = fallback[k - 1];
      if (text[i] == text[k]) ++k;
      fallback[i] = static_cast<uint16_t>(k);
    }
    matcher.stops_.push_back({.text = std::move(text), .fallback = std::move(fallback)});
  }
  return matcher;
}

void StopMatcher::Feed(absl::string_view piece, std::string* out) {
  if (matched_ >= 0) return;
  if (stops_.empty()) {
    out->append(piece.data(), piece.size());
    return;
  }

  // Length of the longest prefix of any stop string that the input so far ends with.
  size_t longest = 0;
  for (const char c : piece) {
    held_.push_back(c);
    longest = 0;
    for (Stop& stop : stops_) {
      while (stop.seen > 0 && (stop.seen == stop.text.size() || stop.text[stop.seen] != c))
        stop.seen = stop.fallback[stop.seen - 1];
      if (stop.text[stop.seen] == c) ++stop.seen;
      longest = std::max(longest, stop.seen);
      if (stop.seen == stop.text.size() &&
          (matched_ < 0 || stop.text.size() > stops_[matched_].text.size()))
        matched_ = static_cast<int>(&stop - stops_.data());
    }

    if (matched_ < 0) continue;
    out->append(held_, 0, held_.size() - stops_[matched_].text.size());
    held_.clear();
    return;
  }
  if (piece.empty()) return;
  out->append(held_, 0, held_.size() - longest);
  held_.erase(0, held_.size() - longest);
}

void StopMatcher::Finish(std::string* out) {
  *out += held_;
  Reset();
}

void StopMatcher::Reset() {
  held_.clear();
  for (Stop& stop : stops_) stop.seen = 0;
}

}  // namespace sluice
