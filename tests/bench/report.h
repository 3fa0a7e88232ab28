#pragma once

#include <cstdio>
#include <string>
#include <vector>

namespace sluice::bench {

// One figure. `baseline` and `ratio` (value / baseline) are of the same run; without a baseline
// both are 0.
struct Figure {
  std::string name;
  double value = 0;
  std::string unit;
  double baseline = 0;
  int runs = 1;
};

// Prints figures as aligned lines, or with --json one object a line:
//   {"name": .., "value": .., "unit": .., "baseline": .., "ratio": .., "runs": ..}
class Report {
 public:
  explicit Report(bool json) : json_(json) {}
  void Add(const Figure& figure) const;

 private:
  const bool json_;
};

double Median(std::vector<double> values);  // 0 of none.

}  // namespace sluice::bench
