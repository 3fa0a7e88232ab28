#pragma once

#include <map>
#include <string>

#include "tools/monitoring/table.h"

namespace sluice::monitoring {

// The files that are made of the table, by path below deploy/monitoring:
//   dashboards/<file>.json    for Grafana
//   rules.yaml                for Prometheus: recorded series and alerts
//   prometheusrule.yaml       the same for the Prometheus Operator
//   metrics.md                for people
std::map<std::string, std::string> MakeFiles(const Table& table);

}  // namespace sluice::monitoring
