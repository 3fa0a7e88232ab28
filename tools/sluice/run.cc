#include "tools/sluice/run.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/base/child.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/config/job_file.h"
#include "tools/sluice/client.h"
#include "tools/sluice/curve.h"
#include "tools/sluice/fleet.h"
#include "tools/sluice/fleet_tls.h"
#include "tools/sluice/interrupts.h"
#include "tools/sluice/json_output.h"
#include "tools/sluice/output.h"
#include "tools/sluice/progress.h"
#include "tools/sluice/run_dir.h"
#include "tools/sluice/supervisor.h"
#include "tools/sluice/table.h"

namespace sluice::cli {
namespace {

// How long to wait for a controller that does not answer.
constexpr absl::Duration kControllerPatience = absl::Minutes(2);
constexpr absl::Duration kDrainGrace = absl::Seconds(15);  // Time for daemons to drain.
constexpr int kMaxDaemons = 64;                            // Of each role.

// Returns how many daemons of a role to start: `wanted`, or `needed` if that is 0.
// INVALID_ARGUMENT: fewer than the job needs (it would wait for more until limits.start), or too
// many for one machine.
absl::StatusOr<int> ChooseCount(absl::string_view role, int wanted, uint32_t needed) {
  if (wanted == 0) wanted = static_cast<int>(std::min<uint32_t>(needed, INT_MAX));
  if (static_cast<uint32_t>(wanted) < needed) {
    return ErrorWith(absl::StatusCode::kInvalidArgument,
                     {.hint = absl::StrCat("give --", role, "s ", needed, ", or --set resources.",
                                           role, ".min=", wanted)},
                     absl::StrCat("the job starts with ", needed, " ", role, " daemons (resources.",
                                  role, ".min), and --", role, "s starts ", wanted));
  }

  if (wanted > kMaxDaemons) {
    return ErrorWith(
        absl::StatusCode::kInvalidArgument,
        {.hint = "start such a fleet by hand, and submit the job with `sluice job submit`"},
        absl::StrCat("the job starts with ", needed, " ", role, " daemons (resources.", role,
                     ".min), and one machine runs at most ", kMaxDaemons));
  }
  return wanted;
}

// Supervised training needs neither rollout nor reward daemons, and a job without rewards no reward
// daemon.
absl::StatusOr<FleetOptions> FleetOptionsFor(const RunOptions& options,
                                             const job::v1::JobSpec& spec) {
  FleetOptions fleet{.insecure = options.insecure,
                     .judges = options.judges,
                     .plugin_servers = options.plugin_servers};
  const bool sampled = spec.kind() == "rl";
  const bool scored = sampled && !spec.reward().rewards().empty();
  const job::v1::Resources& resources = spec.resources();
  SLUICE_ASSIGN_OR_RETURN(fleet.rollouts, ChooseCount("rollout", options.rollouts,
                                                      sampled ? resources.rollout().min() : 0));
  SLUICE_ASSIGN_OR_RETURN(
      fleet.rewards, ChooseCount("reward", options.rewards, scored ? resources.reward().min() : 0));
  if (resources.trainer() > kMaxDaemons) {
    return ErrorWith(
        absl::StatusCode::kInvalidArgument,
        {.hint = "start such a fleet by hand, and submit the job with `sluice job submit`"},
        absl::StrCat("the job has ", resources.trainer(),
                     " trainer ranks (resources.trainer), and one machine runs at most ",
                     kMaxDaemons));
  }
  fleet.trainers = static_cast<int>(std::max<uint32_t>(1, resources.trainer()));
  if (!options.threads.empty()) {
    SLUICE_ASSIGN_OR_RETURN(fleet.threads, ParseThreads(options.threads));
  }
  return fleet;
}

// One run, from the start of its first daemon to the end of its last.
class Run {
 public:
  Run(const RunOptions& options, const JobFile& file, const FleetOptions& fleet)
      : options_(options),
        file_(file),
        fleet_(fleet),
        data_dir_(fleet.data_dir),
        printer_(stderr, options.quiet) {
    printer_.SetSpec(*file.spec);
  }

  // Runs the job. Returns its last status, or an error if there is none.
  absl::StatusOr<job::v1::JobStatus> RunToEnd();
  bool interrupted() const { return interrupts_seen_ > 0; }

 private:
  // Runs on the thread of Interrupts; `count` is 1 for the first signal.
  void OnSignal(int count);
  // Runs on the thread of the supervisor.
  void OnDaemonChange(const DaemonState& state);
  void WriteState();
  Supervisor* supervisor() {
    MutexLock lock(&mu_);
    return supervisor_.get();
  }
  absl::StatusOr<job::v1::JobStatus> SubmitAndFollow(const std::string& controller);

  const RunOptions& options_;
  const JobFile& file_;
  const FleetOptions fleet_;
  const std::string data_dir_;
  ProgressPrinter printer_;
  std::atomic<int> interrupts_seen_ = 0;
  std::atomic<bool> ending_ = false;  // The daemons are being stopped on purpose.
  // Held from reading the state to writing it, so that the newest state is written last.
  Mutex writing_ ABSL_ACQUIRED_BEFORE(mu_);
  Mutex mu_;
  // Null before the first daemon starts and after the last has ended.
  std::unique_ptr<Supervisor> supervisor_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<rpc::Channel> channel_ ABSL_GUARDED_BY(mu_);
  std::string job_ ABSL_GUARDED_BY(mu_);  // The id of the job once it is submitted.
  std::string controller_ ABSL_GUARDED_BY(mu_);
};

void Run::OnSignal(int count) {
  interrupts_seen_ = count;
  if (count > 1) {
    std::fprintf(stderr, "killed; the daemons' logs are in %s/logs\n", data_dir_.c_str());
    _exit(kInterrupted);  // The daemons die with this process.
  }

  std::shared_ptr<rpc::Channel> channel;
  std::string job;
  {
    MutexLock lock(&mu_);
    channel = channel_;
    job = job_;
  }

  // There is nothing to cancel yet: just stop the daemons.
  if (job.empty() || channel == nullptr) {
    printer_.Note("stopping the daemons; a second Ctrl-C kills them");
    ending_ = true;
    if (Supervisor* daemons = supervisor()) daemons->Stop(kDrainGrace);
    return;
  }

  printer_.Note("cancelling the job; a second Ctrl-C kills the daemons");
  if (const absl::Status status = CancelJob(*channel, job).status(); !status.ok())
    printer_.Note(absl::StrCat("cancel: ", status.message()));
}

void Run::WriteState() {
  MutexLock one_at_a_time(&writing_);
  Supervisor* daemons = supervisor();
  if (daemons == nullptr) return;  // The run has ended.
  FleetState state{getpid(), ProcessStart(getpid()), "", daemons->states()};
  {
    MutexLock lock(&mu_);
    state.controller = controller_;
  }
  // For people and tests only; the run does not read it.
  (void)WriteFleetState(data_dir_, state);
}

void Run::OnDaemonChange(const DaemonState& state) {
  WriteState();
  if (!state.last_end.empty() && !ending_) {
    if (!state.ready)
      printer_.Note(absl::StrCat(state.name, " ended (", state.last_end, "); starting it again"));
    else printer_.Note(absl::StrCat(state.name, " is back (pid ", state.pid, ")"));
  }
}

absl::StatusOr<job::v1::JobStatus> Run::SubmitAndFollow(const std::string& controller) {
  SLUICE_RETURN_IF_ERROR(BecomeOperator(data_dir_));
  SLUICE_ASSIGN_OR_RETURN(std::shared_ptr<rpc::Channel> channel,
                          rpc::Connect(controller, {rpc::Role::kController}));
  SLUICE_ASSIGN_OR_RETURN(const job::v1::SubmitResponse submitted, Submit(*channel, file_));
  {
    MutexLock lock(&mu_);
    channel_ = channel;
    job_ = submitted.job();
  }

  // A signal may have come while the job was being submitted.
  if (interrupted()) SLUICE_RETURN_IF_ERROR(CancelJob(*channel, submitted.job()).status());
  std::string state;
  JobHandlers handlers;
  handlers.step = [&](const job::v1::StepReport& step) { printer_.Add(step); };
  handlers.event = [&](const common::v1::Event& event) {
    // The warnings about the job file were printed before the daemons were started.
    const bool already_printed = event.code() == "unusual";
    if (IsForPeople(event) && !already_printed && !options_.quiet) printer_.Note(event.message());
  };
  handlers.status = [&](const job::v1::JobStatus& status) {
    if (StateName(status.state()) == state || options_.quiet) return;
    state = StateName(status.state());
    printer_.Note(StateLine(status));
  };
  return FollowJob(*channel, submitted.job(), nullptr, kControllerPatience, handlers);
}

absl::StatusOr<job::v1::JobStatus> Run::RunToEnd() {
  auto interrupts = std::make_unique<Interrupts>([this](int count) { OnSignal(count); });
  // The supervisor's thread calls OnDaemonChange(), which reads supervisor_. The lock makes it wait
  // until that is set.
  {
    MutexLock lock(&mu_);
    supervisor_ = std::make_unique<Supervisor>(Supervisor::Options{
        .log_dir = data_dir_ + "/logs",
        .changed = [this](const DaemonState& state) { OnDaemonChange(state); }});
  }

  if (!options_.quiet) printer_.Note(PlanText(PlanCores(fleet_)));
  absl::StatusOr<std::string> controller = StartFleet(fleet_, supervisor());
  absl::StatusOr<job::v1::JobStatus> status = absl::CancelledError("interrupted");
  if (!controller.ok()) {
    status = controller.status();
  } else if (!interrupted()) {
    {
      MutexLock lock(&mu_);
      controller_ = *controller;
    }
    WriteState();
    status = SubmitAndFollow(*controller);
    // Close the connection, because a controller that stops waits until its connections are closed,
    // and an idle one would stay open.
    MutexLock lock(&mu_);
    channel_.reset();
  }

  printer_.Finish();
  ending_ = true;
  supervisor()->Stop(kDrainGrace);
  interrupts.reset();
  std::unique_ptr<Supervisor> ended;
  {
    MutexLock lock(&mu_);
    ended = std::move(supervisor_);
  }
  ended.reset();  // After this, nothing writes into the data directory.
  return status;
}

void PrintResult(const job::v1::JobStatus& status, const std::string& output) {
  if (IsData(output)) PrintData(ToJson(status.result()), output);
  else std::fputs(ResultTable(status.result(), Utf8Terminal()).c_str(), stdout);
  std::fflush(stdout);
}

}  // namespace

ExitCode RunJob(const RunOptions& options) {
  const JobFile file = ReadJobFile(options.file, {.sets = options.sets});
  if (const absl::Status problems = ProblemStatus(file.problems); !problems.ok())
    return Complain(problems);
  PrintWarnings(file);
  absl::StatusOr<FleetOptions> fleet = FleetOptionsFor(options, *file.spec);
  if (!fleet.ok()) return Complain(fleet.status());
  absl::StatusOr<RunDir> dir = RunDir::Make(options.data_dir);
  if (!dir.ok()) return Complain(dir.status());
  fleet->data_dir = dir->path();

  Run run(options, file, *fleet);
  const absl::StatusOr<job::v1::JobStatus> status = run.RunToEnd();
  const bool succeeded = status.ok() && status->state() == job::v1::JOB_STATE_SUCCEEDED;
  RemoveFleetState(dir->path());

  if (status.ok()) PrintResult(*status, options.output);
  // Keep the logs only of a run that failed.
  if (succeeded || run.interrupted()) {
    dir->Remove();
    return run.interrupted() ? kInterrupted : kDone;
  }

  dir->KeepLogs();
  const ExitCode code = status.ok() ? kJobFailed : Complain(status.status());
  if (status.ok()) std::fprintf(stderr, "%s\n", ErrorLine(*status).c_str());
  std::fprintf(stderr, "hint: the daemons' logs are in %s\n", dir->logs().c_str());
  return code;
}

}  // namespace sluice::cli
