#include "services/reward/program.h"

#include <algorithm>
#include <set>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/clock.h"
#include "common/base/digest.h"
#include "common/base/loopback.h"
#include "common/base/status.h"
#include "common/base/status_text.h"
#include "common/config/check.h"
#include "common/daemon/admin_service.h"
#include "common/log/log.h"
#include "common/plugins/sandboxed.h"
#include "common/rpc/channel.h"
#include "common/rpc/convert.h"
#include "common/scoring/job_scorer.h"
#include "common/verifiers/plugin_spec.h"
#include "services/reward/data_check.h"
#include "services/reward/flags.h"
#include "sluice/registry/v1/registry.pb.h"

namespace sluice::reward {
namespace {

// Scores of one job that wait for judges and plug-ins at a time. A judge's own limit, over all
// jobs, is in judges.yaml.
constexpr uint32_t kMostWaiting = 256;

const auto kNameOfEntry = [](std::string* out, const auto& entry) { out->append(entry.first); };

// How many answers are worth waiting for these judges, plug-ins and programs now.
absl::StatusOr<uint32_t> CapacityOf(
    const std::vector<JudgeClient*>& judges,
    const std::map<std::string, std::unique_ptr<PluginHost>>& plugins,
    const std::function<absl::StatusOr<uint32_t>()>& programs) {
  uint32_t least = kMostWaiting;
  if (programs != nullptr) {
    SLUICE_ASSIGN_OR_RETURN(least, programs());
  }
  for (const auto& [args, plugin] : plugins) {
    SLUICE_ASSIGN_OR_RETURN(const uint32_t capacity, plugin->Capacity());
    least = std::min(least, capacity);
  }
  for (const JudgeClient* const judge : judges) {
    SLUICE_RETURN_IF_ERROR(judge->CheckReady());
    least = std::min(least, judge->Capacity());
  }
  return least;
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
  SLUICE_RETURN_IF_ERROR(ReadCodeServerFlags(*host.flags).status());
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<run_code::Client> code_server,
                          MakeCodeClient(*host.flags));
  return absl::WrapUnique(
      new RewardProgram(host, std::move(judges), rights, std::move(code_server)));
}

RewardProgram::RewardProgram(const daemon::Host& host, Judges judges, PluginRights rights,
                             std::unique_ptr<run_code::Client> code_server)
    : host_(host),
      rights_(rights),
      judges_(std::move(judges)),
      sandboxes_(!host.flags->OwnFlag(kUnsafeFlag).empty(), std::move(code_server)),
      admin_(daemon::MakeAdminService([this](const std::string& job) { return Explain(job); })) {}
RewardProgram::~RewardProgram() = default;

std::vector<grpc::Service*> RewardProgram::services() { return {admin_.get()}; }

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
  return absl::OkStatus();
}

absl::Status RewardProgram::StartCodeServer() {
  SLUICE_ASSIGN_OR_RETURN(run_code::HttpServer::Options options, ReadCodeServerFlags(*host_.flags));
  if (!ServesCode(*host_.flags)) return absl::OkStatus();
  SLUICE_ASSIGN_OR_RETURN(sandbox::CodeSandboxes* const sandboxes, sandboxes_.Shared());
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
  std::vector<Job> ended;  // Stopped without the lock, because that waits.
  std::vector<const registry::v1::Assignment*> fresh;
  {
    MutexLock lock(&mu_);
    if (draining_) return FollowQueues(assignments);
    std::set<std::string> kept;
    for (const registry::v1::Assignment& assignment : assignments.jobs()) {
      if (assignment.phase() != registry::v1::ASSIGNMENT_PHASE_RUN || assignment.queues_size() == 0)
        continue;

      kept.insert(assignment.job());
      const auto it = jobs_.find(assignment.job());
      if (it != jobs_.end() && it->second.queue == assignment.queues(0)) continue;
      if (it != jobs_.end() && it->second.worker != nullptr) {
        it->second.queue = assignment.queues(0);
        it->second.worker->MoveQueue(it->second.queue);
        continue;
      }
      if (it != jobs_.end()) {
        ended.push_back(std::move(it->second));
        jobs_.erase(it);
      }
      fresh.push_back(&assignment);
    }

    for (auto it = jobs_.begin(); it != jobs_.end();) {
      if (kept.contains(it->first)) {
        ++it;
        continue;
      }
      ended.push_back(std::move(it->second));
      link_->RemoveProgress(it->first);
      it = jobs_.erase(it);
    }
  }

  for (const Job& job : ended) {
    if (job.worker != nullptr) job.worker->Stop();
  }
  ended.clear();
  for (const registry::v1::Assignment* const assignment : fresh) StartJob(*assignment);
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

void RewardProgram::StartJob(const registry::v1::Assignment& assignment) {
  const std::string id = assignment.job();
  Job job{.queue = assignment.queues(0),
          .name = assignment.spec().name(),
          .lines = std::make_unique<log::JobScope>(id, assignment.spec().name()),
          .plugins = std::make_unique<Plugins>(),
          .sandboxes = {},
          .worker = nullptr};

  const auto judges = FindJudges(assignment.spec());
  // Ends the calls to judges when the worker stops.
  const auto stop = std::make_shared<rpc::Cancel>();
  ScorerServices services;
  for (const JudgeClient* const judge : judges.value_or(std::vector<JudgeClient*>()))
    absl::StrAppend(&services.judges, judge->Identity(), "\n");
  services.ask_judge = [this, stop](const std::string& judge, const std::string& system,
                                    const std::string& user, absl::Duration timeout) {
    return judges_.at(judge)->Ask(system, user, timeout, *stop);
  };

  absl::Status status = CheckOnDaemon(assignment.spec());
  if (status.ok()) status = judges.status();
  if (status.ok()) status = StartPlugins(assignment, job.plugins.get());
  for (const auto& [args, plugin] : *job.plugins)
    absl::StrAppend(&services.plugins, plugin->version(), "\n");
  services.run_plugin = [plugins = job.plugins.get()](const std::string& args,
                                                      const std::vector<nlohmann::json>& items,
                                                      absl::Duration timeout) {
    return plugins->at(args)->Score(items, timeout);
  };
  if (status.ok()) {
    auto sandboxes = sandboxes_.Make(assignment.spec().reward());
    status = sandboxes.status();
    if (sandboxes.ok()) job.sandboxes = *std::move(sandboxes);
  }
  services.run_code = job.sandboxes.run;
  services.toolchains = job.sandboxes.toolchains;
  auto scorer = MakeScorer(assignment.spec().reward(), services);
  const auto queue = rpc::Connect(job.queue, {rpc::Role::kQueue});
  if (status.ok()) status = scorer.status();
  if (status.ok()) status = queue.status();
  if (status.ok()) status = CheckRows(assignment, *scorer);

  if (!status.ok()) {
    job.plugins->clear();
    log::Error("job_refused", {{"job_id", job.name}, {"error", status}});
    ReportProgress(id, false, "failed", StatusText(status));
  } else {
    log::Info("job_started", {{"job_id", job.name}, {"generation", scorer->generation()}});
    job.worker = std::make_unique<Worker>(
        Worker::Options{
            .job = id,
            .job_name = job.name,
            .worker = host_.flags->id,
            .incarnation = link_->incarnation(),
            .pool = TaskPoolOf(assignment.spec().reward()),
            // Programs wait for sandboxes, of which there is one for each core.
            .waiting = judges->empty() && job.plugins->empty() ? job.sandboxes.runs : kMostWaiting,
            .waits_for = !judges->empty()        ? "judge"
                         : !job.plugins->empty() ? "plug-in"
                                                 : "program",
            .capacity =
                [judges = *judges, plugins = job.plugins.get(), programs = job.sandboxes.capacity] {
                  return CapacityOf(judges, *plugins, programs);
                },
            .on_stop =
                [stop, plugins = job.plugins.get(), sandboxes = job.sandboxes] {
                  stop->Trigger();
                  for (const auto& [args, plugin] : *plugins) plugin->Stop();
                  sandboxes.Stop();
                }},
        *queue, *std::move(scorer), Metrics(host_.metrics, job.name), [this, id](absl::Status why) {
          // ABORTED: another process has taken over this daemon's id (fenced). Any other error, for
          // example that the queue no longer lists this worker, is for the controller to judge.
          ReportProgress(id, false, absl::IsAborted(why) ? "fenced" : "failed", StatusText(why));
        });
    ReportProgress(id, true, "scoring", "");
    // A plug-in that broke before this line has reported that already.
    for (const auto& [args, plugin] : *job.plugins) {
      if (const absl::Status why = plugin->broken(); !why.ok())
        ReportProgress(id, false, "failed", StatusText(why));
    }
  }

  {
    MutexLock lock(&mu_);
    if (!draining_) {
      jobs_[id] = std::move(job);
      return;
    }
  }
  // Drain() ran meanwhile and did not see this worker, so it is stopped here.
  if (job.worker != nullptr) job.worker->Stop();
}

absl::Status RewardProgram::StartPlugins(const registry::v1::Assignment& assignment,
                                         Plugins* plugins) {
  const std::string& id = assignment.job();
  const job::v1::Reward& reward = assignment.spec().reward();
  const auto entries = PluginsOf(reward);
  if (entries.empty()) return absl::OkStatus();
  if (rights_ == PluginRights::kNone) {
    return ErrorWith(absl::StatusCode::kFailedPrecondition,
                     {.reason = "NO_PLUGINS",
                      .hint = "the operator allows them by the flag --plugins of sluice-reward"},
                     absl::StrCat("reward daemon ", host_.flags->id,
                                  " runs no plug-ins, but reward ", entries[0]->name(), " is one"));
  }
  LaunchPlugin launch = LaunchUnconfined;
  if (rights_ == PluginRights::kSandbox) {
    SLUICE_ASSIGN_OR_RETURN(launch, sandboxes_.MakePluginLaunch(reward));
  }
  for (const job::v1::RewardEntry* const entry : entries) {
    SLUICE_ASSIGN_OR_RETURN(const nlohmann::json args, VerifierArgs(*entry));
    std::unique_ptr<PluginHost>& plugin = (*plugins)[args.dump()];
    if (plugin != nullptr) continue;
    SLUICE_ASSIGN_OR_RETURN(PluginSpec spec, ParsePluginSpec(args));
    auto made = PluginHost::Make(
        {.job = assignment.spec().name(),
         .name = entry->name(),
         .spec = std::move(spec),
         .scores_groups = entry->granularity() == "group",
         .launch = launch,
         .folders = rights_ == PluginRights::kSandbox ? kSandboxProgramFolders : ProgramFolders(),
         .on_broken = [this, id](absl::Status why) {
           ReportProgress(id, false, "failed", StatusText(why));
         }});
    if (!made.ok()) {
      plugins->clear();
      return Annotate(made.status(), absl::StrCat("reward ", entry->name()));
    }
    plugin = *std::move(made);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<JudgeClient*>> RewardProgram::FindJudges(
    const job::v1::JobSpec& spec) const {
  std::vector<JudgeClient*> judges;
  for (const std::string& name : JudgesOf(spec.reward())) {
    const auto it = judges_.find(name);
    if (it == judges_.end()) {
      return ErrorWith(
          absl::StatusCode::kNotFound,
          {.reason = "NO_JUDGE",
           .hint = "the operator names judges in the file of sluice-reward's flag --judges"},
          absl::StrCat("reward daemon ", host_.flags->id, " has no judge \"", name,
                       "\"; its judges are: ",
                       judges_.empty() ? "none" : absl::StrJoin(judges_, ", ", kNameOfEntry)));
    }
    judges.push_back(it->second.get());
  }
  return judges;
}

absl::Status RewardProgram::CheckRows(const registry::v1::Assignment& assignment,
                                      const Scorer& scorer) {
  const job::v1::JobSpec& spec = assignment.spec();
  SLUICE_ASSIGN_OR_RETURN(const std::vector<std::string> remarks, CheckData(spec, scorer));
  for (const std::string& remark : remarks) {
    log::Warning("rows_unscorable", {{"job_id", spec.name()}, {"message", remark}});
    common::v1::Event event;
    event.set_job(assignment.job());
    event.set_severity(common::v1::SEVERITY_WARNING);
    event.set_code("rows_unscorable");
    event.set_message(remark);
    link_->RaiseEvent(std::move(event));
  }
  return absl::OkStatus();
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
  std::vector<Worker*> workers;
  {
    MutexLock lock(&mu_);
    draining_ = true;
    leaving_.swap(jobs_);
    for (const auto& [unused, job] : leaving_) {
      if (job.worker != nullptr) workers.push_back(job.worker.get());
    }
  }
  // What it runs for other daemons, these ask of others again.
  if (code_service_ != nullptr) code_service_->Stop();
  if (code_server_ != nullptr) code_server_->Stop();
  // The controller hears of it first, so that it assigns no new job.
  if (link_ != nullptr) link_->SetDraining();
  for (Worker* const worker : workers) worker->Stop();
  if (link_ != nullptr) link_->Stop();
  // No assignment moves a worker's queue any more. Workers are destroyed without the lock.
  std::map<std::string, Job> ended;
  MutexLock lock(&mu_);
  ended.swap(leaving_);
}

std::vector<common::v1::WaitEdge> RewardProgram::Explain(const std::string& job) const {
  MutexLock lock(&mu_);
  const auto it = jobs_.find(job);
  if (it == jobs_.end() || it->second.worker == nullptr) return {};
  return it->second.worker->Explain();
}

}  // namespace sluice::reward
