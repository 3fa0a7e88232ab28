#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

// What deploy/monitoring/table.yaml says. The file explains the fields.
namespace sluice::monitoring {

struct Metric {
  std::string name, type;
  std::string buckets;  // Empty unless it is a histogram.
  std::vector<std::string> labels, daemons;
  std::string since, help;
};

struct Panel {
  std::string title, query, legend, unit, note;
};

struct Dashboard {
  std::string file, title;
  std::vector<Panel> panels;
};

struct Recorded {
  std::string record, query;
};

struct Alert {
  std::string alert, wait, severity, query, summary, runbook;  // `wait` is the file's `for`.
};

struct Table {
  std::vector<Metric> metrics;
  std::vector<Dashboard> dashboards;
  std::vector<Recorded> recorded;
  std::vector<Alert> alerts;
};

// Reads the file.
// INVALID_ARGUMENT: it is not YAML, a field is missing, unknown or has another kind of value, or a
// word is not one of those that the file lists. The message names the entry.
absl::StatusOr<Table> ReadTable(const std::string& path);

// The upper bounds of a metric's buckets. `name` is one of the file's words.
absl::StatusOr<std::vector<double>> BucketsOf(const std::string& name);

}  // namespace sluice::monitoring
