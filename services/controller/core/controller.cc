#include "services/controller/core/controller.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "services/controller/core/codec.h"
#include "services/controller/core/names.h"

namespace sluice::controller {
namespace {

// Number of a job's newest step reports that are kept. They take about 1.5 KiB each, so the reports
// of a long job take 3 to 6 MiB.
constexpr size_t kStepsKept = 2048;
// Most daemons that one call of Tick() forgets, so that no transaction is huge.
constexpr int kForgottenAtOnce = 250;

// The error of a Submit whose name belongs to a job that still lives.
absl::Status NameTakenError(const JobRecord& record) {
  return ErrorWith(
      absl::StatusCode::kAlreadyExists,
      {.reason = "CONFLICT",
       .catalogue = "SLUICE-CTL-0005",
       .hint = absl::StrCat("choose another name, or end that job first: `sluice job cancel ",
                            record.name, "`"),
       .current = record.id},
      absl::StrCat("there is a job ", record.name, ", ", StateName(record.state),
                   ", that was submitted from another file or with other settings"));
}

absl::Status OthersNameError(absl::string_view name) {
  return ErrorWith(
      absl::StatusCode::kAlreadyExists,
      {.reason = "CONFLICT", .catalogue = "SLUICE-CTL-0005", .hint = "choose another name"},
      absl::StrCat("a job of another submitter has the name ", name));
}

}  // namespace

Controller::Controller()
    : fleet_({[this](Instant now, const Daemon& daemon, int64_t incarnation,
                     const std::string& cause) { OnDaemonLost(now, daemon, incarnation, cause); },
              [this](Instant now, const Daemon& daemon) { OnDaemonBack(now, daemon); }}) {}

absl::StatusOr<std::unique_ptr<Controller>> Controller::Load(meta::Store* store, Instant now) {
  std::unique_ptr<Controller> controller(new Controller());
  SLUICE_ASSIGN_OR_RETURN(const std::vector<meta::Entry> names, store->List("names/"));
  for (const meta::Entry& name : names) {
    controller->revisions_[name.key] = name.revision;
    controller->names_[name.key.substr(NameKey("").size())] = name.value;
  }

  // Every job has an assignment, so they are listed here. The names would miss jobs whose name was
  // taken by a later job.
  SLUICE_ASSIGN_OR_RETURN(const std::vector<meta::Entry> assignments, store->List(AssignKey("")));
  for (const meta::Entry& assignment : assignments) {
    SLUICE_RETURN_IF_ERROR(
        controller->LoadJob(store, now, assignment.key.substr(AssignKey("").size())));
  }

  if (const auto floor = store->Get(FloorKey()); floor.ok()) {
    int64_t value = 0;
    if (!absl::SimpleAtoi(floor->value, &value)) {
      return ErrorWith(absl::StatusCode::kDataLoss,
                       {"STORE_DAMAGED", "SLUICE-META-0003",
                        "put the store back from a copy, or move it away to start empty"},
                       absl::StrCat("the job store's ", FloorKey(),
                                    " is no number: ", absl::CEscape(floor->value.substr(0, 40))));
    }
    controller->fleet_.RestoreFloor(value);
    controller->revisions_[floor->key] = floor->revision;
  } else if (!absl::IsNotFound(floor.status())) {
    return floor.status();
  }

  const std::set<std::string> working = controller->ListWorking();
  SLUICE_ASSIGN_OR_RETURN(const std::vector<meta::Entry> daemons, store->List("daemons/"));
  for (const meta::Entry& entry : daemons) {
    SLUICE_ASSIGN_OR_RETURN(DaemonRecord record, Decode<DaemonRecord>(entry.key, entry.value));
    controller->revisions_[entry.key] = entry.revision;
    const bool works = working.count(record.id) > 0;
    controller->fleet_.Restore(now, std::move(record), works);
  }
  return controller;
}

absl::StatusOr<StoredJob> ReadStoredJob(meta::Store* store, const std::string& id) {
  SLUICE_ASSIGN_OR_RETURN(meta::Entry spec, store->Get(JobKey(id, "spec")));
  SLUICE_ASSIGN_OR_RETURN(const std::vector<meta::Entry> steps, store->List(JobKey(id, "steps/")));
  StoredJob stored{std::move(spec.value), {}};
  for (const meta::Entry& entry : steps) {
    SLUICE_ASSIGN_OR_RETURN(const StepReport step, Decode<StepReport>(entry.key, entry.value));
    stored.steps[step.k] = SummaryOf(step);
  }
  return stored;
}

absl::Status Controller::LoadJob(meta::Store* store, Instant now, const std::string& id) {
  SLUICE_ASSIGN_OR_RETURN(const meta::Entry status, store->Get(JobKey(id, "status")));
  Job job;
  SLUICE_ASSIGN_OR_RETURN(job.record, Decode<JobRecord>(status.key, status.value));
  job.state_since = job.stage_since = job.last_advance = now.mono;
  if (job.record.running_since != absl::InfiniteFuture()) {
    job.running_since =
        now.mono - std::max(now.wall - job.record.running_since, absl::ZeroDuration());
  }

  SLUICE_ASSIGN_OR_RETURN(const meta::Entry assign, store->Get(AssignKey(id)));
  SLUICE_ASSIGN_OR_RETURN(job.assign, Decode<AssignRecord>(assign.key, assign.value));
  revisions_[assign.key] = assign.revision;
  // Earlier builds stored no groups.
  if (job.record.groups.empty() && job.assign.trainers_complete) AddTrainerGroup(job);

  if (job.record.stage != Stage::kOver) {
    SLUICE_ASSIGN_OR_RETURN(StoredJob stored, ReadStoredJob(store, id));
    job.spec = std::move(stored.spec);
    job.steps = std::move(stored.steps);
    // No event: it was raised when the step came.
    for (const auto& [k, step] : job.steps) job.learning.Add(step.signal);
    active_.insert(id);
  }
  next_order_ = std::max(next_order_, job.record.order + 1);

  Job& loaded = jobs_.emplace(id, std::move(job)).first->second;
  if (loaded.live() && loaded.started()) {
    ++loaded.record.restarts["controller"];
    Emit(now, loaded, Severity::kWarning, "controller", "", "controller_back",
         "the controller was started anew");
  }
  return absl::OkStatus();
}

absl::StatusOr<SubmitOutput> Controller::Submit(Instant now, const SubmitInput& input) {
  SLUICE_RETURN_IF_ERROR(CheckJobName(input.name));
  std::string previous;
  if (const auto known = names_.find(input.name); known != names_.end()) {
    const JobRecord& record = jobs_.at(known->second).record;
    const bool visible = !input.only_own || record.owner == input.owner;
    const bool same_call = !input.request.empty() && record.request == input.request;

    // A repeated call gets the job that its first try made, even if that has ended meanwhile.
    if (visible && (same_call || (!IsFinal(record.state) && record.hash == input.hash)))
      return SubmitOutput{true, record.id, ""};
    if (!IsFinal(record.state))
      return visible ? NameTakenError(record) : OthersNameError(input.name);
    previous = record.id;
  }

  SLUICE_RETURN_IF_ERROR(CheckQuota(input.owner, input.max_jobs));

  Job job;
  job.record.id = input.id;
  job.record.name = input.name;
  job.record.hash = input.hash;
  job.record.request = input.request;
  job.record.owner = input.owner;
  job.record.limited = input.only_own;
  job.record.order = next_order_++;
  job.record.created = job.record.since = now.wall;
  job.record.needs = input.needs;
  job.spec = input.spec;
  job.state_since = job.stage_since = job.last_advance = now.mono;

  PutGuarded(NameKey(input.name), input.id);
  out_.ops.push_back({JobKey(input.id, "spec"), input.spec});
  out_.ops.push_back({JobKey(input.id, "hash"), input.hash});
  names_[input.name] = input.id;
  active_.insert(input.id);

  Job& stored = jobs_.emplace(input.id, std::move(job)).first->second;
  Emit(now, stored, Severity::kInfo, "controller", "", "submitted",
       absl::StrCat("job ", input.name, " was submitted",
                    input.owner.empty() ? "" : absl::StrCat(" by ", input.owner),
                    previous.empty() ? ""
                                     : absl::StrCat("; the earlier job of this name, ", previous,
                                                    ", has ended")));
  for (const std::string& warning : input.warnings) {
    Emit(now, stored, Severity::kWarning, "controller", "", "unusual", warning);
  }

  staff_due_ = true;
  return SubmitOutput{false, input.id, previous};
}

absl::Status Controller::CheckQuota(const std::string& owner,
                                    std::optional<uint32_t> max_jobs) const {
  if (!max_jobs) return absl::OkStatus();
  uint32_t count = 0;
  for (const std::string& id : active_) {
    const JobRecord& record = jobs_.at(id).record;
    count += record.owner == owner && !IsFinal(record.state);
  }
  if (count < *max_jobs) return absl::OkStatus();
  return ErrorWith(absl::StatusCode::kResourceExhausted,
                   {.reason = "QUOTA",
                    .catalogue = "SLUICE-CTL-0019",
                    .hint = "wait until one of them has ended, or cancel one: `sluice job list`"},
                   absl::StrCat("submitter ", owner, " has ", count, count == 1 ? " job" : " jobs",
                                " that have not ended, and the operator's quota is ", *max_jobs));
}

absl::StatusOr<RegisterOutput> Controller::Register(Instant now, const RegisterInput& input) {
  SLUICE_ASSIGN_OR_RETURN(RegisterOutput output, fleet_.Register(now, input));
  Daemon& daemon = *fleet_.Find(input.daemon.id);
  for (const std::string& job : input.running) {
    if (!jobs_.contains(job) && !daemon.record.drained) output.unknown_jobs.push_back(job);
  }
  daemon.record.unknown_jobs = output.unknown_jobs;
  Save(daemon);
  if (!output.repeat && daemon.record.role == Role::kQueue) {
    // A new queue process must be told of its jobs again; its answers say which of them it still
    // has.
    for (const std::string& id : active_) {
      if (jobs_.at(id).assign.queue == daemon.record.id) jobs_.at(id).acked_revision = 0;
    }
  }
  staff_due_ = true;
  return output;
}

absl::Status Controller::Heartbeat(Instant now, const HeartbeatInput& input) {
  Daemon* known = fleet_.Find(input.daemon);
  const bool was_usable = known != nullptr && known->usable();
  SLUICE_ASSIGN_OR_RETURN(Daemon * daemon,
                          fleet_.Heartbeat(now, input.daemon, input.incarnation, input.stream));
  daemon->draining = input.draining;
  if (daemon->usable() != was_usable) staff_due_ = true;
  ApplyHeartbeat(now, *daemon, input);
  return absl::OkStatus();
}

void Controller::ApplyHeartbeat(Instant now, Daemon& daemon, const HeartbeatInput& input) {
  daemon.generation_applied = input.generation;
  daemon.load = input.load;
  daemon.progress.clear();
  for (const Progress& progress : input.progress) daemon.progress[progress.job] = progress;

  if (!input.steps.empty()) daemon.steps_stored.clear();
  for (const auto& [id, step] : input.steps) {
    const auto it = jobs_.find(id);
    // A job that the store has lost may come back with a backup, and will want the report then.
    if (it == jobs_.end() && absl::c_linear_search(daemon.record.unknown_jobs, id)) continue;
    if (active_.contains(id)) ApplyStepReport(now, it->second, daemon.record.id, step);
    StepMark& stored = daemon.steps_stored[id];
    stored = std::max(stored, {step.version.incarnation, step.k});
  }
  for (const auto& [id, stored] : daemon.steps_stored) {
    if (active_.contains(id)) FinishLateSteps(jobs_.at(id));
  }

  const uint64_t stored = daemon.record.events_stored;
  for (const auto& [about, event] : input.events) {
    // The daemon sends an event again until it knows that the event is stored.
    if (event.seq <= daemon.record.events_stored) continue;
    daemon.record.events_stored = event.seq;

    for (const std::string& id : active_) {
      if (!about.empty() && about != id) continue;
      Job& job = jobs_.at(id);
      const bool works =
          job.assign.queue == daemon.record.id || job.assign.Find(daemon.record.id) != nullptr;
      if (!works) continue;

      // The message of these two events is the checkpoint's path.
      const bool has_checkpoint = event.code == "checkpoint" || event.code == "checkpoint_loaded";
      if (has_checkpoint && daemon.record.role == Role::kTrainer)
        job.record.checkpoint = event.message;
      Emit(now, job, event.severity, RoleName(daemon.record.role), daemon.record.id, event.code,
           event.message);
    }
  }
  if (daemon.record.events_stored != stored) Save(daemon);

  for (const auto& [id, progress] : daemon.progress) {
    const auto it = jobs_.find(id);
    if (it == jobs_.end()) continue;
    const Worker* worker = it->second.assign.Find(daemon.record.id);
    if (worker != nullptr) ApplyProgress(now, it->second, *worker, progress);
  }
}

void Controller::ApplyProgress(Instant now, Job& job, const Worker& worker,
                               const Progress& progress) {
  const bool trainer = worker.role == Role::kTrainer;
  // Progress under an older assignment says nothing about this one.
  if (progress.incarnation != (trainer ? job.assign.trainer_incarnation : worker.incarnation))
    return;

  // Rank 0 alone knows versions and steps; those of the other ranks have no incarnation.
  const bool leads = trainer && progress.version.incarnation == job.assign.trainer_incarnation;
  const bool other_trainers = progress.version.incarnation > job.record.version.incarnation;
  if (leads && progress.ready && !job.record.groups.empty())
    BeginGroup(job, job.record.groups.back(), progress.step);
  if (leads && progress.ready && (other_trainers || progress.step > job.record.step)) {
    job.record.version = progress.version;
    job.record.step = progress.step;
    MarkChanged(job);
  }

  if (trainer && progress.eval.versions > 0 && progress.eval != job.record.eval) {
    job.record.eval = progress.eval;
    MarkChanged(job);
  }

  // What a leaving worker says of its end is no end of the job.
  if (!job.live() || worker.leaving) return;
  if (trainer && progress.phase == "done") {
    OnTrainerDone(now, job, progress.cause);
  } else if (progress.phase == "failed") {
    Fail(now, job, "SLUICE-CTL-0010",
         absl::StrCat(RoleName(worker.role), " ", worker.id, " failed: ", progress.cause));
  } else if (trainer && progress.phase == "restore" && job.assign.trainers_complete) {
    job.assign.trainers_complete = false;
    staff_due_ = true;
    const std::string cause = absl::StrCat("it asked to restore: ", progress.cause);
    Emit(now, job, Severity::kWarning, "trainer", worker.id, "restart",
         absl::StrCat(worker.id, ": ", cause));
    CountRestart(now, job, Role::kTrainer, cause);
  }
}

void Controller::ApplyStepReport(Instant now, Job& job, const std::string& daemon,
                                 const StepReport& step) {
  // Reports may come late: a trainer that was cut off from the controller sends them when it is
  // back, and another group may have gone on from the steps that they are about.
  std::vector<TrainerGroup>& groups = job.record.groups;
  const auto group = absl::c_find_if(groups, [&](const TrainerGroup& each) {
    return each.incarnation == step.version.incarnation;
  });
  if (group == groups.end() || !absl::c_linear_search(group->trainers, daemon) ||
      step.k >= FirstStepAfter(groups, group->incarnation))
    return;
  // A trainer sends a report until it is stored, so a report may come twice.
  if (step.k <= group->reported_k) return;

  const bool goes_on = group->reported_k >= 0;
  BeginGroup(job, *group, step.k);
  group->reported_k = step.k;
  job.steps[step.k] = SummaryOf(step);
  out_.ops.push_back({StepKey(job.record.id, step.k), Encode(step)});
  MarkChanged(job);
  if (step.version.incarnation != job.assign.trainer_incarnation) {
    job.late_step = std::min(job.late_step.value_or(step.k), step.k);
    return;
  }

  // The time between the last step of one trainer group and the first of the next is no step
  // duration.
  if (goes_on && job.last_step_at != absl::InfinitePast()) {
    job.step_seconds.push_back(absl::ToDoubleSeconds(step.at - job.last_step_at));
    if (job.step_seconds.size() > 20) job.step_seconds.erase(job.step_seconds.begin());
  }
  job.record.step = step.k + 1;
  job.record.version = step.version;
  job.last_step_at = step.at;
  job.last_advance = job.last_step = now.mono;
  WatchLearning(now, job, job.steps[step.k].signal);
  ThinSteps(job);
}

void Controller::AddTrainerGroup(Job& job) {
  std::vector<TrainerGroup>& groups = job.record.groups;
  TrainerGroup& group = groups.emplace_back();
  group.incarnation = job.assign.trainer_incarnation;
  for (const Worker& worker : job.assign.workers) {
    if (worker.role == Role::kTrainer) group.trainers.push_back(worker.id);
  }
  if (groups.size() > kGroupsKept) groups.erase(groups.begin());
}

void Controller::WatchLearning(Instant now, Job& job, const StepSignal& step) {
  for (const Finding finding : job.learning.Add(step)) {
    const std::string code(EventCode(finding));
    const int64_t first = job.learning.spell(finding)->first;
    const auto told = job.record.told_findings.find(code);
    if (told != job.record.told_findings.end() && told->second == first) continue;

    // A gradient of 0 although rewards differ is worse than a task without signal: the policy can
    // no longer change.
    const bool dead = job.learning.spell(finding)->silence == LearningWatch::Silence::kZeroGradient;
    const Severity severity = dead ? Severity::kAlarm : SeverityOf(finding);
    job.record.told_findings[code] = first;
    Emit(now, job, severity, "controller", "", code, job.learning.Text(finding));
  }
}

void Controller::BeginGroup(Job& job, TrainerGroup& group, int64_t k) {
  if (group.first_step != TrainerGroup::kNone) return;
  group.first_step = k;
  MarkChanged(job);

  // Steps of later groups stay.
  const int64_t end = FirstStepAfter(job.record.groups, group.incarnation);
  const auto first = job.steps.lower_bound(k);
  const auto last = job.steps.lower_bound(end);
  if (k >= end || first == last) return;
  for (auto it = first; it != last; ++it)
    out_.ops.push_back({StepKey(job.record.id, it->first), std::nullopt});
  job.steps.erase(first, last);
  OnStepsRewritten(job, k);
}

void Controller::FinishLateSteps(Job& job) {
  if (job.late_step.has_value()) OnStepsRewritten(job, *std::exchange(job.late_step, std::nullopt));
}

void Controller::OnStepsRewritten(Job& job, int64_t k) {
  job.rewritten_from.push_back(k);
  // The watch takes the steps in order, and must not remember dropped ones.
  job.learning = {};
  for (const auto& [kept, summary] : job.steps) job.learning.Add(summary.signal);
}

// Does nothing until there are twice kStepsKept steps, so that the pass over all of them is rare.
void Controller::ThinSteps(Job& job) {
  if (job.steps.size() < 2 * kStepsKept) return;

  // ResultOf() computes reward_first from the first kRewardSteps steps, so they stay.
  const auto begin = job.steps.lower_bound(kRewardSteps);
  const auto end = std::prev(job.steps.end(), kStepsKept);
  int64_t stride = 1;
  while (end->first / stride > static_cast<int64_t>(kStepsKept / 2)) stride *= 2;

  for (auto it = begin; it != end;) {
    // The stride doubles as the run grows, so what one pass keeps is a subset of what the last one
    // kept.
    if (it->first % stride == 0) {
      ++it;
      continue;
    }
    job.record.folded.tokens += it->second.tokens;
    for (const auto& [staleness, tokens] : it->second.staleness)
      job.record.folded.staleness[staleness] += tokens;
    out_.ops.push_back({StepKey(job.record.id, it->first), std::nullopt});
    it = job.steps.erase(it);
  }
}

void Controller::StreamClosed(Instant now, const std::string& daemon, uint64_t stream) {
  fleet_.StreamClosed(now, daemon, stream);
  staff_due_ = true;
}

void Controller::OnAway(Instant now, absl::Duration away) {
  fleet_.OnAway(now, away);
  for (const std::string& id : active_) {
    Job& job = jobs_.at(id);
    job.state_since += away;
    job.stage_since += away;
    job.last_advance += away;
  }
}

void Controller::OnStoreRebuilt(Instant now) {
  for (const std::string& id : active_) {
    Emit(now, jobs_.at(id), Severity::kWarning, "controller", "", "store_rebuilt",
         "the job store had lost data, and got everything back from the controller's memory");
  }
}

void Controller::Tick(Instant now) {
  fleet_.Tick(now);
  ForgetDaemons(now);
}

void Controller::ForgetDaemons(Instant now) {
  const std::vector<std::string> ids = fleet_.ListForgettable(now);
  if (ids.empty()) return;
  const std::set<std::string> working = ListWorking();
  bool risen = false;
  int forgotten = 0;
  for (const std::string& id : ids) {
    if (working.contains(id)) continue;
    if (++forgotten > kForgottenAtOnce) break;
    risen |= fleet_.Forget(id);
    desired_.erase(id);
    RemoveGuarded(DaemonKey(id));
  }
  if (risen) PutGuarded(FloorKey(), absl::StrCat(fleet_.floor()));
}

std::set<std::string> Controller::ListWorking() const {
  std::set<std::string> working;
  for (const std::string& id : active_) {
    const AssignRecord& assign = jobs_.at(id).assign;
    working.insert(assign.queue);
    for (const Worker& worker : assign.workers) working.insert(worker.id);
  }
  return working;
}

Outbox Controller::Take(Instant now) {
  // Go through a copy, because Advance() removes a job from active_ once its end is over.
  for (const std::string& id : std::set<std::string>(active_)) Advance(now, jobs_.at(id));

  // The order matters: Advance() may change assignments, which RefreshDesiredStates() and
  // CollectSetJobs() send.
  if (staff_due_) StaffJobs(now);
  RefreshDesiredStates();
  CollectSetJobs(now);

  for (const std::string& id : unsaved_) {
    const Job& job = jobs_.at(id);
    out_.ops.push_back({JobKey(id, "status"), Encode(job.record)});
    PutGuarded(AssignKey(id), Encode(job.assign));
    out_.jobs.insert(id);
  }
  unsaved_.clear();

  return std::exchange(out_, {});
}

void Controller::OnCommitted(int64_t revision) {
  SLUICE_CHECK(revision > 0 || guarded_.empty());  // A guarded put is always part of a transaction.
  for (const std::string& key : guarded_) revisions_[key] = revision;
  guarded_.clear();
}

absl::StatusOr<const Job*> Controller::Find(const std::string& id_or_name) const {
  const auto name = names_.find(id_or_name);
  const auto job = jobs_.find(name == names_.end() ? id_or_name : name->second);
  if (job != jobs_.end()) return &job->second;
  return ErrorWith(
      absl::StatusCode::kNotFound,
      {.reason = "JOB", .catalogue = "SLUICE-CTL-0006", .hint = "see `sluice job list`"},
      absl::StrCat("there is no job \"", id_or_name.substr(0, 80), "\""));
}

double Controller::Seconds(const Job& job, absl::Time now) {
  if (job.record.running_since == absl::InfiniteFuture()) return 0;
  const absl::Time end = std::min({job.record.ended, job.record.paused, now});
  return absl::ToDoubleSeconds(std::max(end - job.record.running_since, absl::ZeroDuration()));
}

void Controller::Emit(Instant now, Job& job, Severity severity, absl::string_view role,
                      const std::string& daemon, absl::string_view code, std::string message) {
  Event event{++job.record.last_event,
              now.wall,
              job.assign.trainer_incarnation,
              severity,
              std::string(role),
              daemon,
              std::string(code),
              std::move(message),
              1};
  out_.ops.push_back({EventKey(job.record.id, event.seq), Encode(event)});
  MarkChanged(job);
}

void Controller::MarkChanged(Job& job) {
  ++job.changes;
  unsaved_.insert(job.record.id);
}

void Controller::Save(const Daemon& daemon) {
  PutGuarded(DaemonKey(daemon.record.id), Encode(daemon.record));
}

void Controller::RemoveGuarded(const std::string& key) {
  for (meta::Op& op : out_.ops) {
    if (op.key != key) continue;
    // PutGuarded() has added its compare to this transaction.
    op.value.reset();
    std::erase(guarded_, key);
    revisions_.erase(key);
    return;
  }
  if (const auto revision = revisions_.find(key); revision != revisions_.end()) {
    out_.compares.push_back({key, revision->second});
    revisions_.erase(revision);
  }
  out_.ops.push_back({key, std::nullopt});
}

// A transaction has at most one put and one compare per key; a later value replaces the earlier
// one.
void Controller::PutGuarded(std::string key, std::string value) {
  for (meta::Op& op : out_.ops) {
    if (op.key != key) continue;
    op.value = std::move(value);
    const bool removed = std::find(guarded_.begin(), guarded_.end(), key) == guarded_.end();
    if (removed) guarded_.push_back(std::move(key));  // By RemoveGuarded(), in this transaction.
    return;
  }

  // Revision 0 means that the key must not exist yet.
  const auto revision = revisions_.find(key);
  out_.compares.push_back({key, revision == revisions_.end() ? 0 : revision->second});
  guarded_.push_back(key);
  out_.ops.push_back({std::move(key), std::move(value)});
}

}  // namespace sluice::controller
