#pragma once

#include <cstdio>
#include <string>
#include <vector>

namespace sluice::bench {

// One figure. `baseline` is of the same run, and 0 if there is none. The report shows value /
// baseline as the ratio, or 0 without a baseline.
struct Figure {
  std::string name;
  double value = 0;
  std::string unit;
  double baseline = 0;
  int runs = 1;
};

// Prints figures as aligned lines, or with --json one object per line:
//   {"name": .., "value": .., "unit": .., "baseline": .., "ratio": .., "runs": ..}
class Report {
 public:
  explicit Report(bool json) : json_(json) {}
  void Add(const Figure& figure) const;

 private:
  const bool json_;
};

double Median(std::vector<double> values);  // Returns 0 if there are none.
// Returns the smallest of the values that at least the share `q` of them do not exceed, or 0 if
// there are none.
double Quantile(std::vector<double> values, double q);

}  // namespace sluice::bench
