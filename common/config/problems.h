#pragma once

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/config/job_file.h"

namespace sluice::config {

// Where a value stands. source 0: the job file; n: the n-th --set.
struct Place {
  int source = 0;
  int line = 0;
  int column = 0;

  bool operator==(const Place&) const = default;
};

// Collects what is wrong with a job file.
class Problems {
 public:
  // `sources[0]` is the job file as the caller named it; the others name a --set each.
  explicit Problems(std::vector<std::string> sources) : sources_(std::move(sources)) {}

  void Add(Place place, int number, std::string text) {
    found_.push_back({place, number, std::move(text)});
  }
  bool empty() const { return found_.empty(); }
  bool Has(const Place& place) const {
    return std::any_of(found_.begin(), found_.end(),
                       [&](const Found& found) { return found.place == place; });
  }
  const std::string& source(int index) const { return sources_[index]; }

  // In order of place, the first kMaxConfigProblems.
  std::vector<ConfigProblem> Take() {
    std::stable_sort(found_.begin(), found_.end(), [](const Found& a, const Found& b) {
      return std::tie(a.place.source, a.place.line, a.place.column) <
             std::tie(b.place.source, b.place.line, b.place.column);
    });
    std::vector<ConfigProblem> problems;
    for (Found& found : found_) {
      if (problems.size() == kMaxConfigProblems) break;
      const bool set = found.place.source > 0;  // A --set has no lines.
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
