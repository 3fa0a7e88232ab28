#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sluice {

// Finds the first of several strings in a text that comes in pieces. The match that ends first
// wins, and of those that end together the longest; how the text is cut into pieces does not
// matter. Takes O(number of strings) per byte (Knuth, Morris, Pratt). Not thread-safe.
class StopMatcher {
 public:
  static constexpr size_t kMaxStops = 16, kMaxBytes = 1024;

  // INVALID_ARGUMENT: there are more than 16 strings, or one is empty, over 1 KiB, or not UTF-8.
  static absl::StatusOr<StopMatcher> Create(std::vector<std::string> stops);

  // Takes `piece` and appends to *out what can no longer be part of a match. After a match, that is
  // everything before it, and later pieces are ignored. The rest is held back.
  void Feed(absl::string_view piece, std::string* out);
  // No text follows. Appends what was held back.
  void Finish(std::string* out);
  // Forgets the text so far; the next piece begins a new one. A match stays, so after a match later
  // pieces are still ignored.
  void Reset();

  int matched() const { return matched_; }  // Index of the string that was found; -1: none.

 private:
  struct Stop {
    std::string text;
    // [i]: length of the longest proper prefix of `text` that its first i + 1 bytes end with.
    std::vector<uint16_t> fallback;
    size_t seen = 0;  // Length of the longest prefix of `text` that the input so far ends with.
  };
  std::vector<Stop> stops_;
  std::string held_;
  int matched_ = -1;
};

}  // namespace sluice
