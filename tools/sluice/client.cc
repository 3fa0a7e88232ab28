#include "tools/sluice/client.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/id.h"
#include "common/base/status.h"
#include "common/rpc/backoff.h"
#include "common/rpc/client.h"
#include "common/rpc/stream.h"
#include "common/rpc/wait.h"
#include "tools/sluice/context.h"
#include "tools/sluice/fleet.h"
#include "tools/sluice/fleet_tls.h"

namespace sluice::cli {
namespace {

constexpr char kDefaultServer[] = "127.0.0.1:7400";

// The last event and step that were read.
struct Cursor {
  uint64_t event = 0;
  std::optional<int64_t> step;
};

// Reads one Watch stream to its end. With `follow`, also returns once `until` holds for a status,
// and sets *reached.
absl::Status ReadWatch(const rpc::Channel& channel, const std::string& job, bool follow,
                       rpc::Cancel* cancel, const JobHandlers& handlers,
                       const std::function<bool(const job::v1::JobStatus&)>& until, Cursor* cursor,
                       job::v1::JobStatus* last, bool* reached) {
  rpc::ClientStream stream(channel, *job::v1::WatchRequest::descriptor(), cancel);
  job::v1::WatchRequest request;
  request.set_job(job);
  request.set_after_event(cursor->event);
  if (cursor->step) request.set_after_step(*cursor->step);
  request.set_follow(follow);
  stream.Write(request);
  stream.WritesDone();
  job::v1::WatchResponse response;
  while (stream.Read(&response)) {
    if (response.has_event()) {
      cursor->event = response.event().seq();
      if (handlers.event) handlers.event(response.event());
    } else if (response.has_step()) {
      cursor->step = response.step().k();
      if (handlers.step) handlers.step(response.step());
    } else if (response.has_status()) {
      *last = response.status();
      if (handlers.status) handlers.status(*last);
      if (follow && until(*last)) {
        *reached = true;
        stream.TryCancel();
        (void)stream.Finish();
        return absl::OkStatus();
      }
    }
  }
  return stream.Finish();
}

// A controller, and who this process is to it.
struct Server {
  std::string address;  // Empty: nobody named one, and no fleet of `dev up` runs.
  std::string fleet;    // The data directory of its fleet of `dev up`. Empty: it is another fleet.
  std::string tls;      // A TLS folder. Empty: none was named.
};

std::string Variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// --server is above --context, both are above the environment, and that is above the current
// context. A fleet of `dev up` is what is left.
absl::StatusOr<Server> FindServer(const std::string& flag) {
  SLUICE_ASSIGN_OR_RETURN(const std::optional<ChosenContext> chosen, ChooseContext(ContextFlag()));
  const bool by_flag = chosen && chosen->by_flag;
  Server server = {.address = flag, .tls = Variable("SLUICE_TLS")};
  if (server.address.empty() && by_flag) server.address = chosen->context.server;
  if (server.address.empty()) server.address = Variable("SLUICE_SERVER");
  if (server.address.empty() && chosen) server.address = chosen->context.server;
  if (by_flag && !chosen->context.tls.empty()) server.tls = chosen->context.tls;

  const std::string dir = FindFleetDir("");
  const auto state = FindRunningFleet(dir);
  const bool runs = state.ok() && !state->controller.empty();
  if (runs && (server.address.empty() || server.address == state->controller)) {
    server.address = state->controller;
    server.fleet = dir;
  } else if (server.tls.empty() && chosen) {
    server.tls = chosen->context.tls;
  }
  return server;
}

}  // namespace

absl::StatusOr<std::string> FindController(const std::string& flag) {
  SLUICE_ASSIGN_OR_RETURN(const Server server, FindServer(flag));
  return server.address;
}

absl::StatusOr<std::shared_ptr<rpc::Channel>> ConnectToController(const std::string& flag) {
  SLUICE_ASSIGN_OR_RETURN(const Server server, FindServer(flag));
  if (!server.tls.empty()) {
    SLUICE_ASSIGN_OR_RETURN(std::shared_ptr<const rpc::Credentials> credentials,
                            rpc::Credentials::Load(server.tls));
    rpc::SetProcessCredentials(std::move(credentials));
  } else if (!server.fleet.empty()) {
    SLUICE_RETURN_IF_ERROR(BecomeOperator(server.fleet));
  }
  return rpc::ConnectToLeader(server.address.empty() ? kDefaultServer : server.address);
}

bool IsForPeople(const common::v1::Event& event) {
  if (event.code() == "evaluation") return true;
  return event.severity() >= common::v1::SEVERITY_WARNING && event.code() != "state";
}

bool IsFinal(job::v1::JobState state) {
  return state == job::v1::JOB_STATE_SUCCEEDED || state == job::v1::JOB_STATE_CANCELLED ||
         state == job::v1::JOB_STATE_FAILED;
}

std::string StateName(job::v1::JobState state) {
  return std::string(absl::StripPrefix(job::v1::JobState_Name(state), "JOB_STATE_"));
}

std::string StateLine(const job::v1::JobStatus& status) {
  const bool fails = !status.code().empty() && (status.state() == job::v1::JOB_STATE_FINISHING ||
                                                status.state() == job::v1::JOB_STATE_FAILED);
  return absl::StrCat(
      status.name(), " ", StateName(status.state()),
      fails || status.message().empty() ? "" : absl::StrCat(": ", status.message()));
}

std::string ErrorLine(const job::v1::JobStatus& status) {
  return absl::StrCat("error", status.code().empty() ? "" : " ", status.code(), ": job ",
                      status.name(), " ", StateName(status.state()), ": ", status.message());
}

void PrintWarnings(const JobFile& file) {
  for (const ConfigProblem& warning : file.warnings)
    std::fprintf(stderr, "%s\n", warning.ToString().c_str());
}

absl::StatusOr<job::v1::SubmitResponse> Submit(const rpc::Channel& channel, const JobFile& file) {
  job::v1::SubmitRequest request;
  request.set_name(file.spec->name());
  request.set_hash(file.hash);
  *request.mutable_spec() = *file.spec;
  request.mutable_origins()->insert(file.origins.begin(), file.origins.end());
  request.set_request(RandomId16());
  job::v1::SubmitResponse response;
  SLUICE_RETURN_IF_ERROR(rpc::Call(channel, request, &response));
  return response;
}

absl::StatusOr<job::v1::JobState> ParseState(const std::string& text) {
  job::v1::JobState state = job::v1::JOB_STATE_UNSPECIFIED;
  if (job::v1::JobState_Parse(absl::StrCat("JOB_STATE_", absl::AsciiStrToUpper(text)), &state) &&
      state != job::v1::JOB_STATE_UNSPECIFIED)
    return state;
  return absl::InvalidArgumentError(
      absl::StrCat("no state ", text,
                   "; there are WAITING, STARTING, RUNNING, FINISHING, SUCCEEDED, CANCELLED, "
                   "FAILED, .."));
}

absl::StatusOr<job::v1::ListResponse> ReadJobs(const rpc::Channel& channel,
                                               const std::vector<std::string>& states, int limit) {
  job::v1::ListRequest request;
  for (const std::string& text : states) {
    SLUICE_ASSIGN_OR_RETURN(const job::v1::JobState state, ParseState(text));
    request.add_states(state);
  }

  constexpr int kPage = 1000;  // The longest that the controller gives.
  job::v1::ListResponse all;
  do {
    const int left = limit == 0 ? kPage : limit - all.jobs_size();
    request.set_limit(static_cast<uint32_t>(std::min(left, kPage)));
    request.set_page(all.next());
    job::v1::ListResponse page;
    SLUICE_RETURN_IF_ERROR(rpc::Call(channel, request, &page));
    all.clear_next();
    all.MergeFrom(page);
  } while (!all.next().empty() && (limit == 0 || all.jobs_size() < limit));
  return all;
}

absl::StatusOr<job::v1::JobStatus> GetJob(const rpc::Channel& channel, const std::string& job) {
  job::v1::GetRequest request;
  request.set_job(job);
  job::v1::JobStatus response;
  SLUICE_RETURN_IF_ERROR(rpc::Call(channel, request, &response));
  return response;
}

absl::StatusOr<queue::v1::StatsResponse> GetQueueStats(const rpc::Channel& channel,
                                                       const std::string& job) {
  job::v1::InspectRequest request;
  request.set_job(job);
  request.mutable_queue_stats();
  job::v1::InspectResponse response;
  SLUICE_RETURN_IF_ERROR(rpc::Call(channel, request, &response));
  return response.queue_stats();
}

absl::StatusOr<job::v1::ControlResponse> ControlJob(const rpc::Channel& channel,
                                                    const job::v1::ControlRequest& request) {
  job::v1::ControlResponse response;
  SLUICE_RETURN_IF_ERROR(rpc::Call(channel, request, &response));
  return response;
}

absl::StatusOr<job::v1::JobStatus> CancelJob(const rpc::Channel& channel, const std::string& job) {
  job::v1::ControlRequest request;
  request.set_job(job);
  request.set_verb(job::v1::VERB_CANCEL);
  SLUICE_ASSIGN_OR_RETURN(job::v1::ControlResponse response, ControlJob(channel, request));
  return std::move(*response.mutable_status());
}

absl::StatusOr<std::vector<queue::v1::PeekRow>> PeekRows(const rpc::Channel& channel,
                                                         const std::string& job,
                                                         queue::v1::PeekRequest peek) {
  std::vector<queue::v1::PeekRow> rows;
  do {
    job::v1::InspectRequest request;
    request.set_job(job);
    *request.mutable_queue_peek() = peek;
    job::v1::InspectResponse response;
    SLUICE_RETURN_IF_ERROR(rpc::Call(channel, request, &response));
    rows.insert(rows.end(), response.queue_peek().rows().begin(),
                response.queue_peek().rows().end());
    peek.set_page(response.queue_peek().page());
  } while (!peek.page().empty());
  return rows;
}

absl::StatusOr<job::v1::InspectResponse> DescribeRewards(const rpc::Channel& channel,
                                                         const std::string& job) {
  job::v1::InspectRequest request;
  request.set_job(job);
  request.mutable_rewards();
  job::v1::InspectResponse response;
  SLUICE_RETURN_IF_ERROR(rpc::Call(channel, request, &response));
  return response;
}

absl::StatusOr<job::v1::JobStatus> ReadJob(const rpc::Channel& channel, const std::string& job,
                                           const JobHandlers& handlers, const ReadFrom& from) {
  Cursor cursor{from.after_event, from.after_step};
  job::v1::JobStatus last;
  bool reached = false;
  SLUICE_RETURN_IF_ERROR(
      ReadWatch(channel, job, false, nullptr, handlers, {}, &cursor, &last, &reached));
  return last;
}

absl::StatusOr<job::v1::JobStatus> FollowJob(
    const rpc::Channel& channel, const std::string& job, rpc::Cancel* cancel,
    absl::Duration patience, const JobHandlers& handlers,
    const std::function<bool(const job::v1::JobStatus&)>& until, Clock* clock) {
  const auto done = [&](const job::v1::JobStatus& status) {
    return IsFinal(status.state()) || (until && until(status));
  };
  Cursor cursor;
  job::v1::JobStatus last;
  bool reached = false;
  rpc::Backoff backoff{rpc::BackoffOptions()};
  std::optional<absl::Duration> last_answer;  // Monotonic time of the last sign of life.
  for (;;) {
    // Ask for the state first. If the job has ended, the stream must not be followed: its first
    // message is the status, which would end the loop before the steps are read.
    absl::StatusOr<job::v1::JobStatus> now = GetJob(channel, job);
    absl::Status status = now.status();
    if (now.ok()) {
      backoff.Reset();
      const bool follow = !IsFinal(now->state());
      status = ReadWatch(channel, job, follow, cancel, handlers, done, &cursor, &last, &reached);
      // The controller was there until the stream ended, however long that took.
      last_answer = clock->Monotonic();
      if (reached || (status.ok() && !follow)) return last;
    }

    if (cancel != nullptr && cancel->triggered()) return absl::CancelledError("interrupted");
    // Only errors of the connection are worth another try.
    if (!status.ok() && status.code() != absl::StatusCode::kUnavailable &&
        status.code() != absl::StatusCode::kDeadlineExceeded &&
        status.code() != absl::StatusCode::kCancelled) {
      return status;
    }
    if (!last_answer) return status;  // There was never an answer.
    if (clock->Monotonic() - *last_answer > patience)
      return absl::UnavailableError(absl::StrCat("no answer from ", channel.address(), " for ",
                                                 absl::FormatDuration(patience), ": ",
                                                 status.message()));
    if (rpc::WaitToRepeat(channel, backoff.Next(), cancel))
      return absl::CancelledError("interrupted");
  }
}

}  // namespace sluice::cli
