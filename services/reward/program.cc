#include "services/reward/program.h"

#include <algorithm>
#include <set>

#include "absl/algorithm/container.h"
#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "common/base/digest.h"
#include "common/base/loopback.h"
#include "common/base/status.h"
#include "common/base/status_text.h"
#include "common/config/check.h"
#include "common/daemon/admin_service.h"
#include "common/daemon/waits.h"
#include "common/log/log.h"
#include "common/plugins/sandboxed.h"
#include "common/rpc/channel.h"
#include "common/rpc/convert.h"
#include "common/scoring/job_scorer.h"
#include "services/reward/data_check.h"
#include "services/reward/flags.h"
#include "services/reward/service.h"

namespace sluice::reward {
namespace {

// Scores of one job that wait for judges and plug-ins at a time. A judge's own limit, over all
// jobs, is in judges.yaml.
constexpr uint32_t kMostWaiting = 256;

// Between two tries of jobs whose plug-in servers cannot be reached.
constexpr absl::Duration kRetry = absl::Seconds(1);

// How many answers of training wait for judges, plug-ins or programs at a time. 0: for none.
uint32_t MostWaiting(const job::v1::JobSpec& spec, const JobRewards& rewards) {
  const std::string pool = TaskPoolOf(spec.reward());
  // Programs wait for sandboxes, of which there is one for each core.
  if (pool == "sandbox") return rewards.sandboxes().runs;
  return pool == "io" ? kMostWaiting : 0;
}

// How many answers of evaluations may be scored beside those of training.
uint32_t MostOfEvaluations(const job::v1::JobSpec& spec, const JobRewards& rewards) {
  return std::max(1u, static_cast<uint32_t>(MostWaiting(spec, rewards) * spec.eval().share()));
}

}  // namespace

absl::StatusOr<RewardProgram::PluginRights> RewardProgram::ParseRights(const std::string& word) {
  if (word.empty() || word == "sandbox") return PluginRights::kSandbox;
  if (word == "off") return PluginRights::kNone;
  if (word == "unconfined") return PluginRights::kUnconfined;
  return absl::InvalidArgumentError(
      absl::StrCat(kPluginsFlag, " is \"", word, "\"; wanted: sandbox, off or unconfined"));
}

absl::StatusOr<std::unique_ptr<RewardProgram>> RewardProgram::Make(const daemon::Host& host) {
  const std::string& listen = host.flags->listen;
  if (!host.flags->OwnFlag(kUnsafeFlag).empty() &&
      !IsLoopback(listen.substr(0, listen.rfind(':')))) {
    return absl::InvalidArgumentError(
        absl::StrCat(kUnsafeFlag, " is for debugging on one machine, but --listen is ", listen,
                     "; listen on 127.0.0.1, or leave the flag out"));
  }
  Judges judges;
  if (const std::string file = host.flags->OwnFlag(kJudgesFlag); !file.empty()) {
    SLUICE_ASSIGN_OR_RETURN(std::vector<JudgeConfig> configs, ReadJudges(file));
    for (JudgeConfig& config : configs) {
      const std::string name = config.name;
      judges[name] = std::make_unique<JudgeClient>(std::move(config));
    }
  }
  SLUICE_ASSIGN_OR_RETURN(const PluginRights rights,
                          ParseRights(host.flags->OwnFlag(kPluginsFlag)));
  PluginServers plugin_servers;
  if (const std::string file = host.flags->OwnFlag(kPluginServersFlag); !file.empty()) {
    SLUICE_ASSIGN_OR_RETURN(plugin_servers, ReadPluginServers(file));
  }
  SLUICE_ASSIGN_OR_RETURN(const run_code::HttpServer::Options serve,
                          ReadCodeServerFlags(*host.flags));
  if (!host.flags->OwnFlag(kUnsafeFlag).empty() && ServesCode(*host.flags) &&
      !IsLoopback(serve.address.substr(0, serve.address.rfind(':')))) {
    return absl::InvalidArgumentError(
        absl::StrCat(kUnsafeFlag, " is for debugging on one machine, but --serve-code is ",
                     serve.address, "; serve on 127.0.0.1, or leave the flag out"));
  }
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<run_code::Client> code_server,
                          MakeCodeClient(*host.flags));
  return absl::WrapUnique(new RewardProgram(host, std::move(judges), rights,
                                            std::move(plugin_servers), std::move(code_server)));
}

RewardProgram::RewardProgram(const daemon::Host& host, Judges judges, PluginRights rights,
                             PluginServers plugin_servers,
                             std::unique_ptr<run_code::Client> code_server)
    : host_(host),
      rights_(rights),
      judges_(std::move(judges)),
      plugin_servers_(std::move(plugin_servers)),
      sandboxes_(!host.flags->OwnFlag(kUnsafeFlag).empty(), std::move(code_server)),
      admin_(daemon::MakeAdminService([this](const std::string& job) { return Explain(job); })),
      rewards_(MakeRewardService(
          [this](const std::string& job) { return Describe(job); },
          [this](const std::string& job, const std::string& reward, JobRewards::Reloaded done) {
            Reload(job, reward, std::move(done));
          })) {}
RewardProgram::~RewardProgram() {
  stop_retries_.Trigger();
  if (retry_thread_.joinable()) retry_thread_.join();
}

std::vector<grpc::Service*> RewardProgram::services() {
  return {admin_.get(), rewards_.get(), scores_.service()};
}

absl::Status RewardProgram::Start(const std::string& address, const std::string& ops) {
  SLUICE_RETURN_IF_ERROR(StartCodeServer());
  if (host_.flags->controller.empty() && code_server_ != nullptr) return absl::OkStatus();
  if (host_.flags->controller.empty()) {
    return ErrorWith(absl::StatusCode::kInvalidArgument, {.hint = "pass --controller HOST:PORT"},
                     "sluice-reward needs a controller");
  }
  daemon::ControllerLink::Options options{
      .controller = host_.flags->controller,
      .id = host_.flags->id,
      .role = rpc::Role::kReward,
      .addresses = {{"grpc", address}, {"ops", ops}},
      .labels = {{"pool", host_.flags->pool}, {"sandbox", sandboxes_.FindTier()}}};
  daemon::ControllerLink::Handlers handlers;
  handlers.on_assigned = [this](const registry::v1::HeartbeatResponse& assignments) {
    ApplyAssignments(assignments);
  };
  handlers.on_drain = [this] { host_.stop(absl::OkStatus()); };
  handlers.on_refused = [this](absl::Status why) { host_.stop(std::move(why)); };
  link_ = std::make_unique<daemon::ControllerLink>(std::move(options), std::move(handlers));
  link_->Start();
  retry_thread_ = std::thread([this] { RetryJobs(); });
  return absl::OkStatus();
}

absl::Status RewardProgram::StartCodeServer() {
  SLUICE_ASSIGN_OR_RETURN(run_code::HttpServer::Options options, ReadCodeServerFlags(*host_.flags));
  if (!ServesCode(*host_.flags)) return absl::OkStatus();
  SLUICE_ASSIGN_OR_RETURN(sandbox::CodeSandboxes* const sandboxes, sandboxes_.Shared());
  // Whoever reaches the address could do there what this user may.
  if (sandboxes->launcher()->tier() == sandbox::Tier::kUnsafe) {
    return ErrorWith(
        absl::StatusCode::kFailedPrecondition,
        {.reason = "NO_SANDBOX", .hint = "leave --serve-code out, or serve where a sandbox works"},
        absl::StrCat("--serve-code serves sandboxes, and this machine has none: ",
                     sandboxes->launcher()->why_not_stronger()));
  }
  code_service_ = std::make_unique<run_code::Service>(sandboxes);
  SLUICE_ASSIGN_OR_RETURN(
      code_server_,
      run_code::HttpServer::Start(std::move(options), [this](const run_code::HttpRequest& request) {
        return code_service_->Answer(request);
      }));
  log::Info("serving_code",
            {{"address", code_server_->address()}, {"sandboxes", sandboxes->identity()}});
  return absl::OkStatus();
}

absl::Status RewardProgram::CheckReady() {
  MutexLock lock(&mu_);
  if (draining_) return absl::UnavailableError("draining");
  if (host_.flags->controller.empty()) return absl::OkStatus();
  return link_ != nullptr && link_->incarnation() > 0
             ? absl::OkStatus()
             : absl::UnavailableError("not registered with the controller yet");
}

// Handles a new list of assignments: starts the jobs that are new, ends those that are gone or
// stopped, and restarts those whose queue has another address.
void RewardProgram::ApplyAssignments(const registry::v1::HeartbeatResponse& assignments) {
  MutexLock starting(&starting_mu_);
  // By job id. Stopped without the lock, because that waits.
  std::vector<std::pair<std::string, Job>> ended;
  std::vector<const registry::v1::Assignment*> fresh;
  std::set<std::string> kept;
  {
    MutexLock lock(&mu_);
    if (draining_) return FollowQueues(assignments);
    for (const registry::v1::Assignment& assignment : assignments.jobs()) {
      if (assignment.phase() != registry::v1::ASSIGNMENT_PHASE_RUN || assignment.queues_size() == 0)
        continue;

      kept.insert(assignment.job());
      callers_.SetJob(assignment.job(), daemon::CallersOf(assignment));
      const auto it = jobs_.find(assignment.job());
      if (it != jobs_.end() && it->second.queue == assignment.queues(0)) continue;
      if (it != jobs_.end() && it->second.worker != nullptr) {
        it->second.queue = assignment.queues(0);
        it->second.worker->MoveQueue(it->second.queue);
        continue;
      }
      if (it != jobs_.end()) {
        ended.emplace_back(it->first, std::move(it->second));
        jobs_.erase(it);
      }
      fresh.push_back(&assignment);
    }

    for (auto it = jobs_.begin(); it != jobs_.end();) {
      if (kept.contains(it->first)) {
        ++it;
        continue;
      }
      ended.emplace_back(it->first, std::move(it->second));
      link_->RemoveProgress(it->first);
      it = jobs_.erase(it);
    }
  }

  for (const auto& [id, job] : ended) {
    StopJob(id, job);
    if (!kept.contains(id)) callers_.RemoveJob(id);
  }
  ended.clear();
  for (const registry::v1::Assignment* const assignment : fresh)
    StartJob(*assignment, /*again=*/false);
}

void RewardProgram::FollowQueues(const registry::v1::HeartbeatResponse& assignments) {
  for (const registry::v1::Assignment& assignment : assignments.jobs()) {
    const auto it = leaving_.find(assignment.job());
    if (it == leaving_.end() || it->second.worker == nullptr || assignment.queues_size() == 0 ||
        it->second.queue == assignment.queues(0))
      continue;
    it->second.queue = assignment.queues(0);
    it->second.worker->MoveQueue(it->second.queue);
  }
}

void RewardProgram::StartJob(const registry::v1::Assignment& assignment, bool again) {
  const std::string id = assignment.job();
  Job job{.queue = assignment.queues(0),
          .name = assignment.spec().name(),
          .lines = std::make_unique<log::JobScope>(id, assignment.spec().name()),
          .rewards = nullptr,
          .worker = nullptr};

  absl::Status status = CheckOnDaemon(assignment.spec());
  const auto queue = rpc::Connect(job.queue, {rpc::Role::kQueue});
  if (status.ok()) status = queue.status();
  if (status.ok()) {
    auto rewards = MakeRewards(assignment, again);
    status = rewards.status();
    if (rewards.ok()) job.rewards = *std::move(rewards);
  }
  if (status.ok()) status = CheckRows(assignment, *job.rewards->scorer());

  if (ReasonOf(status) == "PLUGIN_UNREACHABLE") {
    // The server may be on its way. The job ends by itself if it never comes (limits.start).
    job.waits = assignment;
    job.why_waits = std::string(status.message());
    if (!again) log::Warning("job_waits", {{"job_id", job.name}, {"error", status}});
    ReportProgress(id, false, job.why_waits, "");
  } else if (!status.ok()) {
    job.rewards = nullptr;
    log::Error("job_refused", {{"job_id", job.name}, {"error", status}});
    ReportProgress(id, false, "failed", StatusText(status));
  } else {
    log::Info("job_started",
              {{"job_id", job.name},
               {"generation",
                absl::StrCat(absl::Hex(job.rewards->scorer()->generation(), absl::kZeroPad8))}});
    job.worker = StartWorker(assignment, *queue, job.rewards);
    ReportProgress(id, true, "scoring", "");
    // A plug-in that broke before this line has reported that already.
    if (const absl::Status why = job.rewards->broken(); !why.ok())
      ReportProgress(id, false, "failed", StatusText(why));
  }

  {
    MutexLock lock(&mu_);
    if (!draining_) {
      jobs_[id] = std::move(job);
      return;
    }
  }
  // Drain() ran meanwhile and did not see this worker, so it is stopped here.
  StopJob(id, job);
}

void RewardProgram::RetryJobs() {
  while (!stop_retries_.WaitFor(kRetry)) {
    std::set<std::string> tried;
    while (RetryJob(&tried)) continue;
  }
}

bool RewardProgram::RetryJob(std::set<std::string>* tried) {
  MutexLock starting(&starting_mu_);
  registry::v1::Assignment assignment;
  {
    MutexLock lock(&mu_);
    const auto next = absl::c_find_if(jobs_, [&](const auto& entry) {
      return entry.second.waits.has_value() && !tried->contains(entry.first);
    });
    if (draining_ || next == jobs_.end()) return false;
    tried->insert(next->first);
    assignment = *next->second.waits;
    next->second.lines = nullptr;  // StartJob() makes another one of the same name.
  }
  StartJob(assignment, /*again=*/true);
  return true;
}

void RewardProgram::StopJob(const std::string& id, const Job& job) {
  // The worker ends first: then scores that wait for judges, plug-ins or programs end soon.
  if (job.worker != nullptr) job.worker->Stop();
  scores_.RemoveJob(id);
}

std::unique_ptr<Worker> RewardProgram::StartWorker(const registry::v1::Assignment& assignment,
                                                   std::shared_ptr<rpc::Channel> queue,
                                                   const std::shared_ptr<JobRewards>& rewards) {
  const std::string id = assignment.job(), name = assignment.spec().name();
  const std::string pool = TaskPoolOf(assignment.spec().reward());
  Worker::Options options{
      .job = id,
      .job_name = name,
      .worker = host_.flags->id,
      .incarnation = link_->incarnation(),
      .pool = pool,
      .waiting = MostWaiting(assignment.spec(), *rewards),
      .waits_for = pool == "sandbox"                              ? "program"
                   : JudgesOf(assignment.spec().reward()).empty() ? "plug-in"
                                                                  : "judge",
      .capacity = [rewards = rewards.get()] { return rewards->Capacity(kMostWaiting); },
      .can_score =
          [rewards = rewards.get()](uint32_t generation) { return rewards->CanScore(generation); },
      .on_stop = [rewards = rewards.get()] { rewards->Stop(); }};
  if (rewards->wants_scored()) {
    options.on_scored = [rewards = rewards.get()](std::shared_ptr<const Scorer> scorer,
                                                  ScoredAnswers scored) {
      rewards->NoteScored(std::move(scorer), std::move(scored));
    };
  }
  auto worker = std::make_unique<Worker>(
      std::move(options), std::move(queue), rewards->scorer(), Metrics(host_.metrics, name),
      [this, id](absl::Status why) {
        // ABORTED: another process has taken over this daemon's id (fenced). Any other error, for
        // example that the queue no longer lists this worker, is for the controller to judge.
        ReportProgress(id, false, absl::IsAborted(why) ? "fenced" : "failed", StatusText(why));
      });
  const bool evaluates = assignment.spec().eval().every_steps() > 0;
  const uint32_t most = MostOfEvaluations(assignment.spec(), *rewards);
  rewards->Follow(
      [this, id, evaluates, most, worker = worker.get()](std::shared_ptr<const Scorer> scorer) {
        if (evaluates) scores_.SetJob(id, *scorer, most);
        worker->UseScorer(std::move(scorer));
      });
  return worker;
}

absl::StatusOr<std::shared_ptr<JobRewards>> RewardProgram::MakeRewards(
    const registry::v1::Assignment& assignment, bool again) {
  const std::string& id = assignment.job();
  const job::v1::JobSpec& spec = assignment.spec();
  JobRewards::Options options{.job_name = spec.name(),
                              .reward = spec.reward(),
                              .deterministic = spec.run().deterministic(),
                              .metrics = Metrics(host_.metrics, spec.name())};
  SLUICE_ASSIGN_OR_RETURN(options.judges, FindJudges(spec));

  const auto programs = PluginProgramsOf(spec.reward());
  if (!programs.empty() && rights_ == PluginRights::kNone) {
    return ErrorWith(
        absl::StatusCode::kFailedPrecondition,
        {.reason = "NO_PLUGINS",
         .hint = "the operator allows them by the flag --plugins of sluice-reward"},
        absl::StrCat("reward daemon ", host_.flags->id, " runs no plug-ins, but reward ",
                     programs[0]->name(), " is one"));
  }
  options.launch = LaunchUnconfined;
  options.folders = ProgramFolders();
  options.servers = &plugin_servers_;
  if (!programs.empty() && rights_ == PluginRights::kSandbox) {
    SLUICE_ASSIGN_OR_RETURN(options.launch, sandboxes_.MakePluginLaunch(spec.reward()));
    options.folders = kSandboxProgramFolders;
  }
  absl::StatusOr<Sandboxes::OfJob> sandboxes = sandboxes_.Make(spec.reward());
  if (sandboxes.ok()) {
    options.sandboxes = *std::move(sandboxes);
  } else if (RunsCode(WithoutShadows(spec.reward()))) {
    return sandboxes.status();
  } else if (!again) {
    RaiseEvent(id, common::v1::SEVERITY_WARNING, "shadow_broken",
               absl::StrCat("candidates that run programs are not compared: ",
                            StatusText(sandboxes.status())));
  }
  options.on_broken = [this, id](absl::Status why) {
    ReportProgress(id, false, "failed", StatusText(why));
  };
  options.on_event = [this, id](common::v1::Severity severity, const char* code,
                                std::string message) {
    RaiseEvent(id, severity, code, std::move(message));
  };
  return JobRewards::Make(std::move(options));
}

absl::StatusOr<std::map<std::string, JudgeClient*>> RewardProgram::FindJudges(
    const job::v1::JobSpec& spec) const {
  std::map<std::string, JudgeClient*> judges;
  for (const std::string& name : JudgesOf(spec.reward())) {
    const auto it = judges_.find(name);
    if (it == judges_.end()) {
      std::vector<std::string> known;
      for (const auto& [other, unused] : judges_) known.push_back(other);
      return NoJudge(absl::StrCat("reward daemon ", host_.flags->id), name, known,
                     "the operator names judges in the file of sluice-reward's flag --judges");
    }
    judges[name] = it->second.get();
  }
  return judges;
}

absl::Status RewardProgram::CheckRows(const registry::v1::Assignment& assignment,
                                      const Scorer& scorer) {
  const job::v1::JobSpec& spec = assignment.spec();
  SLUICE_ASSIGN_OR_RETURN(const std::vector<std::string> remarks, CheckData(spec, scorer));
  for (const std::string& remark : remarks) {
    log::Warning("rows_unscorable", {{"job_id", spec.name()}, {"message", remark}});
    RaiseEvent(assignment.job(), common::v1::SEVERITY_WARNING, "rows_unscorable", remark);
  }
  return absl::OkStatus();
}

void RewardProgram::RaiseEvent(const std::string& job, common::v1::Severity severity,
                               const char* code, std::string message) {
  common::v1::Event event;
  event.set_job(job);
  event.set_severity(severity);
  event.set_code(code);
  event.set_message(std::move(message));
  link_->RaiseEvent(std::move(event));
}

void RewardProgram::ReportProgress(const std::string& job, bool ready, const std::string& phase,
                                   const std::string& cause) {
  registry::v1::Progress progress;
  progress.set_job(job);
  progress.set_incarnation(link_->incarnation());
  progress.set_ready(ready);
  progress.set_phase(phase);
  progress.set_cause(cause);
  link_->SetProgress(progress);
}

void RewardProgram::Drain() {
  std::vector<std::pair<std::string, const Job*>> leaving;
  {
    MutexLock lock(&mu_);
    draining_ = true;
    leaving_.swap(jobs_);
    for (const auto& [id, job] : leaving_) leaving.emplace_back(id, &job);
  }
  stop_retries_.Trigger();
  // What it runs for other daemons, these ask of others again.
  if (code_service_ != nullptr) code_service_->Stop();
  if (code_server_ != nullptr) code_server_->Stop();
  // The controller hears of it first, so that it assigns no new job.
  if (link_ != nullptr) link_->SetDraining();
  for (const auto& [id, job] : leaving) StopJob(id, *job);
  if (retry_thread_.joinable()) retry_thread_.join();
  if (link_ != nullptr) link_->Stop();
  // No assignment moves a worker's queue any more. Workers are destroyed without the lock.
  std::map<std::string, Job> ended;
  MutexLock lock(&mu_);
  ended.swap(leaving_);
}

std::vector<common::v1::WaitEdge> RewardProgram::Explain(const std::string& job) const {
  MutexLock lock(&mu_);
  const auto it = jobs_.find(job);
  if (it == jobs_.end()) return {};
  if (it->second.worker != nullptr) return it->second.worker->Explain();
  if (!it->second.waits) return {};
  const std::string& id = host_.flags->id;
  return {daemon::MakeWaitEdge(
      id, {.kind = "DAEMON",
           .id = id,
           .at = id,
           .cause = absl::StrCat(id, " scores nothing: ", it->second.why_waits),
           .next = "it is tried again every second"})};
}

absl::StatusOr<v1::DescribeResponse> RewardProgram::Describe(const std::string& job) const {
  MutexLock lock(&mu_);
  const auto it = jobs_.find(job);
  if (it == jobs_.end() || it->second.worker == nullptr) return NoSuchJob(job);
  v1::DescribeResponse response;
  it->second.rewards->Describe(&response);
  for (const uint32_t generation : it->second.worker->generations()) {
    if (generation != response.generation()) response.add_earlier(generation);
  }
  return response;
}

void RewardProgram::Reload(const std::string& job, const std::string& reward,
                           JobRewards::Reloaded done) const {
  std::shared_ptr<JobRewards> rewards;
  {
    MutexLock lock(&mu_);
    const auto it = jobs_.find(job);
    if (it != jobs_.end() && it->second.worker != nullptr) rewards = it->second.rewards;
  }
  if (rewards == nullptr) return done(NoSuchJob(job));
  rewards->Reload(reward, std::move(done));
}

absl::Status RewardProgram::NoSuchJob(const std::string& job) const {
  return Error(absl::StatusCode::kNotFound, "JOB",
               absl::StrCat("reward daemon ", host_.flags->id, " does not score job ", job));
}

}  // namespace sluice::reward
