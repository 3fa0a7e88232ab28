// sluice job steps: shows the steps of a job that the controller keeps.

#include "tools/sluice/steps_command.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"
#include "common/rpc/convert.h"
#include "services/trainer/core/metrics_log.h"
#include "tools/sluice/client.h"
#include "tools/sluice/commands.h"
#include "tools/sluice/options.h"
#include "tools/sluice/output.h"
#include "tools/sluice/table.h"

namespace sluice::cli {
namespace {

using job::v1::StepReport;

// The columns that are shown by default, if the job has them. Values of evaluations are shown after
// them.
constexpr const char* kUsualColumns[] = {
    "step", "reward_mean", "reward_std", "flat_share", "loss",          "entropy",
    "kl",   "grad_norm",   "lr",         "tokens",     "staleness_max", "seconds_step"};
// The columns of a step besides its values.
constexpr const char* kFixedColumns[] = {"step", "version", "incarnation", "time"};

trainer::StepRecord RecordOf(const StepReport& report) {
  trainer::StepRecord record{.step = report.k(),
                             .version = rpc::FromProto(report.version()),
                             .at = rpc::FromProto(report.at()),
                             .values = {report.values().begin(), report.values().end()}};
  for (const auto& [text, tokens] : report.staleness()) {
    int64_t staleness = 0;
    if (absl::SimpleAtoi(text, &staleness)) record.staleness[staleness] += tokens;
  }
  return record;
}

// Whole numbers in full, others with four digits.
std::string NumberText(double value) {
  const bool whole = std::trunc(value) == value && std::abs(value) < 1e15;
  return whole ? absl::StrFormat("%.0f", value) : absl::StrFormat("%.4g", value);
}

std::string CellText(const trainer::StepRecord& record, const std::string& column) {
  if (column == "step") return absl::StrCat(record.step);
  if (column == "version") return absl::StrCat(record.version.number);
  if (column == "incarnation") return absl::StrCat(record.version.incarnation);
  if (column == "time")
    return absl::FormatTime("%Y-%m-%d %H:%M:%S", record.at, absl::LocalTimeZone());
  if (const auto value = record.values.find(column); value != record.values.end()) {
    return NumberText(value->second);
  }
  return "-";
}

// Reads the steps that the options ask for, oldest first.
absl::StatusOr<std::vector<StepReport>> ReadSteps(const rpc::Channel& channel,
                                                  const StepsOptions& o) {
  SLUICE_ASSIGN_OR_RETURN(const job::v1::JobStatus job, GetJob(channel, o.job));
  ReadFrom from{.after_event = std::numeric_limits<uint64_t>::max()};  // Skip the events.
  if (o.last > 0 && job.step() > o.last) from.after_step = job.step() - o.last - 1;
  std::vector<StepReport> steps;
  JobHandlers handlers;
  handlers.step = [&](const StepReport& step) { steps.push_back(step); };
  SLUICE_RETURN_IF_ERROR(ReadJob(channel, job.job(), handlers, from).status());

  // A running job may have made more steps since GetJob().
  if (o.last > 0 && steps.size() > static_cast<size_t>(o.last)) {
    steps.erase(steps.begin(), steps.end() - o.last);
  }
  return steps;
}

ExitCode PrintSteps(const StepsOptions& o) {
  const absl::StatusOr<std::shared_ptr<rpc::Channel>> channel = ConnectToController(o.server);
  if (!channel.ok()) return Complain(channel.status());
  absl::StatusOr<std::vector<StepReport>> read = ReadSteps(**channel, o);
  if (!read.ok()) return Complain(read.status());
  std::vector<StepReport> steps = *std::move(read);
  if (steps.empty()) {
    std::fprintf(stderr, "%s has no step yet\n", o.job.c_str());
    return kDone;
  }

  // The controller keeps only some of the old steps.
  const int64_t missing =
      steps.back().k() - steps.front().k() + 1 - static_cast<int64_t>(steps.size());
  const int64_t newest = steps.back().k();
  std::erase_if(
      steps, [&](const StepReport& step) { return step.k() % o.every != 0 && step.k() != newest; });
  if (o.output == "name") {
    for (const StepReport& step : steps) std::printf("%lld\n", static_cast<long long>(step.k()));
  } else if (o.output == "yaml") {
    nlohmann::ordered_json json = nlohmann::ordered_json::array();
    for (const StepReport& step : steps)
      json.push_back(nlohmann::ordered_json::parse(StepJson(step)));
    PrintData(json, o.output);
  } else if (!IsData(o.output)) {
    const bool all = o.output == "wide" && o.columns.empty();
    const auto rows = StepRows(steps, all ? std::vector<std::string>{"all"} : o.columns);
    if (!rows.ok()) return Complain(rows.status());
    std::fputs(Table(*rows).c_str(), stdout);
  } else {
    for (const StepReport& step : steps) std::printf("%s\n", StepJson(step).c_str());
  }

  if (missing > 0) {
    std::fprintf(stderr,
                 "%lld steps between these are not kept by the controller; metrics.jsonl beside "
                 "the job's checkpoints has them\n",
                 static_cast<long long>(missing));
  }
  return kDone;
}

}  // namespace

std::string StepJson(const StepReport& step) { return trainer::MetricsLine(RecordOf(step)); }

absl::StatusOr<std::vector<std::vector<std::string>>> StepRows(
    const std::vector<StepReport>& steps, const std::vector<std::string>& columns) {
  std::vector<trainer::StepRecord> records;
  std::set<std::string> known(std::begin(kFixedColumns), std::end(kFixedColumns));
  for (const StepReport& step : steps) {
    records.push_back(RecordOf(step));
    for (const auto& [name, value] : records.back().values) known.insert(name);
  }

  std::vector<std::string> shown = columns;
  if (columns.empty()) {
    absl::c_copy_if(kUsualColumns, std::back_inserter(shown),
                    [&](const char* name) { return known.count(name) > 0; });
    absl::c_copy_if(known, std::back_inserter(shown),
                    [](const std::string& name) { return absl::StartsWith(name, "eval/"); });
  } else if (columns == std::vector<std::string>{"all"}) {
    shown.assign(std::begin(kFixedColumns), std::end(kFixedColumns));
    absl::c_copy_if(known, std::back_inserter(shown), [](const std::string& name) {
      return !absl::c_linear_search(kFixedColumns, name);
    });
  }
  for (const std::string& column : shown) {
    if (known.count(column) == 0) {
      return absl::InvalidArgumentError(absl::StrCat("no step has a column \"", column,
                                                     "\"; there are ", absl::StrJoin(known, ", ")));
    }
  }

  std::vector<std::vector<std::string>> rows = {shown};
  for (const trainer::StepRecord& record : records) {
    std::vector<std::string>& row = rows.emplace_back();
    for (const std::string& column : shown) row.push_back(CellText(record, column));
  }
  return rows;
}

std::vector<Command> StepsCommands() {
  return {{"job", "steps", "Show a job's training steps, also after its end.",
           "  sluice job steps digits --last 20\n"
           "  sluice job steps digits --every 10 --columns step,reward_mean,entropy\n"
           "  sluice job steps digits -o json    # an object per step and line, in the form of "
           "metrics.jsonl",
           [](CLI::App* app) {
             auto o = std::make_shared<StepsOptions>();
             app->add_option("JOB", o->job, "name or id of the job")->required();
             app->add_option("--last", o->last, "show only the newest N steps")
                 ->check(NumberIn<int64_t>(1))
                 ->type_name("N");
             app->add_option("--every", o->every,
                             "show the steps whose number N divides, and the newest step")
                 ->check(NumberIn<int64_t>(1))
                 ->type_name("N");
             // This is one text with commas, because a list option would also take the arguments
             // after it.
             app->add_option_function<std::string>(
                    "--columns",
                    [o](const std::string& names) { o->columns = absl::StrSplit(names, ','); },
                    "names of columns, separated by commas, or all; default: the usual columns")
                 ->type_name("NAME,..");
             AddServer(app, &o->server);
             AddFormats(app, &o->output, {"wide", "name"});
             return [o] { return PrintSteps(*o); };
           }}};
}

}  // namespace sluice::cli
