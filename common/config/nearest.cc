#include "common/base/nearest.h"

#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "common/config/job_file.h"

namespace sluice {
namespace {

// The first letters of the parts of a word: learning_rate -> lr.
std::string Initials(absl::string_view word) {
  std::string initials;
  for (absl::string_view part : absl::StrSplit(word, absl::ByAnyChar("_-"), absl::SkipEmpty()))
    initials += part[0];
  return initials;
}

}  // namespace

std::string NearestWord(absl::string_view word, const std::vector<std::string>& words) {
  const std::vector<absl::string_view> candidates(words.begin(), words.end());
  const absl::string_view nearest = NearestMatch(word, candidates);
  if (!nearest.empty()) return std::string(nearest);
  for (const std::string& candidate : words) {
    if (candidate.size() > 1 && (Initials(word) == candidate || Initials(candidate) == word))
      return candidate;
  }
  return "";
}

}  // namespace sluice
