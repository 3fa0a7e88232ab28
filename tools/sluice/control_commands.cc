// Commands that control a job: pause, resume, cancel, retry, set, delete.

#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "tools/sluice/client.h"
#include "tools/sluice/commands.h"
#include "tools/sluice/json_output.h"
#include "tools/sluice/options.h"
#include "tools/sluice/output.h"

namespace sluice::cli {
namespace {

using job::v1::ControlRequest;
using job::v1::ControlResponse;
using job::v1::JobStatus;

struct ControlOptions {
  std::string server, output, job;
  std::vector<std::string> values;
  bool yes = false, now = false;
};
using ControlHandler = ExitCode (*)(const ControlOptions&, const rpc::Channel&);

// Sends the request, prints the job with -o json, and then says `done`.
ExitCode SendControl(const ControlOptions& o, const rpc::Channel& channel,
                     const ControlRequest& request, const std::string& done) {
  const absl::StatusOr<ControlResponse> response = ControlJob(channel, request);
  if (!response.ok()) return Complain(response.status());
  if (IsData(o.output)) PrintData(ToJson(response->status()), o.output);
  if (IsFinal(response->status().state()) && request.verb() != job::v1::VERB_DELETE) {
    std::fprintf(stderr, "%s has ended: it is %s\n", o.job.c_str(),
                 StateName(response->status().state()).c_str());
  } else {
    std::fprintf(stderr, "%s\n", done.c_str());
  }
  return kDone;
}

ControlRequest RequestOf(const ControlOptions& o, job::v1::Verb verb) {
  ControlRequest request;
  request.set_job(o.job);
  request.set_verb(verb);
  return request;
}

ExitCode CancelOne(const ControlOptions& o, const rpc::Channel& channel) {
  ControlRequest request = RequestOf(o, job::v1::VERB_CANCEL);
  request.set_now(o.now);
  return SendControl(
      o, channel, request,
      absl::StrCat(o.job, " is being cancelled; `sluice job wait ", o.job, "` waits for its end"));
}

ExitCode PauseOne(const ControlOptions& o, const rpc::Channel& channel) {
  return SendControl(
      o, channel, RequestOf(o, job::v1::VERB_PAUSE),
      absl::StrCat(o.job, " is paused once its trainer has written a checkpoint; `sluice job wait ",
                   o.job, " --for PAUSED` waits for it, `sluice job resume ", o.job,
                   "` lets it go on"));
}

ExitCode ResumeOne(const ControlOptions& o, const rpc::Channel& channel) {
  return SendControl(
      o, channel, RequestOf(o, job::v1::VERB_RESUME),
      absl::StrCat(o.job, " goes on when enough daemons are free; `sluice job watch ", o.job,
                   "` follows it"));
}

ExitCode RetryOne(const ControlOptions& o, const rpc::Channel& channel) {
  // The incarnation tells a second try of this call from another retry.
  const absl::StatusOr<JobStatus> job = GetJob(channel, o.job);
  if (!job.ok()) return Complain(job.status());
  ControlRequest request = RequestOf(o, job::v1::VERB_RETRY);
  request.set_job(job->job());
  request.set_incarnation(job->incarnation());
  return SendControl(o, channel, request,
                     absl::StrCat(o.job,
                                  " goes on from its last checkpoint when enough daemons are free; "
                                  "`sluice job watch ",
                                  o.job, "` follows it"));
}

ExitCode SetOne(const ControlOptions& o, const rpc::Channel& channel) {
  ControlRequest request = RequestOf(o, job::v1::VERB_SET);
  for (const std::string& value : o.values) {
    const size_t equals = value.find('=');
    if (equals == std::string::npos) {
      return Complain(absl::InvalidArgumentError(
          absl::StrCat("\"", value, "\" is not KEY=VALUE, as in limits.wall=24h")));
    }
    (*request.mutable_set())[value.substr(0, equals)] = value.substr(equals + 1);
  }
  return SendControl(o, channel, request,
                     absl::StrCat(o.job, " has the new values; `sluice job events ", o.job,
                                  "` shows what has changed"));
}

ExitCode DeleteOne(const ControlOptions& o, const rpc::Channel& channel) {
  const absl::StatusOr<JobStatus> job = GetJob(channel, o.job);
  if (!job.ok()) return Complain(job.status());
  if (!o.yes) {
    if (isatty(STDIN_FILENO) == 0) {
      return Complain(absl::InvalidArgumentError(
          absl::StrCat("nobody can be asked here; pass --yes to delete ", o.job)));
    }
    std::fprintf(stderr,
                 "delete job %s (%s, %s) with its events, steps and result? Its checkpoints stay. "
                 "[y/N] ",
                 job->name().c_str(), job->job().c_str(), StateName(job->state()).c_str());
    std::string answer;
    std::getline(std::cin, answer);
    if (answer != "y" && answer != "yes") {
      std::fprintf(stderr, "nothing was deleted\n");
      return kDone;
    }
  }
  ControlRequest request = RequestOf(o, job::v1::VERB_DELETE);
  request.set_job(job->job());
  return SendControl(o, channel, request,
                     absl::StrCat(o.job, " is deleted; its checkpoints stay below ",
                                  job->spec().checkpoint().dir()));
}

// Makes a command with the argument JOB, and with the options that `extra` adds.
Command ControlCommand(const char* name, const char* summary, const char* example,
                       ControlHandler handler,
                       void (*extra)(CLI::App*, ControlOptions*) = nullptr) {
  return {"job", name, summary, example, [handler, extra](CLI::App* app) {
            auto o = std::make_shared<ControlOptions>();
            app->add_option("JOB", o->job, "name or id of the job")->required();
            AddServer(app, &o->server);
            AddFormats(app, &o->output);
            if (extra != nullptr) extra(app, o.get());
            return [o, handler] {
              const auto channel = ConnectToController(o->server);
              return channel.ok() ? handler(*o, **channel) : Complain(channel.status());
            };
          }};
}

}  // namespace

std::vector<Command> ControlCommands() {
  return {
      ControlCommand("pause",
                     "Pause a job: the step under way ends, a checkpoint is written, and the "
                     "daemons are given back. The queue keeps what is sampled.",
                     "  sluice job pause digits && sluice job wait digits --for PAUSED", PauseOne),
      ControlCommand("resume", "Let a paused job go on.", "  sluice job resume digits", ResumeOne),
      ControlCommand("cancel", "Cancel a job; it writes a last checkpoint before it ends.",
                     "  sluice job cancel digits\n  sluice job cancel digits --now\n  sluice job "
                     "cancel digits -o json",
                     CancelOne,
                     [](CLI::App* app, ControlOptions* o) {
                       app->add_flag("--now", o->now, "end it without a last checkpoint");
                     }),
      ControlCommand("retry",
                     "Let a failed or cancelled job go on from its last checkpoint, with a new "
                     "limits.wall.",
                     "  sluice job retry digits", RetryOne),
      ControlCommand("set",
                     "Change limits and numbers of daemons of a job that has not ended. The change "
                     "takes effect at once. A key that cannot be changed is refused with the list "
                     "of those that can.",
                     "  sluice job set digits limits.wall=24h\n  sluice job set digits "
                     "resources.rollout.min=1 resources.rollout.max=8",
                     SetOne,
                     [](CLI::App* app, ControlOptions* o) {
                       app->add_option("KEY=VALUE", o->values,
                                       "key of the job file and its new value; may be repeated")
                           ->required();
                     }),
      ControlCommand(
          "delete",
          "Delete an ended job from the controller: its events, steps and result. Its "
          "checkpoints stay.",
          "  sluice job delete digits\n  sluice job delete digits --yes", DeleteOne,
          [](CLI::App* app, ControlOptions* o) { app->add_flag("--yes", o->yes, "do not ask"); }),
  };
}

}  // namespace sluice::cli
