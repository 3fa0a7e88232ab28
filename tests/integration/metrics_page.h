#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace sluice::integration {

// A page of metrics in the text format of Prometheus.
struct MetricsPage {
  struct Metric {
    std::string type, help;
    std::set<std::string> labels;
    std::vector<double> buckets;
  };
  std::map<std::string, Metric> metrics;  // Those whose names begin with sluice_.
  // The values that each label has, by metric and label.
  std::map<std::pair<std::string, std::string>, std::set<std::string>> values;
  size_t series = 0;
  std::string text;
};

// Reads /metrics of the ops address.
MetricsPage ReadMetrics(const std::string& ops);

// The sum of the series of a metric that have this value of a label.
double SumOf(const MetricsPage& page, const std::string& metric, const std::string& label,
             const std::string& value);

// Fails the test unless the page of a daemon, such as "queue", agrees with
// deploy/monitoring/table.yaml, keeps its limits, and pleases promtool. `works`: the daemon works
// for a job.
void CheckMetrics(const MetricsPage& page, const std::string& daemon, bool works);

}  // namespace sluice::integration
