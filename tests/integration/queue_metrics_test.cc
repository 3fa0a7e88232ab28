#include <map>
#include <set>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "common/base/file.h"
#include "common/metrics/metrics.h"
#include "tests/common/daemon/http.h"
#include "tests/integration/queue_scene.h"

namespace sluice::integration {
namespace {

// What the metrics page or the table in the README says of a metric.
struct Metric {
  std::string type;
  std::set<std::string> labels, buckets;
  bool later = false;  // It appears only when it is first counted.
};
using Metrics = std::map<std::string, Metric>;

std::string JoinBounds(absl::Span<const double> bounds) {
  std::ostringstream out;
  for (const double bound : bounds) out << bound << " ";
  return out.str();
}

// The words of a table's cell that are in backquotes.
std::vector<std::string> FindQuoted(const std::string& cell) {
  std::vector<std::string> words;
  const std::vector<std::string> parts = absl::StrSplit(cell, '`');
  for (size_t i = 1; i < parts.size(); i += 2) words.push_back(parts[i]);
  return words;
}

// The table of services/queue/README.md.
Metrics ReadDocumentedMetrics() {
  const std::map<std::string, std::string> buckets = {{"R", JoinBounds(metrics::RpcSeconds())},
                                                      {"F", JoinBounds(metrics::FsyncSeconds())},
                                                      {"D", JoinBounds(metrics::LongSeconds())},
                                                      {"S", JoinBounds(metrics::Versions())}};
  Metrics table;
  for (const absl::string_view line :
       absl::StrSplit(*ReadFile(SLUICE_SOURCE_DIR "/services/queue/README.md"), '\n')) {
    if (!absl::StartsWith(line, "| `sluice_")) continue;
    const std::vector<std::string> cells = absl::StrSplit(line, '|');
    const std::vector<std::string> type = absl::StrSplit(cells[2], ' ', absl::SkipEmpty());
    Metric& metric = table[FindQuoted(cells[1])[0]];
    metric.type = type[0];
    for (const std::string& word : type) {
      if (word == "*") metric.later = true;
      if (buckets.contains(word)) metric.buckets.insert(buckets.at(word));
    }
    for (const std::string& label : FindQuoted(cells[3])) metric.labels.insert(label);
  }
  return table;
}

// A page of metrics.
struct Page {
  Metrics metrics;  // Those whose names begin with sluice_.
  // The values that each label has, by metric and label.
  std::map<std::pair<std::string, std::string>, std::set<std::string>> values;
  size_t series = 0, bytes = 0;
};

// Reads a page in the text format of Prometheus.
Page ParsePage(const std::string& text) {
  Page page{.bytes = text.size()};
  std::string family;
  std::map<std::string, std::string> bounds;  // Of the buckets, by series.
  for (const std::string& line :
       std::vector<std::string>(absl::StrSplit(text, '\n', absl::SkipEmpty()))) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    if (line.starts_with("# TYPE sluice_")) page.metrics[family = words[2]].type = words[3];
    if (line.starts_with("#")) continue;
    ++page.series;
    if (!line.starts_with("sluice_")) continue;
    const size_t open = line.find('{');
    if (open == line.npos) continue;

    std::string rest, le;
    for (const std::string& pair : std::vector<std::string>(
             absl::StrSplit(line.substr(open + 1, line.rfind('}') - open - 1), ','))) {
      const std::pair<std::string, std::string> label =
          absl::StrSplit(pair, absl::MaxSplits('=', 1));
      if (label.first == "le") {
        le = label.second;
        continue;
      }
      page.metrics[family].labels.insert(label.first);
      page.values[{family, label.first}].insert(label.second);
      rest += pair;
    }

    if (le.empty() || le == "\"+Inf\"") continue;
    bounds[family + rest] += le.substr(1, le.size() - 2) + " ";
    page.metrics[family].buckets = {bounds[family + rest]};
  }
  return page;
}

std::string BodyOf(const std::string& response) {
  return response.substr(response.find("\r\n\r\n") + 4);
}

TEST_F(QueueScene, MetricsAreThoseOfTheTableAndStayWithinTheirLimits) {
  EXPECT_LE(ParsePage(BodyOf(daemon::HttpGet(cluster_.ops("queue-0"), "/metrics"))).series, 500u)
      << "at rest";
  ASSERT_NO_FATAL_FAILURE(SetUpJob());

  const auto granted = Admit();
  for (const queue::v1::Grant& grant : granted.grants()) {
    ASSERT_NO_FATAL_FAILURE(WriteAndSeal(grant));
    ASSERT_NO_FATAL_FAILURE(Score());
  }
  ASSERT_NO_FATAL_FAILURE(Train(Acquire(0)));

  const std::string text = BodyOf(daemon::HttpGet(cluster_.ops("queue-0"), "/metrics"));
  const Page page = ParsePage(text);

  const Metrics table = ReadDocumentedMetrics();
  for (const auto& [name, metric] : page.metrics) {
    const auto row = table.find(name);
    if (row == table.end()) {
      ADD_FAILURE() << name << " is not in the table of services/queue/README.md";
      continue;
    }

    EXPECT_EQ(metric.type, row->second.type) << name;
    EXPECT_EQ(metric.labels, row->second.labels) << name;
    EXPECT_EQ(metric.buckets, row->second.buckets) << name;
  }

  for (const auto& [name, row] : table)
    EXPECT_TRUE(row.later || page.metrics.contains(name)) << name << " is in the table alone";
  for (const char* later : {"sluice_queue_acceptance_ratio", "sluice_queue_length_bias_ratio",
                            "sluice_disk_free_bytes"}) {
    EXPECT_TRUE(page.metrics.contains(later)) << later;
  }
  for (const char* where : {"\"in_flight\"", "\"in_queue\"", "\"at_cut\""}) {
    EXPECT_TRUE((page.values.at({"sluice_queue_staleness_versions", "where"}).contains(where)))
        << where;
  }

  for (const auto& [key, values] : page.values) {
    const bool wide = key.second == "method" || key.second == "reason" || key.second == "call";
    EXPECT_LE(values.size(), wide ? 32u : 10u) << key.first << " " << key.second;
  }
  EXPECT_LE(page.series, 1000u);
  EXPECT_LE(page.bytes, 256u << 10);

  const std::string file = cluster_.dir() + "/metrics.txt";
  ASSERT_TRUE(WriteFileAtomic(file, text).ok());

  const auto linted = RunToEnd({.binary = "/bin/sh",
                                .args = {"-c", "promtool check metrics < " + file},
                                .log = file + ".err"},
                               absl::Seconds(60));
  ASSERT_TRUE(linted.ok()) << linted.status();
  EXPECT_EQ(linted->exit, 0) << linted->out << linted->err;
  EXPECT_EQ(linted->out + linted->err, "");
}

}  // namespace
}  // namespace sluice::integration
