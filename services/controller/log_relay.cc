#include "services/controller/log_relay.h"

#include <algorithm>
#include <atomic>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/base/status_text.h"
#include "common/base/trace.h"
#include "common/daemon/log_lines.h"
#include "common/rpc/convert.h"
#include "common/rpc/server_stream.h"
#include "common/rpc/text.h"
#include "sluice/admin/v1/admin.pb.h"

namespace sluice::controller {
namespace {

constexpr int kMostCalls = 32;
constexpr absl::Duration kRoundInterval = absl::Seconds(1);
constexpr absl::Duration kBeat = absl::Seconds(10);
constexpr size_t kMessageBytes = 256 << 10;
// Of all lines that are merged at once. Each daemon has an equal share, of which its newest lines
// are taken.
constexpr size_t kMergedBytes = 32 << 20;

using job::v1::DaemonLine;
using job::v1::LogsResponse;

absl::Status TooManyCalls() {
  return ErrorWith(absl::StatusCode::kResourceExhausted,
                   {.reason = "LOG_READERS",
                    .catalogue = "SLUICE-CTL-0027",
                    .hint = "try again when others have stopped reading logs",
                    .retry_after = absl::Seconds(5)},
                   absl::StrCat("this controller serves the logs of jobs to ", kMostCalls,
                                " readers at once, and there are as many"));
}

absl::Status NoSuchDaemon(const std::string& daemon) {
  return ErrorWith(absl::StatusCode::kNotFound,
                   {.reason = "DAEMON", .hint = "`sluice daemon list` shows all daemons"},
                   absl::StrCat("there is no daemon ", daemon));
}

// The lines of one daemon.
struct Part {
  std::string daemon;
  admin::v1::LogsResponse answer;
};

// Drops the oldest lines beyond `bytes`, and counts them as lost.
void CutToBytes(size_t bytes, admin::v1::LogsResponse* answer) {
  size_t sum = 0;
  int first = answer->lines_size();
  while (first > 0 && (sum += answer->lines(first - 1).json().size()) <= bytes) --first;
  answer->mutable_lines()->DeleteSubrange(0, first);
  answer->set_lost(answer->lost() + static_cast<uint64_t>(first));
}

// Merges the lines by time. The lines of one daemon stay in their order even if its clock was set
// back meanwhile: a line counts as not older than the one before it.
std::vector<DaemonLine> MergeLines(std::vector<Part>& parts) {
  std::vector<std::pair<absl::Time, DaemonLine>> timed;
  for (Part& part : parts) {
    absl::Time newest = absl::InfinitePast();
    for (common::v1::LogLine& line : *part.answer.mutable_lines()) {
      newest = std::max(newest, rpc::FromProto(line.at()));
      auto& [at, out] = timed.emplace_back();
      at = newest;
      out.set_daemon(part.daemon);
      out.set_run(part.answer.run());
      *out.mutable_line() = std::move(line);
    }
  }
  std::stable_sort(timed.begin(), timed.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });

  std::vector<DaemonLine> merged;
  for (auto& [at, line] : timed) merged.push_back(std::move(line));
  return merged;
}

}  // namespace

// One call. It goes in rounds, of which at most one is open: a round begins on the loop's thread,
// asks all daemons at once, and ends on the thread of the last answer.
class LogRelay::Call : public rpc::WriteStream<LogsResponse>,
                       public std::enable_shared_from_this<Call> {
 public:
  Call(LogRelay* relay, Person person, const job::v1::LogsRequest& request)
      : relay_(relay),
        alive_(relay->alive_),
        person_(std::move(person)),
        request_(request),
        trace_(CurrentTrace()) {
    ++*alive_;
    for (const auto& [daemon, cursor] : request.after()) cursors_[daemon] = cursor;
  }

  ~Call() override { --*alive_; }

  // Finds the job and begins the first round. Call it on the loop's thread.
  void Begin(Controller& core, Instant now);
  // Begins the next round if it is due, or sends an empty message if that is. Call it on the loop's
  // thread.
  void Tick(Controller& core, Instant now) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Round {
    bool first = false, last = false;
    size_t bytes_each = 0;  // Of the lines of one daemon.
    Mutex mu;
    size_t open ABSL_GUARDED_BY(mu) = 0;  // Daemons that have not answered yet.
    std::vector<Part> parts ABSL_GUARDED_BY(mu);
    std::map<std::string, std::string> silent ABSL_GUARDED_BY(mu);  // Why, by daemon.
  };

  void BeginRound(Controller& core, Instant now) ABSL_LOCKS_EXCLUDED(mu_);
  // What to ask the daemon for.
  admin::v1::LogsRequest QuestionTo(const std::string& daemon, bool first) ABSL_LOCKS_EXCLUDED(mu_);
  void OnAnswer(Round& round, const std::string& daemon,
                absl::StatusOr<admin::v1::LogsResponse> answer);
  void EndRound(Round& round) ABSL_LOCKS_EXCLUDED(mu_);
  // Adds what is to be told besides lines, and notes how far each daemon was read.
  void NoteAnswers(const std::vector<Part>& parts, const std::map<std::string, std::string>& silent,
                   LogsResponse* out) ABSL_LOCKS_EXCLUDED(mu_);
  void SendLines(LogsResponse response, std::vector<DaemonLine> lines);
  void OnClosed() override;

  bool Wants(const std::string& daemon) const {
    return request_.daemon().empty() || request_.daemon() == daemon;
  }

  LogRelay* const relay_;
  const std::shared_ptr<std::atomic<int>> alive_;  // A round may outlive the relay.
  const Person person_;
  const job::v1::LogsRequest request_;
  const Trace trace_;
  std::atomic<bool> closed_ = false;  // Nobody reads what is sent.

  // Only the loop's thread uses these.
  std::string job_;  // Id of the job; empty before Begin().
  bool first_ = true;
  absl::Time since_ = absl::InfinitePast();
  absl::Duration next_round_;
  absl::Duration quiet_since_;

  Mutex mu_;
  bool busy_ ABSL_GUARDED_BY(mu_) = false;  // A round is open.
  bool sent_ ABSL_GUARDED_BY(mu_) = false;  // Something was sent since the last Tick().
  // By daemon: how far it was read. Only of daemons that have lines of the job.
  std::map<std::string, job::v1::LogCursor> cursors_ ABSL_GUARDED_BY(mu_);
  std::set<std::string> silent_ ABSL_GUARDED_BY(mu_);  // Daemons that did not answer last.
};

void LogRelay::Call::Begin(Controller& core, Instant now) {
  const absl::StatusOr<const Job*> job = core.Find(request_.job());
  if (!job.ok()) return End(job.status());
  if (const absl::Status status = CheckOwner(person_, **job, request_.job()); !status.ok())
    return End(status);
  const std::string& daemon = request_.daemon();
  if (!daemon.empty() && daemon != relay_->id_ && !core.fleet().daemons().contains(daemon))
    return End(NoSuchDaemon(daemon));

  job_ = (*job)->record.id;
  if (request_.has_since()) since_ = now.wall - rpc::FromProto(request_.since());
  quiet_since_ = now.mono;
  BeginRound(core, now);
}

void LogRelay::Call::Tick(Controller& core, Instant now) {
  if (job_.empty()) return;  // Begin() comes later, or has ended the call.
  bool busy = false;
  {
    MutexLock lock(&mu_);
    if (std::exchange(sent_, false)) quiet_since_ = now.mono;
    busy = busy_;
  }
  if (now.mono - quiet_since_ >= kBeat && pending() == 0) {
    quiet_since_ = now.mono;
    Send(LogsResponse());
  }
  // A client that reads slowly is asked for nothing more, so its lines wait at the daemons.
  if (!busy && now.mono >= next_round_ && pending() == 0) BeginRound(core, now);
}

void LogRelay::Call::BeginRound(Controller& core, Instant now) {
  const auto found = core.jobs().find(job_);
  if (found == core.jobs().end())
    return End(Error(absl::StatusCode::kNotFound, "JOB", "the job was deleted"));
  const Job& job = found->second;
  next_round_ = now.mono + kRoundInterval;

  auto round = std::make_shared<Round>();
  round->first = std::exchange(first_, false);
  round->last = !request_.follow() || IsFinal(job.record.state);
  relay_->NoteWorkers(job);
  const std::set<std::string>& working = relay_->worked_[job_];

  std::vector<Peers::Target> targets;
  {
    MutexLock lock(&mu_);
    busy_ = true;
    MutexLock round_lock(&round->mu);
    for (const auto& [id, daemon] : core.fleet().daemons()) {
      if (!Wants(id)) continue;
      if (!daemon.present()) {
        if (working.contains(id) || !request_.daemon().empty())
          round->silent[id] = "it sends no heartbeats";
      } else if (round->first || working.contains(id) || cursors_.contains(id)) {
        targets.push_back({id, core.AddressOf(id)});
      }
    }
    round->open = targets.size() + 1;  // One more for this controller itself.
    round->bytes_each = kMergedBytes / round->open;
  }

  const TraceScope scope(trace_);
  for (const Peers::Target& target : targets) {
    relay_->peers_->ReadLines(
        target.address, QuestionTo(target.daemon, round->first),
        [self = shared_from_this()] { return !self->closed_; },
        [self = shared_from_this(), round,
         daemon = target.daemon](absl::StatusOr<admin::v1::LogsResponse> answer) {
          self->OnAnswer(*round, daemon, std::move(answer));
        });
  }

  admin::v1::LogsResponse own;
  if (Wants(relay_->id_)) {
    for (const admin::v1::LogsResponse& part :
         daemon::ReadLogLines(QuestionTo(relay_->id_, round->first)))
      own.MergeFrom(part);
  }
  OnAnswer(*round, relay_->id_, std::move(own));
}

admin::v1::LogsRequest LogRelay::Call::QuestionTo(const std::string& daemon, bool first) {
  admin::v1::LogsRequest question;
  relay_->peers_->FillCall(job_, question.mutable_call());
  question.set_lowest(request_.lowest());
  if (since_ != absl::InfinitePast()) *question.mutable_since() = rpc::ToProto(since_);
  if (first) question.set_tail(request_.tail());
  MutexLock lock(&mu_);
  if (const auto cursor = cursors_.find(daemon); cursor != cursors_.end()) {
    question.set_run(cursor->second.run());
    question.set_after(cursor->second.after());
  }
  return question;
}

void LogRelay::Call::OnAnswer(Round& round, const std::string& daemon,
                              absl::StatusOr<admin::v1::LogsResponse> answer) {
  // Here, so that the answers of a large fleet never lie in memory whole.
  if (answer.ok()) CutToBytes(round.bytes_each, &*answer);
  {
    MutexLock lock(&round.mu);
    if (answer.ok()) round.parts.push_back({daemon, *std::move(answer)});
    else round.silent[daemon] = StatusText(answer.status());
    if (--round.open > 0) return;
  }
  EndRound(round);
}

void LogRelay::Call::EndRound(Round& round) {
  std::vector<Part> parts;
  std::map<std::string, std::string> silent;
  {
    MutexLock lock(&round.mu);
    parts.swap(round.parts);
    silent.swap(round.silent);
  }
  // Answers come in any order, but lines of one time are to have always the same.
  std::sort(parts.begin(), parts.end(),
            [](const Part& a, const Part& b) { return a.daemon < b.daemon; });

  LogsResponse response;
  NoteAnswers(parts, silent, &response);
  std::vector<DaemonLine> lines = MergeLines(parts);
  if (round.first && request_.tail() > 0 && lines.size() > request_.tail())
    lines.erase(lines.begin(), lines.end() - request_.tail());
  SendLines(std::move(response), std::move(lines));

  if (round.last) return End(absl::OkStatus());
  MutexLock lock(&mu_);
  busy_ = false;
}

void LogRelay::Call::NoteAnswers(const std::vector<Part>& parts,
                                 const std::map<std::string, std::string>& silent,
                                 LogsResponse* out) {
  MutexLock lock(&mu_);
  for (const auto& [daemon, cause] : silent) {
    if (!silent_.insert(daemon).second) continue;  // That was said already.
    job::v1::SilentDaemon& one = *out->add_silent();
    one.set_daemon(daemon);
    one.set_cause(cause);
  }
  for (const Part& part : parts) {
    silent_.erase(part.daemon);
    if (part.answer.run() == 0) continue;
    cursors_[part.daemon].set_run(part.answer.run());
    cursors_[part.daemon].set_after(part.answer.newest());
    if (part.answer.lost() == 0) continue;
    job::v1::LostLines& lost = *out->add_lost();
    lost.set_daemon(part.daemon);
    lost.set_count(part.answer.lost());
  }
}

void LogRelay::Call::SendLines(LogsResponse response, std::vector<DaemonLine> lines) {
  size_t bytes = 0;
  bool anything = response.lost_size() > 0 || response.silent_size() > 0 || !lines.empty();
  const auto send = [&] {
    // The text is what daemons say.
    rpc::MakeTextValid(&response);
    Send(std::exchange(response, LogsResponse()));
    bytes = 0;
  };
  for (DaemonLine& line : lines) {
    const size_t more = line.line().json().size();
    if (bytes > 0 && bytes + more > kMessageBytes) send();
    bytes += more;
    *response.add_lines() = std::move(line);
  }
  if (!anything) return;
  send();
  MutexLock lock(&mu_);
  sent_ = true;
}

void LogRelay::Call::OnClosed() {
  closed_ = true;
  MutexLock lock(&relay_->mu_);
  relay_->calls_.erase(this);
}

grpc::ServerWriteReactor<LogsResponse>* LogRelay::Start(const Person& person,
                                                        const job::v1::LogsRequest& request) {
  auto call = rpc::MakeStream<Call>(this, person, request);
  absl::Status refused;
  {
    MutexLock lock(&mu_);
    if (shutting_down_) refused = absl::UnavailableError("the controller is shutting down");
    else if (*alive_ > kMostCalls) refused = TooManyCalls();
    else calls_[call.get()] = call;
  }
  if (!refused.ok()) {
    call->End(std::move(refused));
    return call.get();
  }
  auto at = std::make_shared<Instant>();
  loop_->Post([at](Controller&, Instant now) { *at = now; },
              [call, at](Controller& core) { call->Begin(core, *at); });
  return call.get();
}

void LogRelay::NoteWorkers(const Job& job) {
  std::set<std::string>& worked = worked_[job.record.id];
  if (!job.assign.queue.empty()) worked.insert(job.assign.queue);
  for (const Worker& worker : job.assign.workers) worked.insert(worker.id);
}

void LogRelay::Tick(Controller& core, Instant now) {
  for (const std::string& id : core.active()) NoteWorkers(core.jobs().at(id));
  // More jobs than there are: some were deleted.
  if (worked_.size() > core.jobs().size())
    std::erase_if(worked_, [&](const auto& entry) { return !core.jobs().contains(entry.first); });

  std::vector<std::shared_ptr<Call>> calls;
  {
    MutexLock lock(&mu_);
    for (const auto& [key, call] : calls_) calls.push_back(call);
  }
  for (const std::shared_ptr<Call>& call : calls) call->Tick(core, now);
}

void LogRelay::Shutdown() {
  std::vector<std::shared_ptr<Call>> calls;
  {
    MutexLock lock(&mu_);
    shutting_down_ = true;
    for (const auto& [key, call] : calls_) calls.push_back(call);
  }
  for (const std::shared_ptr<Call>& call : calls)
    call->End(absl::UnavailableError("the controller is shutting down"));
}

}  // namespace sluice::controller
