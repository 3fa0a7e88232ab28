// Commands that contact the controller.

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/rpc/client.h"
#include "common/rpc/convert.h"
#include "services/trainer/core/checkpoint.h"
#include "tools/sluice/client.h"
#include "tools/sluice/commands.h"
#include "tools/sluice/curve.h"
#include "tools/sluice/export.h"
#include "tools/sluice/interrupts.h"
#include "tools/sluice/job_text.h"
#include "tools/sluice/json_output.h"
#include "tools/sluice/options.h"
#include "tools/sluice/output.h"
#include "tools/sluice/progress.h"
#include "tools/sluice/reward_text.h"
#include "tools/sluice/table.h"
#include "tools/sluice/why_text.h"

namespace sluice::cli {
namespace {

using job::v1::JobStatus;
using Channel = std::shared_ptr<rpc::Channel>;

constexpr absl::Duration kPatience = absl::Minutes(1);

struct JobOptions {
  std::string server, output, job, file, dir, state;
  std::string dtype = "auto";
  std::vector<std::string> sets, states;
  int limit = 50;  // Of a list; 0: no limit.
  bool watch = false, dry_run = false, best = false, remote_files = false, adapter = false;
  absl::Duration timeout = absl::InfiniteDuration();
};
using OptionsPtr = std::shared_ptr<JobOptions>;

void PrintMessage(const google::protobuf::Message& message, const std::string& output) {
  PrintData(ToJson(message), output);
}

ExitCode ReportEnd(const JobStatus& status) {
  if (!IsFinal(status.state()) || status.state() == job::v1::JOB_STATE_SUCCEEDED) return kDone;
  std::fprintf(stderr, "%s\n", ErrorLine(status).c_str());
  return kJobFailed;
}

ExitCode WatchJob(const Channel& channel, const std::string& job, const std::string& output) {
  rpc::Cancel cancel;
  Interrupts interrupts([&](int) { cancel.Trigger(); });
  ProgressPrinter printer(stderr, false);
  std::string state;
  JobHandlers handlers;
  handlers.step = [&](const job::v1::StepReport& step) { printer.Add(step); };
  handlers.event = [&](const common::v1::Event& event) {
    if (IsForPeople(event)) printer.Note(event.message());
  };
  // Print each state once.
  handlers.status = [&](const JobStatus& status) {
    if (status.has_spec()) printer.SetSpec(status.spec());
    if (StateName(status.state()) == state) return;
    state = StateName(status.state());
    printer.Note(StateLine(status));
  };
  const absl::StatusOr<JobStatus> status = FollowJob(*channel, job, &cancel, kPatience, handlers);
  printer.Finish();
  // Ctrl-C ends only the watch, not the job.
  if (cancel.triggered()) {
    std::fprintf(
        stderr,
        "detached, and the job continues; `sluice job watch %s` attaches again, `sluice job "
        "cancel %s` ends it\n",
        job.c_str(), job.c_str());
    return kInterrupted;
  }

  if (!status.ok()) return Complain(status.status());
  if (IsData(output)) PrintMessage(status->result(), output);
  else std::fputs(ResultTable(status->result(), Utf8Terminal()).c_str(), stdout);
  return ReportEnd(*status);
}

ExitCode SubmitJob(const JobOptions& o, const Channel& channel) {
  const JobFile file = ReadJobFile(o.file, {.sets = o.sets, .check_paths = !o.remote_files});
  if (const absl::Status problems = ProblemStatus(file.problems); !problems.ok())
    return Complain(problems);
  // With --watch the warnings are shown as the job's first events.
  if (!o.watch || o.dry_run) PrintWarnings(file);
  if (o.dry_run) {
    std::fprintf(stderr, "%s is valid; nothing was submitted\n", o.file.c_str());
    return kDone;
  }

  const absl::StatusOr<job::v1::SubmitResponse> response = Submit(*channel, file);
  if (!response.ok()) return Complain(response.status());
  if (!o.watch && IsData(o.output)) PrintMessage(*response, o.output);
  else if (!o.watch) std::printf("%s\n", response->status().name().c_str());

  const std::string& name = response->status().name();
  if (response->created()) {
    std::fprintf(stderr, "%s created  job %s\n", name.c_str(), response->job().c_str());
  } else {
    std::fprintf(stderr, "%s exists already and is %s  job %s\n", name.c_str(),
                 StateName(response->status().state()).c_str(), response->job().c_str());
  }

  if (!response->previous().empty()) {
    std::fprintf(stderr,
                 "%s now means this job; the one before it has ended: `sluice job describe %s`\n",
                 name.c_str(), response->previous().c_str());
  }
  return o.watch ? WatchJob(channel, response->job(), o.output) : kDone;
}

ExitCode ListJobs(const JobOptions& o, const Channel& channel) {
  const absl::StatusOr<job::v1::ListResponse> response = ReadJobs(*channel, o.states, o.limit);
  if (!response.ok()) return Complain(response.status());
  if (!response->next().empty())
    std::fprintf(stderr, "the newest %d of %llu jobs; --limit 0 lists all\n", response->jobs_size(),
                 static_cast<unsigned long long>(response->total()));
  if (IsData(o.output)) {
    PrintRows(ToJson(*response), {"jobs"}, o.output);
  } else {
    std::fputs(JobListText(*response, o.output, absl::LocalTimeZone()).c_str(), stdout);
  }
  return kDone;
}

// Where the sampler of a running job stands. Its queue may be away: then nothing is printed.
void PrintSampler(const rpc::Channel& channel, const std::string& job) {
  const absl::StatusOr<queue::v1::StatsResponse> stats = GetQueueStats(channel, job);
  if (!stats.ok()) return;
  for (const std::string& sentence : stats->sampler())
    std::printf("sampler  %s\n", sentence.c_str());
}

ExitCode DescribeJob(const JobOptions& o, const Channel& channel) {
  const absl::StatusOr<JobStatus> job = GetJob(*channel, o.job);
  if (!job.ok()) return Complain(job.status());
  if (IsData(o.output)) return PrintMessage(*job, o.output), kDone;
  std::fputs(JobText(*job, o.output, absl::LocalTimeZone()).c_str(), stdout);
  if (o.output != "name" && job->spec().data().order().sampler() != "uniform" &&
      job->state() == job::v1::JOB_STATE_RUNNING)
    PrintSampler(*channel, o.job);
  if (job->has_result() && o.output != "name")
    std::printf("\n%s", ResultTable(job->result(), Utf8Terminal()).c_str());

  // Reward daemons compare candidates as long as they work for the job.
  const bool compares = absl::c_any_of(job->spec().reward().rewards(),
                                       [](const auto& entry) { return entry.has_shadow(); });
  if (compares && !job->has_result() && o.output != "name") {
    const auto described = DescribeRewards(*channel, o.job);
    if (described.ok()) std::fputs(ShadowsText(RewardsJson(*described)).c_str(), stdout);
  }
  return kDone;
}

ExitCode WaitJob(const JobOptions& o, const Channel& channel) {
  rpc::Cancel cancel;
  std::atomic<bool> interrupted = false;
  Interrupts interrupts([&](int) {
    interrupted = true;
    cancel.Trigger();
  });
  const std::string wanted = absl::AsciiStrToUpper(o.state);
  job::v1::JobState state = job::v1::JOB_STATE_UNSPECIFIED;
  if (!wanted.empty()) {
    const absl::StatusOr<job::v1::JobState> parsed = ParseState(wanted);
    if (!parsed.ok()) return Complain(parsed.status());
    state = *parsed;
  }

  Mutex mu;
  CondVar changed;
  bool done = false;
  // FollowJob() does the waiting, so another thread ends it after the timeout.
  std::thread timer([&] {
    const absl::Time deadline = absl::Now() + o.timeout;
    MutexLock lock(&mu);
    while (!done && absl::Now() < deadline) {
      if (o.timeout == absl::InfiniteDuration()) changed.Wait(&mu);
      else changed.WaitFor(&mu, deadline - absl::Now());
    }
    if (!done) cancel.Trigger();
  });
  const absl::StatusOr<JobStatus> status =
      FollowJob(*channel, o.job, &cancel, kPatience, {},
                [&](const JobStatus& s) { return s.state() == state; });
  {
    MutexLock lock(&mu);
    done = true;
    changed.NotifyAll();
  }

  timer.join();

  if (interrupted) return kInterrupted;
  if (!status.ok() && cancel.triggered()) {
    return Complain(absl::DeadlineExceededError(
        absl::StrCat(o.job, " is not ", wanted.empty() ? "done" : wanted, " after ",
                     absl::FormatDuration(o.timeout))));
  }

  if (!status.ok()) return Complain(status.status());
  if (IsData(o.output)) PrintMessage(*status, o.output);
  else std::printf("%s\n", StateName(status->state()).c_str());
  if (status->state() == state) return kDone;
  // The job succeeded, but another final state was wanted.
  if (IsFinal(state) && status->state() == job::v1::JOB_STATE_SUCCEEDED) {
    return Complain(absl::FailedPreconditionError(
        absl::StrCat(o.job, " has ended SUCCEEDED and will not be ", wanted)));
  }
  return ReportEnd(*status);
}

ExitCode JobEvents(const JobOptions& o, const Channel& channel) {
  std::vector<common::v1::Event> events;
  JobHandlers handlers;
  handlers.event = [&](const common::v1::Event& event) { events.push_back(event); };
  const absl::StatusOr<JobStatus> status = ReadJob(*channel, o.job, handlers);
  if (!status.ok()) return Complain(status.status());
  if (IsData(o.output)) {
    nlohmann::ordered_json json = nlohmann::ordered_json::array();
    for (const common::v1::Event& event : events) json.push_back(ToJson(event));
    PrintData(json, o.output);
  } else {
    std::fputs(EventsText(events, o.output, absl::LocalTimeZone()).c_str(), stdout);
  }
  return kDone;
}

// Returns the checkpoint in `dir` that the options ask for. For `job` see FindNewestCheckpoint().
absl::StatusOr<std::string> FindCheckpointIn(const std::string& dir, const std::string& job,
                                             const JobOptions& o) {
  if (o.best) return FindBestCheckpoint(dir, job);

  std::vector<std::string> unreadable;
  absl::StatusOr<std::string> newest = FindNewestCheckpoint(dir, job, &unreadable);
  for (const std::string& what : unreadable)
    std::fprintf(stderr, "skipped a checkpoint: %s\n", what.c_str());
  return newest;
}

absl::StatusOr<std::string> FindCheckpoint(const JobOptions& o, const Channel& channel) {
  // JOB may be a path, because the controller of `sluice run` ends with its job, but the job's
  // folder stays.
  if (trainer::IsCheckpoint(o.job) && !o.best) return o.job;
  if (HoldsCheckpoints(o.job)) return FindCheckpointIn(o.job, "", o);

  SLUICE_ASSIGN_OR_RETURN(const JobStatus job, GetJob(*channel, o.job));
  const std::string& reported =
      o.best ? job.result().eval().best_checkpoint() : job.result().checkpoint();
  if (!reported.empty()) return reported;
  return FindCheckpointIn(job.spec().checkpoint().dir(), job.job(), o);
}

ExitCode ExportJob(const JobOptions& o, const Channel& channel) {
  std::optional<DType> dtype;
  if (o.dtype != "auto") dtype = *DTypeFromTorchName(o.dtype);  // The parser has checked the name.

  const absl::StatusOr<std::string> checkpoint = FindCheckpoint(o, channel);
  if (!checkpoint.ok()) return Complain(checkpoint.status());
  const absl::Status status =
      o.adapter ? ExportAdapter(*checkpoint, o.dir) : ExportCheckpoint(*checkpoint, o.dir, dtype);
  if (!status.ok()) return Complain(status);
  std::printf("%s\n", o.dir.c_str());
  std::fprintf(stderr, "exported %s\n", checkpoint->c_str());
  return kDone;
}

ExitCode WhyJob(const JobOptions& o, const Channel& channel) {
  // Fails quickly if there is no controller.
  const absl::StatusOr<JobStatus> job = GetJob(*channel, o.job);
  if (!job.ok()) return Complain(job.status());
  job::v1::WhyRequest request;
  request.set_job(job->job());
  job::v1::WhyResponse response;
  if (const absl::Status status = rpc::Call(*channel, request, &response); !status.ok())
    return Complain(status);
  if (IsData(o.output)) return PrintMessage(response, o.output), kDone;
  std::fputs(WhyText(*job, response).c_str(), stdout);
  return kDone;
}

using Handler = ExitCode (*)(const JobOptions&, const Channel&);

// Returns a function that connects to the controller and calls `handler`.
std::function<ExitCode()> MakeRunner(OptionsPtr o, Handler handler) {
  return [o, handler] {
    const absl::StatusOr<Channel> channel = ConnectToController(o->server);
    return channel.ok() ? handler(*o, *channel) : Complain(channel.status());
  };
}

// Makes a command with the argument JOB and the options --server and -o.
Command JobCommand(const char* group, const char* name, const char* summary, const char* example,
                   Handler handler, std::initializer_list<const char*> formats = {}) {
  const std::vector<const char*> more = formats;
  return {group, name, summary, example, [handler, more](CLI::App* app) {
            auto o = std::make_shared<JobOptions>();
            app->add_option("JOB", o->job, "name or id of the job")->required();
            AddServer(app, &o->server);
            AddFormats(app, &o->output, more);
            return MakeRunner(o, handler);
          }};
}

}  // namespace

std::vector<Command> JobCommands() {
  return {
      {"job", "submit",
       "Submit a job. Submitting the same file again changes nothing while the job lives; after "
       "its end it starts a new job of that name.",
       "  sluice job submit job.yaml --watch\n  sluice job submit job.yaml --set "
       "limits.max_steps=10\n  sluice job submit job.yaml --remote-files",
       [](CLI::App* app) {
         auto o = std::make_shared<JobOptions>();
         app->add_option("FILE", o->file, "the job file")->required();
         AddSets(app, &o->sets);
         app->add_flag("--watch", o->watch, "follow the job to its end");
         app->add_flag("--dry-run", o->dry_run, "only check the file");
         app->add_flag("--remote-files", o->remote_files,
                       "the job's models and data lie on the daemons' hosts: do not look for them "
                       "here; the daemons check them");
         AddServer(app, &o->server);
         AddFormats(app, &o->output);
         return MakeRunner(o, SubmitJob);
       }},
      {"job", "list", "List jobs, newest first.",
       "  sluice job list\n  sluice job list --state running --state failed --limit 0\n"
       "  sluice job list -o wide\n  sluice job list -o name",
       [](CLI::App* app) {
         auto o = std::make_shared<JobOptions>();
         app->add_option("--limit", o->limit, "most jobs to list; 0: all")
             ->check(CLI::Range(0, 1 << 30))
             ->capture_default_str();
         app->add_option("--state", o->states, "only jobs in this state; may be repeated");
         AddServer(app, &o->server);
         AddFormats(app, &o->output, {"wide", "name"});
         return MakeRunner(o, ListJobs);
       }},
      JobCommand("job", "describe", "Show a job's state and, at its end, its result.",
                 "  sluice job describe digits\n  sluice job describe digits -o yaml", DescribeJob,
                 {"wide", "name"}),
      JobCommand("job", "watch", "Follow a job to its end; Ctrl-C detaches, and the job continues.",
                 "  sluice job watch digits",
                 [](const JobOptions& o, const Channel& channel) {
                   return WatchJob(channel, o.job, o.output);
                 }),
      {"job", "wait", "Wait until a job is in a state, or has ended.",
       "  sluice job wait digits --for SUCCEEDED --timeout 5m",
       [](CLI::App* app) {
         auto o = std::make_shared<JobOptions>();
         app->add_option("JOB", o->job, "name or id of the job")->required();
         app->add_option("--for", o->state, "the state to wait for; default: any final state");
         AddDuration(app, "--timeout", &o->timeout,
                     "longest time to wait; after it, exit with code 6");
         AddServer(app, &o->server);
         AddFormats(app, &o->output);
         return MakeRunner(o, WaitJob);
       }},
      JobCommand("job", "events", "Show what happened to a job.",
                 "  sluice job events digits\n  sluice job events digits -o jsonl", JobEvents,
                 {"wide"}),
      {"job", "export", "Copy the model of a job's latest checkpoint, as transformers loads it.",
       "  sluice job export digits -o out/\n  sluice job export digits -o out/ --dtype float32\n"
       "  sluice job export digits --best -o out/\n"
       "  sluice job export build/digits/digits-5e3a90c1 -o out/    # of a run whose controller is "
       "gone",
       [](CLI::App* app) {
         auto o = std::make_shared<JobOptions>();
         app->add_option("JOB", o->job,
                         "name or id of the job, the folder of its checkpoints, or one checkpoint")
             ->required();
         app->add_option("-o,--out", o->dir, "directory to make")->required();
         CLI::Option* const dtype =
             app->add_option(
                    "--dtype", o->dtype,
                    "type of the weights; auto: the type that each tensor has in the job's model")
                 ->check(CLI::IsMember({"auto", "float32", "float16", "bfloat16"}))
                 ->capture_default_str();
         app->add_flag(
             "--best", o->best,
             "the best checkpoint by evaluation (the job's `eval` block) instead of the latest");
         app->add_flag("--adapter", o->adapter,
                       "the low-rank factors of trainer.lora as a PEFT adapter, instead of the "
                       "model that contains them, in fp32")
             ->excludes(dtype);
         AddServer(app, &o->server);
         return MakeRunner(o, ExportJob);
       }},
      JobCommand("", "why",
                 "Say what a job waits for, down to the root cause: since when, what will happen "
                 "by itself, and what you could do.",
                 "  sluice why digits\n  sluice why digits -o json", WhyJob),
  };
}

}  // namespace sluice::cli
