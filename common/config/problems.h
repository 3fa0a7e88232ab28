#pragma once

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/config/job_file.h"

namespace sluice::config {

// The place of a value. `source` is 0 for the job file and n for the n-th --set; line and column
// count from 1.
struct Place {
  int source = 0;
  int line = 0;
  int column = 0;

  bool operator==(const Place&) const = default;
};

// Collects the problems of a job file. Not thread-safe.
class Problems {
 public:
  // `sources[0]` is the job file as the caller named it; each other element names a --set.
  explicit Problems(std::vector<std::string> sources) : sources_(std::move(sources)) {}

  void Add(Place place, int number, std::string text) {
    found_.push_back({place, number, std::move(text)});
  }
  bool empty() const { return found_.empty(); }
  // Whether a problem was found at this place.
  bool Has(const Place& place) const {
    return std::any_of(found_.begin(), found_.end(),
                       [&](const Found& found) { return found.place == place; });
  }
  const std::string& source(int index) const { return sources_[index]; }

  // Returns the first kMaxConfigProblems problems in order of place, and empties the list.
  std::vector<ConfigProblem> Take() {
    std::stable_sort(found_.begin(), found_.end(), [](const Found& a, const Found& b) {
      return std::tie(a.place.source, a.place.line, a.place.column) <
             std::tie(b.place.source, b.place.line, b.place.column);
    });
    std::vector<ConfigProblem> problems;
    for (Found& found : found_) {
      if (problems.size() == kMaxConfigProblems) break;
      const bool set = found.place.source > 0;  // A --set has no line numbers.
      problems.push_back({sources_[found.place.source], set ? 0 : found.place.line,
                          set ? 0 : found.place.column, found.number, std::move(found.text)});
    }
    return problems;
  }

 private:
  struct Found {
    Place place;
    int number;
    std::string text;
  };
  std::vector<std::string> sources_;
  std::vector<Found> found_;
};

}  // namespace sluice::config
