// deploy/monitoring: the table, the files that are made of it, and the code that they name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <regex>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/base/file.h"
#include "common/base/status.h"
#include "tests/deploy/command.h"
#include "tests/deploy/golden.h"
#include "tests/deploy/manifest.h"
#include "tools/monitoring/files.h"

namespace sluice::deploy {
namespace {
namespace fs = std::filesystem;
using monitoring::Alert;
using monitoring::Metric;
using monitoring::Table;
using testing::HasSubstr;
using testing::IsSupersetOf;

const std::string kMonitoring = std::string(SLUICE_SOURCE_DIR) + "/deploy/monitoring";

const Table& TheTable() {
  static const Table table = monitoring::ReadTable(kMonitoring + "/table.yaml").value();
  return table;
}

std::vector<std::string> ListQueries() {
  std::vector<std::string> queries;
  for (const monitoring::Dashboard& dashboard : TheTable().dashboards)
    for (const monitoring::Panel& panel : dashboard.panels) queries.push_back(panel.query);
  for (const monitoring::Recorded& recorded : TheTable().recorded)
    queries.push_back(recorded.query);
  for (const Alert& alert : TheTable().alerts) queries.push_back(alert.query);
  return queries;
}

// What a pattern's first group matches in a text.
std::set<std::string> FindAll(const std::string& text, const char* pattern) {
  const std::regex regex(pattern);
  std::set<std::string> found;
  for (auto it = std::sregex_iterator(text.begin(), text.end(), regex);
       it != std::sregex_iterator(); ++it)
    found.insert((*it)[1]);
  return found;
}

// The names that a query may use, each with the labels of its series.
std::map<std::string, std::set<std::string>> LabelsByName() {
  std::map<std::string, std::set<std::string>> names;
  for (const Metric& metric : TheTable().metrics) {
    std::set<std::string> labels(metric.labels.begin(), metric.labels.end());
    labels.insert("instance");  // From Prometheus.
    if (metric.type != "histogram") {
      names[metric.name] = labels;
      continue;
    }
    for (const char* part : {"_count", "_sum"}) names[metric.name + part] = labels;
    labels.insert("le");
    names[metric.name + "_bucket"] = labels;
  }
  for (const monitoring::Recorded& recorded : TheTable().recorded)
    names[recorded.record] = {"job_id"};
  return names;
}

TEST(MonitoringTest, TheFilesAreThoseOfTheTable) {
  for (const auto& [name, text] : monitoring::MakeFiles(TheTable())) {
    EXPECT_EQ(ReadFile(absl::StrCat(kMonitoring, "/", name)).value_or(""), text)
        << name << " is not what the table says; write it anew with\n  ninja -C build/test "
        << "monitoring && build/test/bin/monitoring deploy/monitoring";
  }
}

TEST(MonitoringTest, ThereIsNoDashboardThatTheTableLacks) {
  const auto files = monitoring::MakeFiles(TheTable());
  for (const auto& entry : fs::directory_iterator(kMonitoring + "/dashboards"))
    EXPECT_TRUE(files.contains("dashboards/" + entry.path().filename().string())) << entry.path();
}

TEST(MonitoringTest, QueriesNameMetricsAndLabelsOfTheTable) {
  const auto names = LabelsByName();
  for (const std::string& query : ListQueries()) {
    std::set<std::string> labels = {"policy"};
    const std::set<std::string> used = FindAll(query, "((?:job:)?sluice_[a-z_]+(?::[a-z0-9_]+)?)");
    EXPECT_FALSE(used.empty()) << query;
    for (const std::string& name : used) {
      const auto found = names.find(name);
      ASSERT_NE(found, names.end()) << name << " in: " << query;
      labels.insert(found->second.begin(), found->second.end());
    }

    for (const std::string& list : FindAll(query, "(?:by|on) \\(([a-z_, ]*)\\)"))
      EXPECT_THAT(labels, IsSupersetOf(std::vector<std::string>(absl::StrSplit(list, ", "))))
          << query;
    EXPECT_THAT(labels, IsSupersetOf(FindAll(query, "[{,] ?([a-z_]+)[!=]=?~?\""))) << query;
  }
}

TEST(MonitoringTest, TheLegendOfAPanelNamesLabelsThatItsQueryLeaves) {
  const auto names = LabelsByName();
  for (const monitoring::Dashboard& dashboard : TheTable().dashboards) {
    for (const monitoring::Panel& panel : dashboard.panels) {
      std::set<std::string> labels;
      const std::set<std::string> lists = FindAll(panel.query, "by \\(([a-z_, ]*)\\)");
      for (const std::string& list : lists)
        for (const auto& label : absl::StrSplit(list, ", ")) labels.emplace(label);
      if (lists.empty()) {
        for (const std::string& name : FindAll(panel.query, "((?:job:)?sluice_[a-z0-9_:]+)"))
          labels.insert(names.at(name).begin(), names.at(name).end());
      }
      EXPECT_THAT(labels, IsSupersetOf(FindAll(panel.legend, "\\{\\{([a-z_]+)\\}\\}")))
          << panel.title;
    }
  }
}

// The texts in quotes of all sources that may export a metric.
std::string ReadQuotedTexts() {
  std::string texts;
  for (const char* folder : {"common", "services"}) {
    for (const auto& entry :
         fs::recursive_directory_iterator(absl::StrCat(SLUICE_SOURCE_DIR, "/", folder))) {
      if (entry.path().extension() != ".cc") continue;
      for (const std::string& text :
           FindAll(ReadFile(entry.path().string()).value(), "\"([a-z_]+)\""))
        absl::StrAppend(&texts, "\"", text, "\"\n");
    }
  }
  return texts;
}

TEST(MonitoringTest, TheCodeAndTheTableHaveTheSameNames) {
  const std::string texts = ReadQuotedTexts();
  std::set<std::string> listed;
  for (const Metric& metric : TheTable().metrics) {
    EXPECT_TRUE(listed.insert(metric.name).second) << metric.name << " is listed twice";
    // The queue writes most of its names without their beginning.
    const std::string rest = absl::StrReplaceAll(metric.name, {{"sluice_queue_", ""}});
    EXPECT_TRUE(absl::StrContains(texts, absl::StrCat("\"", metric.name, "\"")) ||
                absl::StrContains(texts, absl::StrCat("\"", rest, "\"")))
        << metric.name << " is in deploy/monitoring/table.yaml, but not in the code";
  }
  for (const std::string& name : FindAll(texts, "\"(sluice_[a-z_]*[a-z])\"")) {
    EXPECT_TRUE(listed.contains(name) || !absl::StrContains(name.substr(7), '_'))
        << name << " is in the code, but not in deploy/monitoring/table.yaml";
  }
}

TEST(MonitoringTest, NamesEndWithTheirUnit) {
  for (const Metric& metric : TheTable().metrics) {
    EXPECT_EQ(absl::EndsWith(metric.name, "_total"), metric.type == "counter") << metric.name;
    if (absl::StrContains(metric.name, "duration")) {
      EXPECT_THAT(metric.name, HasSubstr("_seconds"));
    }
  }
}

TEST(MonitoringTest, EachAlertHasARunbookWithItsName) {
  std::set<std::string> pages;
  for (const Alert& alert : TheTable().alerts) {
    const std::string path = absl::StrCat(kMonitoring, "/runbooks/", alert.runbook, ".md");
    pages.insert(fs::path(path).filename());
    const std::string page = ReadFile(path).value_or("");
    EXPECT_TRUE(absl::StartsWith(page, absl::StrCat("# ", alert.alert, "\n"))) << path;
    for (const char* part : {"**What it means.**", "**Look first", "**What to do**",
                             "**How to know that it is over.**"})
      EXPECT_THAT(page, HasSubstr(part)) << path;
  }
  for (const auto& entry : fs::directory_iterator(kMonitoring + "/runbooks"))
    EXPECT_TRUE(pages.contains(entry.path().filename())) << entry.path() << " belongs to no alert";
}

// The metrics that a runbook tells to look at.
TEST(MonitoringTest, RunbooksNameMetricsOfTheTable) {
  const auto names = LabelsByName();
  for (const auto& entry : fs::directory_iterator(kMonitoring + "/runbooks")) {
    for (const std::string& name : FindAll(ReadFile(entry.path().string()).value(),
                                           "((?:job:)?sluice_[a-z_]+(?::[a-z0-9_]+)?)"))
      EXPECT_TRUE(names.contains(name)) << entry.path() << ": " << name;
  }
}

// The dashboards must have the types that Grafana gives them.
TEST(DashboardTest, TypeScriptAcceptsThemAsDashboardsOfGrafana) {
  const std::string modules = SLUICE_SOURCE_DIR "/.deps/grafana/node_modules";
  if (!PathExists(modules))
    GTEST_SKIP() << modules << " is not there; tools/test.sh installs it if there is an npm";
  const std::string dir = MakeTempDir().value();
  std::string script = "import type { Dashboard } from '@grafana/schema';\n";
  int number = 0;
  for (const auto& entry : fs::directory_iterator(kMonitoring + "/dashboards"))
    absl::StrAppend(&script, "export const d", number++,
                    ": Dashboard = ", ReadFile(entry.path().string()).value(), ";\n");
  ASSERT_TRUE(WriteFileAtomic(dir + "/tsconfig.json",
                              absl::StrCat(R"({"compilerOptions": {"strict": true, "noEmit": true,
    "skipLibCheck": true, "module": "nodenext", "types": [], "paths": {"@grafana/schema": [")",
                                           modules, R"(/@grafana/schema/dist/types/index.d.ts"]}},
    "files": ["check.ts"]})"))
                  .ok());
  const auto compile = [&](const std::string& text) {
    EXPECT_TRUE(WriteFileAtomic(dir + "/check.ts", text).ok());
    return RunCommand({"node", modules + "/typescript/bin/tsc", "-p", dir}).status();
  };

  EXPECT_TRUE(compile(script).ok()) << compile(script);
  EXPECT_FALSE(compile(absl::StrReplaceAll(script, {{"gridPos", "gridPoz"}})).ok());
  EXPECT_FALSE(
      compile(absl::StrReplaceAll(script, {{"\"editable\": ", "\"editable\": 1 + "}})).ok());
}

// Promtool ----------------------------------------------------------------------------------------

// Runs rules_test.yaml against the rules of `table`.
absl::Status TestRules(const Table& table) {
  const std::string dir = MakeTempDir().value();
  for (const auto& [name, text] :
       {std::pair{"rules.yaml", monitoring::MakeFiles(table).at("rules.yaml")},
        std::pair{"rules_test.yaml", ReadFile(kMonitoring + "/rules_test.yaml").value()}}) {
    if (const absl::Status written = WriteFileAtomic(absl::StrCat(dir, "/", name), text);
        !written.ok())
      return written;
  }
  return RunCommand({"promtool", "test", "rules", dir + "/rules_test.yaml"}).status();
}

TEST(PromtoolTest, ItAcceptsTheRules) {
  const auto checked = RunCommand({"promtool", "check", "rules", kMonitoring + "/rules.yaml"});
  EXPECT_TRUE(checked.ok()) << checked.status();
}

TEST(PromtoolTest, EachAlertFiresWhenItShouldAndOnlyThen) {
  const absl::Status tested = TestRules(TheTable());
  EXPECT_TRUE(tested.ok()) << tested;
}

// Else an alert could lack a test: that it fires, that it does not, or that it waits.
TEST(PromtoolTest, TheRulesTestFailsForEachAlertThatAlwaysOrNeverFiresOrFiresAtOnce) {
  const auto expect_found = [](const char* query, const char* wait) {
    Table broken = TheTable();
    std::set<std::string> changed;
    for (Alert& alert : broken.alerts) {
      if (query != nullptr) alert.query = query;
      else if (alert.wait == "0s") continue;
      else alert.wait = wait;
      changed.insert(alert.alert);
    }
    const std::string message(TestRules(broken).message());
    for (const std::string& alert : changed)
      EXPECT_THAT(message, HasSubstr(absl::StrCat("alertname: ", alert)));
  };
  expect_found("vector(1) > 0", nullptr);
  expect_found("vector(1) > 1", nullptr);
  expect_found(nullptr, "0s");
}

// The overlay -------------------------------------------------------------------------------------

TEST(MonitoringOverlayTest, ItHasTheDashboardsAndRulesOfTheTable) {
  if (!HasKubectl()) GTEST_SKIP() << "there is no kubectl";
  Manifest manifest = ParseManifest(Render("monitoring").value()).value();
  const Object* const dashboards = Find(manifest, "ConfigMap", "sluice-dashboards");
  const Object* const rules = Find(manifest, "PrometheusRule", "sluice");
  ASSERT_TRUE(dashboards != nullptr && rules != nullptr);

  EXPECT_EQ(LabelsAt(dashboards->yaml, "metadata.labels")["grafana_dashboard"], "1");
  std::map<std::string, std::string> files;
  for (const auto& [name, text] : monitoring::MakeFiles(TheTable()))
    if (absl::StartsWith(name, "dashboards/")) files[fs::path(name).filename()] = text;
  EXPECT_EQ(LabelsAt(dashboards->yaml, "data"), files);
  const auto as_text = [](const YAML::Node& groups) {
    return Describe({Object{"groups", "", groups}});
  };
  EXPECT_EQ(as_text(At(rules->yaml, "spec.groups")),
            as_text(YAML::LoadFile(kMonitoring + "/rules.yaml")["groups"]));
}

TEST(MonitoringOverlayTest, ItScrapesTheOpsPortOfEveryDaemon) {
  if (!HasKubectl()) GTEST_SKIP() << "there is no kubectl";
  const Manifest monitoring = ParseManifest(Render("monitoring").value()).value();
  const Object* const monitor = Find(monitoring, "ServiceMonitor", "sluice");
  ASSERT_NE(monitor, nullptr);
  const std::string port = TextAt(monitor->yaml, "spec.endpoints.0.port");

  std::set<std::string> scraped;
  const Manifest fleet = ParseManifest(Render("prod").value()).value();
  for (const Object& object : fleet) {
    if (object.kind != "Service" ||
        !Selects(At(monitor->yaml, "spec.selector"), LabelsAt(object.yaml, "metadata.labels")))
      continue;
    EXPECT_EQ(TextAt(object.yaml, "metadata.namespace"),
              TextAt(monitor->yaml, "metadata.namespace"));
    for (const YAML::Node& entry : At(object.yaml, "spec.ports"))
      if (TextAt(entry, "name") == port) scraped.insert(RoleOf(object));
  }
  EXPECT_EQ(scraped,
            (std::set<std::string>{"controller", "queue", "reward", "rollout", "trainer"}));
}

TEST(MonitoringOverlayTest, NothingThatTheClusterGetsChangesUnnoticed) {
  if (!HasKubectl()) GTEST_SKIP() << "there is no kubectl";
  Manifest manifest = ParseManifest(Render("monitoring").value()).value();
  for (Object& object : manifest)
    if (object.kind == "ConfigMap") object.yaml.remove("data");  // The test above compares it.
  EXPECT_EQ(CompareWithGolden("monitoring", manifest), "");
}

// The adapter ------------------------------------------------------------------------------------

// The queries of adapter_rules.yaml by the names of their results, as the adapter asks them.
std::map<std::string, std::string> AdapterQueries() {
  std::map<std::string, std::string> queries;
  for (const YAML::Node& rule :
       At(YAML::LoadFile(kMonitoring + "/adapter_rules.yaml"), "rules.external"))
    queries[TextAt(rule, "name.as")] = absl::StrReplaceAll(
        TextAt(rule, "metricsQuery"), {{"<<.LabelMatchers>>", "namespace=\"sluice\""}});
  return queries;
}

TEST(AdapterTest, ItsQueriesNameMetricsOfTheTable) {
  const auto names = LabelsByName();
  for (const auto& [result, query] : AdapterQueries()) {
    for (const std::string& name : FindAll(query, "(sluice_[a-z_]+)"))
      EXPECT_TRUE(names.contains(name)) << result << ": " << name;
  }
}

TEST(AdapterTest, TheAutoscalersReadItsResults) {
  if (!HasKubectl()) GTEST_SKIP() << "there is no kubectl";
  std::set<std::string> read, made;
  for (const auto& [result, query] : AdapterQueries()) made.insert(result);
  for (const Object& object : Manifest(ParseManifest(Render("prod").value()).value())) {
    if (object.kind == "HorizontalPodAutoscaler")
      read.insert(TextAt(object.yaml, "spec.metrics.0.external.metric.name"));
  }
  EXPECT_EQ(read, made);
}

// What a query gives after ten minutes in which the series of `input` had these values.
absl::Status ExpectResult(const std::string& result, const std::string& wanted,
                          const std::map<std::string, std::string>& input) {
  const std::string file = MakeTempDir().value() + "/test.yaml";
  YAML::Node test, expected;
  test["interval"] = "30s";
  for (const auto& [series, values] : input) {
    YAML::Node one;
    one["series"] = absl::StrReplaceAll(series, {{"{", "{namespace=\"sluice\","}});
    one["values"] = values;
    test["input_series"].push_back(one);
  }
  expected["expr"] = AdapterQueries().at(result);
  expected["eval_time"] = "10m";
  expected["exp_samples"] = YAML::Node(YAML::NodeType::Sequence);
  if (!wanted.empty()) {
    YAML::Node sample;
    sample["labels"] = "{}";
    sample["value"] = wanted;
    expected["exp_samples"].push_back(sample);
  }
  test["promql_expr_test"].push_back(expected);
  YAML::Node all;
  all["tests"].push_back(test);
  SLUICE_CHECK(WriteFileAtomic(file, YAML::Dump(all)).ok());
  return RunCommand({"promtool", "test", "rules", file}).status();
}

// The series of a fleet with so many rollouts, whose jobs can use min to max of them, and whose
// trainers wait this many seconds in each half minute. -1: there are no trainers.
std::map<std::string, std::string> MakeInput(int up, int min, int max, int waited) {
  const auto constant = [](int value) { return absl::StrCat(value, "x20"); };
  const auto counter = [](int step) { return absl::StrCat("0+", step, "x20"); };
  const std::string wanted = "sluice_controller_wanted_daemons{pool=\"default\",role=\"rollout\",";
  std::map<std::string, std::string> input = {
      {"sluice_controller_daemons{role=\"rollout\",state=\"up\"}", constant(up)},
      {wanted + "bound=\"min\"}", constant(min)},
      {wanted + "bound=\"max\"}", constant(max)}};
  if (waited < 0) return input;
  const std::string phase = "sluice_trainer_phase_seconds_total{phase=";
  input[phase + "\"wait_data\"}"] = counter(waited);
  input[phase + "\"forward\"}"] = counter(30 - waited);
  return input;
}

TEST(AdapterTest, ItAsksForTheRolloutsThatJobsNeedAndCanUse) {
  struct Case {
    const char* what;
    std::map<std::string, std::string> input;
    const char* wanted;
  };
  const Case cases[] = {
      {"a job waits for rollouts, and none trains", MakeInput(2, 5, 5, -1), "5"},
      {"one more is missing than an autoscaler would see", MakeInput(19, 20, 20, -1), "22"},
      {"trainers wait too long", MakeInput(2, 1, 8, 6), "4"},
      {"the job has its maximum, and still waits", MakeInput(4, 1, 4, 20), "4"},
      {"trainers never wait", MakeInput(8, 2, 8, 0), "2"},
      {"all jobs have ended, and their trainers stand still", MakeInput(8, 0, 0, -1), "0"},
      {"there is no controller", {}, ""},
  };
  for (const Case& c : cases) {
    const absl::Status found = ExpectResult("sluice_wanted_rollouts", c.wanted, c.input);
    EXPECT_TRUE(found.ok()) << c.what << ": " << found;
  }
}

TEST(AdapterTest, ItAsksForTheRewardsThatJobsNeedAndCanUse) {
  struct Case {
    int min, max;
    const char* seconds;  // Of scoring in half a minute.
    const char* wanted;
  };
  for (const Case& c : {Case{2, 2, "", "2"}, Case{1, 8, "63", "3"}, Case{1, 2, "210", "2"},
                        Case{1, 4, "0", "1"}, Case{0, 0, "", "0"}}) {
    std::map<std::string, std::string> input;
    const std::string wanted =
        "sluice_controller_wanted_daemons{pool=\"default\",role=\"reward\",bound=";
    input[wanted + "\"min\"}"] = absl::StrCat(c.min, "x20");
    input[wanted + "\"max\"}"] = absl::StrCat(c.max, "x20");
    if (*c.seconds != '\0')
      input["sluice_reward_duration_seconds_sum{job_id=\"a\"}"] =
          absl::StrCat("0+", c.seconds, "x20");
    const absl::Status found = ExpectResult("sluice_wanted_rewards", c.wanted, input);
    EXPECT_TRUE(found.ok()) << found;
  }
}

// The reader --------------------------------------------------------------------------------------

// Reads the table with one change.
std::string ErrorAfter(const char* text, const char* replacement) {
  const std::string table = ReadFile(kMonitoring + "/table.yaml").value();
  const std::string changed = absl::StrReplaceAll(table, {{text, replacement}});
  EXPECT_NE(table, changed) << text;
  const std::string path = MakeTempDir().value() + "/table.yaml";
  EXPECT_TRUE(WriteFileAtomic(path, changed).ok());
  return std::string(monitoring::ReadTable(path).status().message());
}

TEST(TableTest, MistakesAreNamedWithTheirLine) {
  EXPECT_THAT(ErrorAfter("severity: page", "severity: loud"),
              testing::ContainsRegex("line [0-9]+: the field severity is loud; wanted: page, "));
  EXPECT_THAT(ErrorAfter("runbook: job-no-progress", "runbok: job-no-progress"),
              HasSubstr("the field runbook is missing"));
  EXPECT_THAT(ErrorAfter("runbook: job-no-progress", "runbook: job-no-progress\n    more: 1"),
              HasSubstr("there is no field more"));
  EXPECT_THAT(ErrorAfter("labels: [role, version]", "labels: role"), HasSubstr("line "));
  EXPECT_THAT(ErrorAfter("recorded:", "recorded: ["), HasSubstr("table.yaml: "));
}

}  // namespace
}  // namespace sluice::deploy
