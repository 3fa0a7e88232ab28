#include "tests/integration/metrics_page.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/file.h"
#include "common/testing/data.h"
#include "tests/common/daemon/http.h"
#include "tests/integration/harness/process.h"
#include "tools/monitoring/table.h"

namespace sluice::integration {
namespace {

// Reads the labels of one line, such as name{a="b",c="d"} 3.
void ReadLabels(const std::string& line, const std::string& family, MetricsPage* page) {
  const size_t open = line.find('{');
  if (open == line.npos) return;
  MetricsPage::Metric& metric = page->metrics[family];
  for (const std::string& pair : std::vector<std::string>(
           absl::StrSplit(line.substr(open + 1, line.rfind('}') - open - 1), ','))) {
    const std::pair<std::string, std::string> label = absl::StrSplit(pair, absl::MaxSplits('=', 1));
    if (label.first != "le") {
      metric.labels.insert(label.first);
      page->values[{family, label.first}].insert(label.second);
      continue;
    }
    double bound = 0;
    if (label.second == "\"+Inf\"" ||
        !absl::SimpleAtod(label.second.substr(1, label.second.size() - 2), &bound))
      continue;
    // All series of a histogram have the same bounds, in rising order.
    if (std::find(metric.buckets.begin(), metric.buckets.end(), bound) == metric.buckets.end())
      metric.buckets.push_back(bound);
  }
}

bool Exports(const monitoring::Metric& metric, const std::string& daemon) {
  return std::any_of(metric.daemons.begin(), metric.daemons.end(),
                     [&](const std::string& name) { return name == "all" || name == daemon; });
}

void Lint(const MetricsPage& page) {
  const std::string file = testing_data::TempPath("metrics.txt");
  ASSERT_TRUE(WriteFileAtomic(file, page.text).ok());
  const auto linted = RunToEnd({.binary = "/bin/sh",
                                .args = {"-c", "promtool check metrics < " + file},
                                .log = file + ".err"},
                               absl::Seconds(60));
  ASSERT_TRUE(linted.ok()) << linted.status();
  EXPECT_EQ(linted->exit, 0) << linted->out << linted->err;
  EXPECT_EQ(linted->out + linted->err, "");
}

}  // namespace

double SumOf(const MetricsPage& page, const std::string& metric, const std::string& label,
             const std::string& value) {
  double sum = 0;
  for (const absl::string_view line : absl::StrSplit(page.text, '\n')) {
    if (!absl::StartsWith(line, metric + "{") ||
        !absl::StrContains(line, absl::StrCat(label, "=\"", value, "\"")))
      continue;
    double number = 0;
    EXPECT_TRUE(absl::SimpleAtod(line.substr(line.rfind(' ') + 1), &number)) << line;
    sum += number;
  }
  return sum;
}

MetricsPage ReadMetrics(const std::string& ops) {
  const std::string response = daemon::HttpGet(ops, "/metrics");
  MetricsPage page{.text = response.substr(response.find("\r\n\r\n") + 4)};
  std::string family;
  for (const std::string& line :
       std::vector<std::string>(absl::StrSplit(page.text, '\n', absl::SkipEmpty()))) {
    const std::vector<std::string> words = absl::StrSplit(line, absl::MaxSplits(' ', 3));
    if (line.starts_with("# HELP sluice_")) page.metrics[words[2]].help = words[3];
    if (line.starts_with("# TYPE sluice_")) page.metrics[family = words[2]].type = words[3];
    if (line.starts_with("#")) continue;
    ++page.series;
    if (line.starts_with("sluice_")) ReadLabels(line, family, &page);
  }
  return page;
}

void CheckMetrics(const MetricsPage& page, const std::string& daemon, bool works) {
  SCOPED_TRACE(daemon);
  const auto table = monitoring::ReadTable(SLUICE_SOURCE_DIR "/deploy/monitoring/table.yaml");
  ASSERT_TRUE(table.ok()) << table.status();
  std::set<std::string> listed;
  for (const monitoring::Metric& row : table->metrics) {
    if (!Exports(row, daemon)) continue;
    listed.insert(row.name);
    const auto found = page.metrics.find(row.name);
    if (found == page.metrics.end()) {
      EXPECT_TRUE(row.since == "event" || (row.since == "job" && !works))
          << row.name << " is missing";
      continue;
    }
    EXPECT_EQ(found->second.type, row.type) << row.name;
    EXPECT_EQ(found->second.help, row.help) << row.name;
    EXPECT_EQ(found->second.labels, std::set<std::string>(row.labels.begin(), row.labels.end()))
        << row.name;
    if (row.type == "histogram")
      EXPECT_EQ(found->second.buckets, *monitoring::BucketsOf(row.buckets)) << row.name;
  }
  for (const auto& [name, metric] : page.metrics)
    EXPECT_TRUE(listed.contains(name)) << name << " is not in deploy/monitoring/table.yaml";

  for (const auto& [key, values] : page.values) {
    const std::set<std::string> wide = {"call", "method", "reason", "state"};
    EXPECT_LE(values.size(), wide.contains(key.second) ? 32u : 10u)
        << key.first << " " << key.second;
  }
  EXPECT_LE(page.series, works ? 1000u : 500u);
  EXPECT_LE(page.text.size(), 256u << 10);
  Lint(page);
}

}  // namespace sluice::integration
