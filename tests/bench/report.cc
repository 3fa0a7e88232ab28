#include "tests/bench/report.h"

#include <algorithm>
#include <cmath>

#include "nlohmann/json.hpp"

namespace sluice::bench {

void Report::Add(const Figure& figure) const {
  const double ratio = figure.baseline == 0 ? 0 : figure.value / figure.baseline;
  if (json_) {
    const nlohmann::ordered_json line = {{"name", figure.name}, {"value", figure.value},
                                         {"unit", figure.unit}, {"baseline", figure.baseline},
                                         {"ratio", ratio},      {"runs", figure.runs}};
    std::printf("%s\n", line.dump().c_str());
  } else if (figure.baseline == 0) {
    std::printf("%-44s %14.6g %s\n", figure.name.c_str(), figure.value, figure.unit.c_str());
  } else {
    std::printf("%-44s %14.6g %-12s %6.3f x %.6g\n", figure.name.c_str(), figure.value,
                figure.unit.c_str(), ratio, figure.baseline);
  }
  std::fflush(stdout);
}

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

double Quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double rank = std::ceil(q * static_cast<double>(values.size()));
  return values[static_cast<size_t>(std::max(1.0, rank)) - 1];
}

}  // namespace sluice::bench
