#include "tools/monitoring/files.h"

#include <yaml-cpp/yaml.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"

namespace sluice::monitoring {
namespace {
using Json = nlohmann::ordered_json;

constexpr char kOrigin[] = "Made of deploy/monitoring/table.yaml.";
constexpr int kWidth = 12, kHeight = 8;  // Of a panel; Grafana's grid is 24 wide.

// Both are chosen by who looks at the dashboard.
constexpr char kSource[] = "${source}";

Json MakeSource() { return {{"type", "prometheus"}, {"uid", kSource}}; }

Json MakePanel(const Panel& panel, int index) {
  return {
      {"id", index + 1},
      {"type", "timeseries"},
      {"title", panel.title},
      {"description", panel.note},
      {"datasource", MakeSource()},
      {"gridPos",
       {{"x", index % 2 * kWidth}, {"y", index / 2 * kHeight}, {"w", kWidth}, {"h", kHeight}}},
      {"fieldConfig", {{"defaults", {{"unit", panel.unit}}}, {"overrides", Json::array()}}},
      {"targets", Json::array({{{"refId", "A"},
                                {"datasource", MakeSource()},
                                {"expr", panel.query},
                                {"legendFormat", panel.legend}}})},
  };
}

Json MakeVariables() {
  return Json::array({
      {{"name", "source"},
       {"label", "Prometheus"},
       {"type", "datasource"},
       {"query", "prometheus"}},
      {{"name", "job_id"},
       {"label", "Job"},
       {"type", "query"},
       {"datasource", MakeSource()},
       {"query", "label_values(sluice_job_state, job_id)"},
       {"refresh", 2},  // At each change of the time range.
       {"multi", true},
       {"includeAll", true},
       {"allValue", ".*"},
       {"current", {{"text", "All"}, {"value", "$__all"}}}},
  });
}

std::string MakeDashboard(const Dashboard& dashboard) {
  Json panels = Json::array();
  for (size_t i = 0; i < dashboard.panels.size(); ++i)
    panels.push_back(MakePanel(dashboard.panels[i], static_cast<int>(i)));
  const Json json = {
      {"uid", absl::StrCat("sluice-", dashboard.file)},
      {"title", dashboard.title},
      {"description", kOrigin},
      {"tags", Json::array({"sluice"})},
      {"schemaVersion", 39},
      {"editable", false},
      {"refresh", "10s"},
      {"time", {{"from", "now-1h"}, {"to", "now"}}},
      {"templating", {{"list", MakeVariables()}}},
      {"panels", panels},
  };
  return absl::StrCat(json.dump(2), "\n");
}

void WriteText(YAML::Emitter& out, const char* key, const std::string& value) {
  out << YAML::Key << key << YAML::Value << value;
}

void WriteAlert(YAML::Emitter& out, const Alert& alert) {
  out << YAML::BeginMap;
  WriteText(out, "alert", alert.alert);
  WriteText(out, "expr", alert.query);
  WriteText(out, "for", alert.wait);
  out << YAML::Key << "labels" << YAML::Value << YAML::BeginMap;
  WriteText(out, "severity", alert.severity);
  out << YAML::EndMap << YAML::Key << "annotations" << YAML::Value << YAML::BeginMap;
  WriteText(out, "summary", alert.summary);
  WriteText(out, "runbook", absl::StrCat("deploy/monitoring/runbooks/", alert.runbook, ".md"));
  out << YAML::EndMap << YAML::EndMap;
}

// Writes the field `groups`, which Prometheus and its operator read alike.
void WriteGroups(YAML::Emitter& out, const Table& table) {
  out << YAML::Key << "groups" << YAML::Value << YAML::BeginSeq;

  out << YAML::BeginMap;
  WriteText(out, "name", "sluice-recorded");
  out << YAML::Key << "rules" << YAML::Value << YAML::BeginSeq;
  for (const Recorded& recorded : table.recorded) {
    out << YAML::BeginMap;
    WriteText(out, "record", recorded.record);
    WriteText(out, "expr", recorded.query);
    out << YAML::EndMap;
  }
  out << YAML::EndSeq << YAML::EndMap;

  out << YAML::BeginMap;
  WriteText(out, "name", "sluice-alerts");
  out << YAML::Key << "rules" << YAML::Value << YAML::BeginSeq;
  for (const Alert& alert : table.alerts) WriteAlert(out, alert);
  out << YAML::EndSeq << YAML::EndMap << YAML::EndSeq;
}

std::string MakeRules(const Table& table) {
  YAML::Emitter out;
  out << YAML::BeginMap;
  WriteGroups(out, table);
  out << YAML::EndMap;
  return absl::StrCat("# ", kOrigin, "\n", out.c_str(), "\n");
}

std::string MakePrometheusRule(const Table& table) {
  YAML::Emitter out;
  out << YAML::BeginMap;
  WriteText(out, "apiVersion", "monitoring.coreos.com/v1");
  WriteText(out, "kind", "PrometheusRule");
  out << YAML::Key << "metadata" << YAML::Value << YAML::BeginMap;
  WriteText(out, "name", "sluice");
  out << YAML::Key << "labels" << YAML::Value << YAML::BeginMap;
  WriteText(out, "app.kubernetes.io/name", "sluice");
  out << YAML::EndMap << YAML::EndMap << YAML::Key << "spec" << YAML::Value << YAML::BeginMap;
  WriteGroups(out, table);
  out << YAML::EndMap << YAML::EndMap;
  return absl::StrCat("# ", kOrigin, "\n", out.c_str(), "\n");
}

std::string MakeMetricsPage(const Table& table) {
  std::string page = absl::StrCat("# Metrics\n\n", kOrigin, R"(

Every daemon serves its metrics at `/metrics` of its ops port. Each also has
`process_cpu_seconds_total`, `process_resident_memory_bytes` and `process_open_fds`. The label
`job_id` is the job's name. A metric exists since the start of the daemon (`start`), as long as the
daemon works for a job (`job`), or from the first event that it counts (`event`). When a daemon has
left a job, the job's series stay for ten minutes, but for the gauges of rollout, reward and
trainer, which end at once.

| name | type | labels | daemons | since | what |
|---|---|---|---|---|---|
)");
  for (const Metric& metric : table.metrics) {
    absl::StrAppend(&page, "| `", metric.name, "` | ", metric.type,
                    metric.buckets.empty() ? "" : absl::StrCat(", ", metric.buckets), " | ",
                    absl::StrJoin(metric.labels, " "), " | ", absl::StrJoin(metric.daemons, " "),
                    " | ", metric.since, " | ", metric.help, " |\n");
  }

  absl::StrAppend(&page,
                  "\nThe buckets of the histograms:\n\n| buckets | upper bounds |\n|---|---|\n");
  for (const char* name : {"calls", "syncs", "work", "versions", "tokens", "nats"})
    absl::StrAppend(&page, "| ", name, " | ", absl::StrJoin(*BucketsOf(name), " "), " |\n");

  absl::StrAppend(
      &page,
      "\nSeries that Prometheus computes with `rules.yaml`:\n\n| name | query |\n|---|---|\n");
  for (const Recorded& recorded : table.recorded)
    absl::StrAppend(&page, "| `", recorded.record, "` | `", recorded.query, "` |\n");
  return page;
}

}  // namespace

std::map<std::string, std::string> MakeFiles(const Table& table) {
  std::map<std::string, std::string> files;
  for (const Dashboard& dashboard : table.dashboards)
    files[absl::StrCat("dashboards/", dashboard.file, ".json")] = MakeDashboard(dashboard);
  files["rules.yaml"] = MakeRules(table);
  files["prometheusrule.yaml"] = MakePrometheusRule(table);
  files["metrics.md"] = MakeMetricsPage(table);
  return files;
}

}  // namespace sluice::monitoring
