#include "tools/sluice/report/report.h"

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/rpc/convert.h"
#include "tools/sluice/json_output.h"
#include "tools/sluice/output.h"

namespace sluice::cli {

// sluice_embed() makes these from the files. The page of the controller has the same curves and
// colours.
namespace report_page {
extern const absl::string_view report_html, report_js, charts_js, elements_js, style_css;
}  // namespace report_page

namespace {

using nlohmann::ordered_json;

double Seconds(const google::protobuf::Timestamp& at) {
  return static_cast<double>(absl::ToUnixMillis(rpc::FromProto(at))) / 1e3;
}

ordered_json ToNumber(double value) {
  return std::isfinite(value) ? ordered_json(value) : ordered_json(nullptr);
}

// The steps as columns: `k`, `at`, `incarnation`, and `values`, a list with a number or null for
// each step by the name of the value.
ordered_json StepColumns(const std::vector<job::v1::StepReport>& steps) {
  ordered_json k = ordered_json::array(), at = k, incarnation = k;
  std::map<std::string, std::vector<ordered_json>> values;
  for (size_t i = 0; i < steps.size(); ++i) {
    k.push_back(steps[i].k());
    at.push_back(Seconds(steps[i].at()));
    incarnation.push_back(steps[i].version().incarnation());
    for (const auto& [name, value] : steps[i].values()) {
      std::vector<ordered_json>& column = values[name];
      column.resize(steps.size());
      column[i] = ToNumber(value);
    }
  }
  return {{"k", std::move(k)},
          {"at", std::move(at)},
          {"incarnation", std::move(incarnation)},
          {"values", values}};
}

ordered_json EventJson(const common::v1::Event& event) {
  const auto short_name = [](std::string name, absl::string_view prefix) {
    return absl::AsciiStrToLower(absl::StripPrefix(name, prefix));
  };
  return {{"seq", event.seq()},
          {"at", Seconds(event.at())},
          {"severity", short_name(common::v1::Severity_Name(event.severity()), "SEVERITY_")},
          {"role", short_name(rpc::v1::Role_Name(event.role()), "ROLE_")},
          {"daemon", event.daemon()},
          {"code", event.code()},
          {"message", event.message()},
          {"count", event.count()}};
}

// The text of a module that is put into the page's only script: nothing is imported or exported.
std::string WithoutModules(absl::string_view script) {
  std::vector<std::string> lines;
  bool in_import = false;
  for (absl::string_view line : absl::StrSplit(script, '\n')) {
    in_import = in_import || absl::StartsWith(line, "import ");
    if (in_import) {
      in_import = !absl::EndsWith(line, ";");
      continue;
    }
    lines.emplace_back(absl::StripPrefix(line, "export "));
  }
  return absl::StrJoin(lines, "\n");
}

}  // namespace

std::string ReportPage(const JobHistory& history, absl::Time now) {
  const job::v1::JobStatus& status = history.status;
  ordered_json data;
  data["made"] = absl::ToUnixSeconds(now);
  data["name"] = status.name();
  data["created"] = Seconds(status.created());
  data["status"] = ToJson(status);
  data["status"].erase("spec");
  data["spec"] = ToJson(status.spec());
  data["yaml"] = FormatData(data["spec"], "yaml");
  data["steps"] = StepColumns(history.steps);
  data["events"] = ordered_json::array();
  for (const common::v1::Event& event : history.events) data["events"].push_back(EventJson(event));

  // A text of the job could hold the end tag of the script element that the data is in.
  const std::string json = absl::StrReplaceAll(
      data.dump(-1, ' ', false, ordered_json::error_handler_t::replace), {{"<", "\\u003c"}});
  const std::string script =
      absl::StrCat(WithoutModules(report_page::charts_js), WithoutModules(report_page::elements_js),
                   WithoutModules(report_page::report_js));
  return absl::StrReplaceAll(
      report_page::report_html,
      {{"/*STYLE*/", report_page::style_css}, {"/*SCRIPT*/", script}, {"/*DATA*/", json}});
}

}  // namespace sluice::cli
