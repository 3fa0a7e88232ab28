// sluice job report: writes a page about a job.

#include <cstdio>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/base/status.h"
#include "tools/sluice/client.h"
#include "tools/sluice/commands.h"
#include "tools/sluice/options.h"
#include "tools/sluice/output.h"
#include "tools/sluice/report/report.h"

namespace sluice::cli {
namespace {

struct ReportOptions {
  std::string server, job, out;
};

absl::StatusOr<JobHistory> ReadHistory(const rpc::Channel& channel, const std::string& job) {
  JobHistory history;
  std::map<int64_t, job::v1::StepReport> steps;
  JobHandlers handlers;
  handlers.event = [&](const common::v1::Event& event) { history.events.push_back(event); };
  handlers.step = [&](const job::v1::StepReport& step) { steps[step.k()] = step; };
  SLUICE_ASSIGN_OR_RETURN(history.status, ReadJob(channel, job, handlers));
  for (auto& [k, step] : steps) history.steps.push_back(std::move(step));
  return history;
}

ExitCode WriteReport(const ReportOptions& o) {
  const absl::StatusOr<std::shared_ptr<rpc::Channel>> channel = ConnectToController(o.server);
  if (!channel.ok()) return Complain(channel.status());
  const absl::StatusOr<JobHistory> history = ReadHistory(**channel, o.job);
  if (!history.ok()) return Complain(history.status());

  const std::string page = ReportPage(*history, absl::Now());
  if (o.out == "-") {
    std::fwrite(page.data(), 1, page.size(), stdout);
    return kDone;
  }
  const std::string path =
      o.out.empty() ? absl::StrCat(history->status.name(), "-report.html") : o.out;
  if (const absl::Status status = WriteFileAtomic(path, page); !status.ok())
    return Complain(status);
  std::printf("%s: %zu steps, %zu events\n", path.c_str(), history->steps.size(),
              history->events.size());
  return kDone;
}

}  // namespace

std::vector<Command> ReportCommands() {
  return {{"job", "report",
           "Write a page with the plots of a job, its faults and the lineage of its weights.",
           "  sluice job report digits\n"
           "  sluice job report digits -o report.html    # open it in a browser; it needs no "
           "network",
           [](CLI::App* app) {
             auto o = std::make_shared<ReportOptions>();
             app->add_option("JOB", o->job, "name or id of the job")->required();
             app->add_option("-o,--out", o->out,
                             "file to write, or - for stdout; default: NAME-report.html")
                 ->type_name("FILE");
             AddServer(app, &o->server);
             return [o] { return WriteReport(*o); };
           }}};
}

}  // namespace sluice::cli
