// sluice job logs: shows the log lines of a job, of all its daemons.

#include <cstdio>
#include <map>
#include <memory>
#include <string>

#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/rpc/backoff.h"
#include "common/rpc/cancel.h"
#include "common/rpc/convert.h"
#include "common/rpc/stream.h"
#include "common/rpc/wait.h"
#include "tools/sluice/client.h"
#include "tools/sluice/commands.h"
#include "tools/sluice/interrupts.h"
#include "tools/sluice/log_text.h"
#include "tools/sluice/options.h"

namespace sluice::cli {
namespace {

// How long a controller that has gone away may take to come back.
constexpr absl::Duration kAwayTime = absl::Minutes(1);

struct LogsOptions {
  std::string server, job, daemon, level;
  std::string output = "text";
  absl::Duration since = absl::InfiniteDuration();
  uint32_t tail = 0;
  bool follow = false;
  absl::Time oldest_shown;  // Of the lines that --tail has chosen.
};

void PrintLines(const job::v1::LogsResponse& response, const std::string& output) {
  const std::string notes = LogNotes(response);
  if (!notes.empty()) std::fputs(notes.c_str(), stderr);
  for (const job::v1::DaemonLine& line : response.lines()) {
    const std::string text = output == "jsonl" ? EscapeControls(line.line().json())
                                               : LogLineText(line, absl::LocalTimeZone());
    std::printf("%s\n", text.c_str());
  }
  if (response.lines_size() > 0) std::fflush(stdout);
}

// Reads one call to its end, and notes in the request what was printed, so that the next call goes
// on from there.
absl::Status ReadLogs(const rpc::Channel& channel, LogsOptions& o, rpc::Cancel* cancel,
                      job::v1::LogsRequest* request, bool* answered) {
  // Of a daemon of which nothing was shown, a new call would send what --tail had left out.
  if (request->tail() == 0 && o.tail > 0)
    *request->mutable_since() = rpc::ToProto(absl::Now() - o.oldest_shown);
  rpc::ClientStream stream(channel, *job::v1::LogsRequest::descriptor(), cancel);
  stream.Write(*request);
  stream.WritesDone();
  job::v1::LogsResponse response;
  while (stream.Read(&response)) {
    *answered = true;
    PrintLines(response, o.output);
    if (request->tail() > 0 && response.lines_size() > 0)
      o.oldest_shown = rpc::FromProto(response.lines(0).line().at());
    for (const job::v1::DaemonLine& line : response.lines()) {
      job::v1::LogCursor& cursor = (*request->mutable_after())[line.daemon()];
      cursor.set_run(line.run());
      cursor.set_after(line.line().number());
    }
    if (response.lines_size() > 0) request->clear_tail();  // It counts for the first lines alone.
  }
  return stream.Finish();
}

ExitCode ShowLogs(LogsOptions& o) {
  const auto channel = ConnectToController(o.server);
  if (!channel.ok()) return Complain(channel.status());
  rpc::Cancel cancel;
  Interrupts interrupts([&](int) { cancel.Trigger(); });

  // The id is asked for first: the name may belong to another job when a call is made anew.
  const absl::StatusOr<job::v1::JobStatus> job = GetJob(**channel, o.job);
  if (!job.ok()) return Complain(job.status());
  job::v1::LogsRequest request;
  request.set_job(job->job());
  request.set_daemon(o.daemon);
  request.set_tail(o.tail);
  request.set_follow(o.follow);
  if (!o.level.empty()) request.set_lowest(*ParseLogLevel(o.level));  // The parser has checked it.
  if (o.since != absl::InfiniteDuration()) *request.mutable_since() = rpc::ToProto(o.since);

  rpc::Backoff backoff{rpc::BackoffOptions()};
  Clock* const clock = Clock::Real();
  absl::Duration last_answer = clock->Monotonic();
  while (true) {
    bool answered = false;
    const absl::Status status = ReadLogs(**channel, o, &cancel, &request, &answered);
    if (cancel.triggered()) return kInterrupted;
    if (status.ok()) return kDone;
    if (answered) {
      last_answer = clock->Monotonic();
      backoff.Reset();
    }
    const bool gone = absl::IsUnavailable(status) || absl::IsCancelled(status);
    if (!gone || clock->Monotonic() - last_answer > kAwayTime) return Complain(status);
    if (rpc::WaitToRepeat(**channel, backoff.Next(), &cancel)) return kInterrupted;
  }
}

}  // namespace

std::vector<Command> LogsCommands() {
  return {{"job", "logs",
           "Show the log lines of a job that its daemons keep in memory, merged by time.",
           "  sluice job logs digits --tail 100\n"
           "  sluice job logs digits --level warning --since 10m\n"
           "  sluice job logs digits --daemon trainer-0\n"
           "  sluice job logs digits --follow    # until the job has ended, or Ctrl-C\n"
           "  sluice job logs digits -o jsonl",
           [](CLI::App* app) {
             auto o = std::make_shared<LogsOptions>();
             app->add_option("JOB", o->job, "name or id of the job")->required();
             app->add_flag("--follow", o->follow,
                           "go on with the lines that are written from now on, until the job has "
                           "ended");
             app->add_option("--daemon", o->daemon, "only the lines of this daemon");
             app->add_option("--level", o->level, "only lines of at least this level")
                 ->check(CLI::IsMember({"debug", "info", "warning", "error"}));
             AddDuration(app, "--since", &o->since, "only lines that are not older than this");
             app->add_option("--tail", o->tail,
                             "of the lines that are there already only the newest N")
                 ->check(NumberIn<uint32_t>(1))
                 ->type_name("N");
             AddServer(app, &o->server);
             app->add_option("-o,--output", o->output,
                             "format of the lines: text, or jsonl as the daemons write them")
                 ->check(CLI::IsMember({"text", "jsonl"}))
                 ->capture_default_str();
             return [o] { return ShowLogs(*o); };
           }}};
}

}  // namespace sluice::cli
