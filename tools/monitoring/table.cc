#include "tools/monitoring/table.h"

#include <yaml-cpp/yaml.h>

#include <set>
#include <stdexcept>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/file.h"
#include "common/base/status.h"
#include "common/metrics/metrics.h"

namespace sluice::monitoring {
namespace {

// yaml-cpp throws, so the functions of this file throw too, up to ReadTable().
[[noreturn]] void Refuse(const YAML::Node& node, const std::string& why) {
  throw std::invalid_argument(absl::StrCat("line ", node.Mark().line + 1, ": ", why));
}

// Reads the fields of one entry, each once. At the end, Done() refuses those that nothing has read.
class Entry {
 public:
  explicit Entry(const YAML::Node& node) : node_(node) {
    if (!node.IsMap()) Refuse(node, "wanted: fields");
  }

  YAML::Node Get(const std::string& field) {
    read_.insert(field);
    const YAML::Node value = node_[field];
    if (!value) Refuse(node_, absl::StrCat("the field ", field, " is missing"));
    return value;
  }
  std::string Text(const std::string& field) {
    const YAML::Node value = Get(field);
    if (!value.IsScalar() || value.Scalar().empty())
      Refuse(node_, absl::StrCat("the field ", field, " is not a text"));
    return value.Scalar();
  }
  std::string Word(const std::string& field, const std::set<std::string>& words) {
    const std::string word = Text(field);
    if (!words.contains(word)) {
      Refuse(node_, absl::StrCat("the field ", field, " is ", word,
                                 "; wanted: ", absl::StrJoin(words, ", ")));
    }
    return word;
  }
  std::vector<std::string> List(const std::string& field) {
    return Get(field).as<std::vector<std::string>>();
  }
  void Done() const {
    for (const auto& field : node_) {
      if (!read_.contains(field.first.Scalar()))
        Refuse(field.first, absl::StrCat("there is no field ", field.first.Scalar()));
    }
  }

 private:
  const YAML::Node node_;
  std::set<std::string> read_;
};

Metric ReadMetric(const YAML::Node& node) {
  Entry entry(node);
  Metric metric;
  metric.name = entry.Text("name");
  metric.type = entry.Word("type", {"counter", "gauge", "histogram"});
  if (metric.type == "histogram")
    metric.buckets =
        entry.Word("buckets", {"calls", "syncs", "work", "versions", "tokens", "nats"});
  metric.labels = entry.List("labels");
  metric.daemons = entry.List("daemons");
  metric.since = entry.Word("since", {"start", "job", "event"});
  metric.help = entry.Text("help");
  entry.Done();
  return metric;
}

Panel ReadPanel(const YAML::Node& node) {
  Entry entry(node);
  Panel panel{.title = entry.Text("title"),
              .query = entry.Text("query"),
              .legend = entry.Text("legend"),
              .unit = entry.Word("unit", {"none", "s", "bytes", "percentunit"}),
              .note = entry.Text("note")};
  entry.Done();
  return panel;
}

Dashboard ReadDashboard(const YAML::Node& node) {
  Entry entry(node);
  Dashboard dashboard{.file = entry.Text("file"), .title = entry.Text("title"), .panels = {}};
  for (const YAML::Node& panel : entry.Get("panels")) dashboard.panels.push_back(ReadPanel(panel));
  entry.Done();
  return dashboard;
}

Recorded ReadRecorded(const YAML::Node& node) {
  Entry entry(node);
  Recorded recorded{.record = entry.Text("record"), .query = entry.Text("query")};
  entry.Done();
  return recorded;
}

Alert ReadAlert(const YAML::Node& node) {
  Entry entry(node);
  Alert alert{.alert = entry.Text("alert"),
              .wait = entry.Text("for"),
              .severity = entry.Word("severity", {"page", "ticket"}),
              .query = entry.Text("query"),
              .summary = entry.Text("summary"),
              .runbook = entry.Text("runbook")};
  entry.Done();
  return alert;
}

}  // namespace

absl::StatusOr<Table> ReadTable(const std::string& path) {
  SLUICE_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  try {
    Entry file(YAML::Load(text));
    Table table;
    for (const YAML::Node& node : file.Get("metrics")) table.metrics.push_back(ReadMetric(node));
    for (const YAML::Node& node : file.Get("dashboards"))
      table.dashboards.push_back(ReadDashboard(node));
    for (const YAML::Node& node : file.Get("recorded"))
      table.recorded.push_back(ReadRecorded(node));
    for (const YAML::Node& node : file.Get("alerts")) table.alerts.push_back(ReadAlert(node));
    file.Done();
    return table;
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", error.what()));
  }
}

absl::StatusOr<std::vector<double>> BucketsOf(const std::string& name) {
  const auto list = [](absl::Span<const double> bounds) {
    return std::vector<double>(bounds.begin(), bounds.end());
  };
  if (name == "calls") return list(metrics::RpcSeconds());
  if (name == "syncs") return list(metrics::FsyncSeconds());
  if (name == "work") return list(metrics::LongSeconds());
  if (name == "versions") return list(metrics::Versions());
  if (name == "tokens") return list(metrics::Tokens());
  if (name == "nats") return list(metrics::Nats());
  return absl::InvalidArgumentError(absl::StrCat("there are no buckets ", name));
}

}  // namespace sluice::monitoring
