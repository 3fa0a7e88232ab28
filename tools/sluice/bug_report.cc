#include "tools/sluice/bug_report.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/child.h"
#include "common/base/file.h"
#include "common/base/status.h"
#include "common/cores/usable_cores.h"
#include "common/daemon/daemon.h"
#include "common/rpc/client.h"
#include "common/rpc/stream.h"
#include "sluice/job/v1/job.pb.h"
#include "tools/sluice/client.h"
#include "tools/sluice/dial.h"
#include "tools/sluice/json_output.h"
#include "tools/sluice/log_text.h"
#include "tools/sluice/output.h"
#include "tools/sluice/steps_command.h"
#include "tools/sluice/why_text.h"

namespace sluice::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kLogBytes = 256 << 10;  // Of the end of each log.
constexpr int kEndedJobs = 3;
constexpr int64_t kSteps = 200;       // The newest of each job.
constexpr uint32_t kLogLines = 1000;  // The newest of each job.
constexpr absl::Duration kLogTime = absl::Seconds(30);

std::string ErrorText(const absl::Status& status) {
  return absl::StrCat("not available: ", status.message(), "\n");
}

std::string Versions() {
  utsname host{};
  uname(&host);
  std::string system = "unknown";
  const absl::StatusOr<std::string> release = ReadFile("/etc/os-release", 1 << 16);
  for (const absl::string_view line : absl::StrSplit(release.value_or(""), '\n')) {
    absl::string_view value = line;
    if (absl::ConsumePrefix(&value, "PRETTY_NAME=")) system = std::string(value);
  }
  return absl::StrCat("sluice ", daemon::kBuild, ", protocol ", daemon::kProtocol, "\nsystem ",
                      system, "\nkernel ", host.release, " ", host.machine, "\ncores ",
                      UsableCores(), "\n");
}

// The end of a file, from the beginning of a line on.
std::string ReadEnd(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadFile(path);
  if (!text.ok()) return ErrorText(text.status());
  if (text->size() <= kLogBytes) return *text;
  const std::string end = text->substr(text->size() - kLogBytes);
  return end.substr(end.find('\n') + 1);
}

std::vector<job::v1::JobStatus> ChooseJobs(const job::v1::ListResponse& list,
                                           const std::vector<std::string>& wanted) {
  std::vector<job::v1::JobStatus> chosen;
  int ended = 0;
  for (const job::v1::JobStatus& job : list.jobs()) {
    const bool named = std::find(wanted.begin(), wanted.end(), job.name()) != wanted.end() ||
                       std::find(wanted.begin(), wanted.end(), job.job()) != wanted.end();
    const bool by_itself = wanted.empty() && (!IsFinal(job.state()) || ended++ < kEndedJobs);
    if (named || by_itself) chosen.push_back(job);
  }
  return chosen;
}

// The log lines of a job that its daemons keep in memory. What is missing follows, in lines of the
// form {"note":".."}.
std::string CollectLog(const rpc::Channel& channel, const std::string& job, const Scrubber& scrub) {
  rpc::ClientStream stream(channel, *job::v1::LogsRequest::descriptor(), /*cancel=*/nullptr,
                           kLogTime);
  job::v1::LogsRequest request;
  request.set_job(job);
  request.set_tail(kLogLines);
  stream.Write(request);
  stream.WritesDone();

  std::string lines, notes;
  job::v1::LogsResponse response;
  while (stream.Read(&response)) {
    for (const job::v1::DaemonLine& line : response.lines())
      absl::StrAppend(&lines, line.line().json(), "\n");
    notes += LogNotes(response);
  }
  if (const absl::Status status = stream.Finish(); !status.ok()) notes += ErrorText(status);
  for (const absl::string_view note : absl::StrSplit(notes, '\n', absl::SkipEmpty()))
    lines += FormatData({{"note", std::string(note)}}, "jsonl");
  return scrub.ScrubLines(lines);
}

void CollectJob(const rpc::Channel& channel, const job::v1::JobStatus& listed,
                const Scrubber& scrub, ReportFiles* files) {
  const std::string dir = absl::StrCat("jobs/", listed.name(), "-", listed.job().substr(0, 8), "/");
  const absl::StatusOr<job::v1::JobStatus> status = GetJob(channel, listed.job());
  (*files)[dir + "status.json"] = status.ok() ? FormatData(scrub.ScrubJson(ToJson(*status)), "json")
                                              : ErrorText(status.status());

  Json events = Json::array();
  std::vector<job::v1::StepReport> steps;
  JobHandlers handlers;
  handlers.event = [&](const common::v1::Event& event) { events.push_back(ToJson(event)); };
  handlers.step = [&](const job::v1::StepReport& step) { steps.push_back(step); };
  ReadFrom from;
  if (listed.step() > kSteps) from.after_step = listed.step() - kSteps - 1;
  const absl::Status read = ReadJob(channel, listed.job(), handlers, from).status();
  (*files)[dir + "events.jsonl"] =
      FormatData(scrub.ScrubJson(events), "jsonl") + (read.ok() ? "" : ErrorText(read));
  (*files)[dir + "steps.jsonl"] =
      absl::StrJoin(steps, "", [](std::string* out, const job::v1::StepReport& step) {
        absl::StrAppend(out, StepJson(step), "\n");
      });

  (*files)[dir + "log.jsonl"] = CollectLog(channel, listed.job(), scrub);

  if (IsFinal(listed.state())) return;
  job::v1::WhyRequest request;
  request.set_job(listed.job());
  job::v1::WhyResponse why;
  const absl::Status asked = rpc::Call(channel, request, &why);
  (*files)[dir + "why.txt"] = asked.ok() ? scrub.ScrubText(WhyText(listed, why)) : ErrorText(asked);
  job::v1::InspectRequest inspect;
  inspect.set_job(listed.job());
  inspect.mutable_queue_stats();
  job::v1::InspectResponse stats;
  const absl::Status told = rpc::Call(channel, inspect, &stats);
  (*files)[dir + "queue.json"] =
      told.ok() ? FormatData(scrub.ScrubJson(ToJson(stats.queue_stats())), "json")
                : ErrorText(told);
}

}  // namespace

ReportFiles CollectHost(const DoctorInputs& inputs,
                        const std::map<std::string, std::string>& environment,
                        const Scrubber& scrub) {
  ReportFiles files;
  files["versions.txt"] = Versions();
  for (const auto& [name, value] : environment)
    absl::StrAppend(&files["environment_names.txt"], name, "\n");

  const std::vector<DoctorResult> results = RunChecks(*SelectChecks({}), inputs);
  files["doctor.txt"] = scrub.ScrubText(DoctorText(results));
  if (inputs.local) {
    for (const DaemonState& daemon : inputs.local->daemons)
      files[absl::StrCat("logs/", daemon.name, ".log")] = scrub.ScrubLines(ReadEnd(daemon.log));
    files["logs/supervisor.log"] =
        scrub.ScrubLines(ReadEnd(inputs.data_dir + "/logs/supervisor.log"));
    files["dev_status.json"] =
        FormatData(scrub.ScrubJson(Json::parse(FleetStateJson(*inputs.local))), "json");
  }
  return files;
}

ReportFiles CollectFleet(const rpc::Channel& channel, const std::vector<std::string>& jobs,
                         const Scrubber& scrub) {
  ReportFiles files;
  admin::v1::DaemonsResponse daemons;
  const absl::Status listed = rpc::Call(channel, admin::v1::DaemonsRequest(), &daemons);
  files["daemons.json"] =
      listed.ok() ? FormatData(scrub.ScrubJson(ToJson(daemons)), "json") : ErrorText(listed);
  const absl::StatusOr<job::v1::ListResponse> list = ReadJobs(channel, /*states=*/{}, /*limit=*/0);
  files["jobs.json"] =
      list.ok() ? FormatData(scrub.ScrubJson(ToJson(*list)), "json") : ErrorText(list.status());
  if (!list.ok()) return files;
  for (const job::v1::JobStatus& job : ChooseJobs(*list, jobs))
    CollectJob(channel, job, scrub, &files);
  return files;
}

ReportFiles CollectMetrics(const DoctorInputs& inputs, const Scrubber& scrub) {
  std::map<std::string, std::string> pages;
  if (inputs.answer.ok()) {
    for (const admin::v1::Daemon& daemon : inputs.answer->daemons.daemons()) {
      const auto ops = daemon.addresses().find("ops");
      if (!daemon.lost() && ops != daemon.addresses().end()) pages[daemon.daemon()] = ops->second;
    }
  }
  if (inputs.local) {
    for (const DaemonState& daemon : inputs.local->daemons) pages[daemon.name] = daemon.ops;
  }
  ReportFiles files;
  for (const auto& [name, address] : pages) {
    const absl::StatusOr<std::string> page = HttpGet(address, "/metrics", absl::Seconds(1));
    files[absl::StrCat("metrics/", name, ".txt")] =
        page.ok() ? scrub.ScrubSecrets(*page) : ErrorText(page.status());
  }
  return files;
}

absl::Status WriteReport(const std::string& path, const std::string& name,
                         const ReportFiles& files) {
  if (PathExists(path))
    return absl::AlreadyExistsError(absl::StrCat(path, " exists; name another file"));
  std::string folder =
      absl::StrCat(std::filesystem::temp_directory_path().string(), "/sluice-report-XXXXXX");
  if (mkdtemp(folder.data()) == nullptr) return ErrnoStatus(errno, "mkdtemp");
  const auto write = [&]() -> absl::Status {
    for (const auto& [file, text] : files) {
      const std::filesystem::path target = absl::StrCat(folder, "/", name, "/", file);
      SLUICE_RETURN_IF_ERROR(MakeDirs(target.parent_path().string()));
      SLUICE_RETURN_IF_ERROR(WriteFileAtomic(target.string(), text));
    }
    // An own descriptor, so that the file has its mode from the beginning.
    const int fd = open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
    if (fd < 0) return ErrnoStatus(errno, absl::StrCat("open ", path));
    close(fd);
    SLUICE_ASSIGN_OR_RETURN(
        const Child tar,
        StartChild({.argv = {"/bin/tar", "-C", folder, "--owner=0", "--group=0", "-czf",
                             std::filesystem::absolute(path).string(), name}}));
    close(tar.stdout_fd);
    int status = 0;
    waitpid(tar.pid, &status, 0);
    if (status == 0) return absl::OkStatus();
    unlink(path.c_str());
    return absl::InternalError(absl::StrCat("tar ended with ", WaitStatusText(status)));
  };
  const absl::Status status = write();
  (void)RemoveTree(folder);
  return status;
}

}  // namespace sluice::cli
