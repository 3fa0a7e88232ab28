#include "common/base/nearest.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace sluice {
namespace {

// Levenshtein distance. Only one row of the table is kept at a time.
size_t EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);

  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] != b[j - 1] ? 1 : 0);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

}  // namespace

absl::string_view NearestMatch(absl::string_view word,
                               absl::Span<const absl::string_view> candidates) {
  absl::string_view best;
  size_t best_distance = SIZE_MAX;
  for (const absl::string_view candidate : candidates) {
    const size_t limit = std::max<size_t>(1, std::max(word.size(), candidate.size()) / 3);
    const size_t gap =
        std::max(word.size(), candidate.size()) - std::min(word.size(), candidate.size());
    // The distance is at least `gap`; this also bounds the work on a huge word.
    if (gap > limit) continue;
    const size_t distance = EditDistance(word, candidate);
    if (distance <= limit && distance < best_distance) best = candidate, best_distance = distance;
  }
  return best;
}

}  // namespace sluice
