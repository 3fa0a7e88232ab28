#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sluice {

// Finds the first of several strings in a text that comes piece by piece. The match that ends first
// wins, the longest of those that end together: how the text is cut into pieces changes nothing.
// O(strings) per byte (Knuth, Morris, Pratt).
class StopMatcher {
 public:
  static constexpr size_t kMaxStops = 16, kMaxBytes = 1024;

  // INVALID_ARGUMENT: more than 16 strings; one that is empty, over 1 KiB, or no UTF-8.
  static absl::StatusOr<StopMatcher> Create(std::vector<std::string> stops);

  // Takes `piece` and appends to *out what can no longer be part of a match: at a match, all that
  // came before it; later pieces are ignored. The rest is held back.
  void Feed(absl::string_view piece, std::string* out);
  // No text follows: appends what was held back.
  void Finish(std::string* out);
  // Forgets a text that was fed; the next piece begins a new one.
  void Reset();

  int matched() const { return matched_; }  // Index of the string that was found; -1: none.

 private:
  struct Stop {
    std::string text;
    // [i]: the longest proper prefix that ends the first i + 1 bytes.
    std::vector<uint16_t> fallback;
    size_t seen = 0;  // Bytes of `text` that the text so far ends with.
  };
  std::vector<Stop> stops_;
  std::string held_;
  int matched_ = -1;
};

}  // namespace sluice
