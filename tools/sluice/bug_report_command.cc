// sluice bug-report: collects what is needed to understand a problem.

#include <unistd.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/base/status.h"
#include "tools/sluice/bug_report.h"
#include "tools/sluice/client.h"
#include "tools/sluice/commands.h"
#include "tools/sluice/doctor_command.h"
#include "tools/sluice/options.h"
#include "tools/sluice/progress.h"

namespace sluice::cli {
namespace {

struct BugReportOptions {
  std::string out, server, data_dir;
  std::vector<std::string> jobs;
};

std::map<std::string, std::string> ReadEnvironment() {
  std::map<std::string, std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::pair<std::string, std::string> parts =
        absl::StrSplit(*entry, absl::MaxSplits('=', 1));
    variables[parts.first] = parts.second;
  }
  return variables;
}

ExitCode MakeBugReport(const BugReportOptions& o) {
  const std::map<std::string, std::string> environment = ReadEnvironment();
  const Scrubber scrub(environment);
  const DoctorInputs inputs = MakeDoctorInputs(o.data_dir, "", o.server);
  ReportFiles files = CollectHost(inputs, environment, scrub);
  files.merge(CollectMetrics(inputs, scrub));
  if (inputs.answer.ok()) {
    const auto channel = ConnectToController(o.server);
    if (!channel.ok()) return Complain(channel.status());
    files.merge(CollectFleet(**channel, o.jobs, scrub));
  }

  const std::string name = absl::StrCat(
      "sluice-report-", absl::FormatTime("%Y%m%d-%H%M%S", absl::Now(), absl::UTCTimeZone()));
  if (const absl::Status status = WriteReport(o.out, name, files); !status.ok())
    return Complain(status);
  std::printf("%s\n", o.out.c_str());
  std::fprintf(stderr, "it contains:\n");
  for (const auto& [file, text] : files)
    std::fprintf(stderr, "  %s  %s\n", file.c_str(), ShortBytes(text.size()).c_str());
  if (!inputs.answer.ok())
    std::fprintf(stderr, "it contains nothing of a fleet: %s\n",
                 inputs.server.empty() ? "none runs here, and no --server was given"
                                       : std::string(inputs.answer.status().message()).c_str());
  std::fprintf(
      stderr,
      "keys, passwords, values of environment variables and texts of prompts and answers "
      "are left out; paths, names of hosts and the settings of jobs are in it\nnothing was "
      "sent: look at it with `tar -tzf %s`, and pass it on yourself\n",
      o.out.c_str());
  return kDone;
}

}  // namespace

std::vector<Command> BugReportCommands() {
  return {
      {"", "bug-report",
       "Collect versions, doctor's output, jobs, daemons, metrics and logs in one file, without "
       "secrets. Nothing is sent.",
       "  sluice bug-report -o report.tar.gz\n  sluice bug-report digits -o report.tar.gz",
       [](CLI::App* app) {
         auto o = std::make_shared<BugReportOptions>();
         app->add_option("JOB", o->jobs,
                         "names or ids of jobs; default: those that run and the last three");
         app->add_option("-o,--out", o->out, "the file to make")->required();
         app->add_option("--data-dir", o->data_dir,
                         "of the fleet of `dev up`; default: where it runs");
         AddServer(app, &o->server);
         return [o] { return MakeBugReport(*o); };
       }}};
}

}  // namespace sluice::cli
