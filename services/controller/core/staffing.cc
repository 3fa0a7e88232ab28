// Who works for which job, and what the daemons and the queue are told about it.

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "services/controller/core/codec.h"
#include "services/controller/core/controller.h"

namespace sluice::controller {
namespace {
// The code of a waiting job whose owner's jobs have as many daemons as the quota allows.
constexpr char kOverQuota[] = "SLUICE-CTL-0024";
}  // namespace

void Controller::StaffJobs(Instant now) {
  staff_due_ = false;
  std::vector<DaemonView> daemons;
  for (const auto& [id, daemon] : fleet_.daemons()) {
    daemons.push_back({id, daemon.record.role, daemon.present(), daemon.usable(),
                       daemon.record.drained, daemon.record.pool()});
  }

  std::vector<JobView> jobs;
  for (const std::string& id : active_) {
    const Job& job = jobs_.at(id);
    if (job.record.stage >= Stage::kFreeing) continue;
    JobView view{
        id, job.record.order, job.record.needs, job.started(), !job.live(), job.assign.queue, {}};
    for (const Worker& worker : job.assign.workers)
      (worker.leaving ? view.leaving : view.held).push_back(worker.id);
    if (!job.started()) view.waited = std::max(now.wall - job.record.since, absl::ZeroDuration());
    if (job.record.limited && quota_of_) {
      view.owner = job.record.owner;
      view.quota = quota_of_(job.record.owner);
    }
    jobs.push_back(std::move(view));
  }

  const std::map<std::string, JobStaff> plan = Assign(std::move(jobs), daemons, &wanted_);
  std::vector<std::string> waiting;
  for (const auto& [id, staff] : plan) {
    Job& job = jobs_.at(id);
    if (!job.live()) continue;
    if (!job.started() && !staff.lacks.empty()) waiting.push_back(id);
    else StaffJob(now, job, staff);
  }
  // These say who has the daemons that they lack, so the others come first.
  if (waiting.empty()) return;
  const Supplies supplies = CountSupplies();
  for (const std::string& id : waiting) KeepWaiting(now, jobs_.at(id), plan.at(id), supplies);
}

void Controller::KeepWaiting(Instant now, Job& job, const JobStaff& staff,
                             const Supplies& supplies) {
  const std::string message = absl::StrCat("waits for ", staff.lacks);
  std::string starts_when = DescribeStart(job, staff, supplies);
  const bool of_quota =
      staff.waits_for == WaitsFor::kQuota || staff.waits_for == WaitsFor::kLargerQuota;
  const bool other_start = starts_when != job.starts_when;
  job.starts_when = std::move(starts_when);
  if (message == job.record.message) {
    // It is not stored, so only those who watch the job are told.
    if (other_start) {
      ++job.changes;
      out_.jobs.insert(job.record.id);
    }
    return;
  }
  SetState(now, job, JobState::kWaiting, of_quota ? kOverQuota : "", message);
}

void Controller::StaffJob(Instant now, Job& job, const JobStaff& staff) {
  job.starts_when.clear();

  // Who is not in the plan any more leaves, and stays listed until it has left.
  std::vector<Worker> workers;
  bool trainer_leaves = false;
  for (const Worker& worker : job.assign.workers) {
    const std::vector<std::string>& planned = staff.of(worker.role);
    if (std::find(planned.begin(), planned.end(), worker.id) != planned.end()) continue;
    workers.push_back(worker);
    workers.back().leaving = true;
    trainer_leaves |= worker.role == Role::kTrainer;
  }

  // A leaving trainer ends its step under the trainer group's incarnation, so the next group is
  // formed once it has left.
  const auto add = [&](Role role, const std::vector<std::string>& ids) {
    for (const std::string& id : ids) {
      if (role == Role::kTrainer && trainer_leaves && job.assign.Find(id) == nullptr) continue;
      workers.push_back({id, role, fleet_.Find(id)->record.incarnation});
    }
  };
  add(Role::kTrainer, staff.trainers);
  add(Role::kRollout, staff.rollouts);
  add(Role::kReward, staff.rewards);
  std::sort(workers.begin(), workers.end(),
            [](const Worker& a, const Worker& b) { return a.id < b.id; });

  // A new trainer group is formed once all ranks are assigned.
  const bool forms_group = !job.assign.trainers_complete && !trainer_leaves &&
                           static_cast<int>(staff.trainers.size()) == job.record.needs.trainers.min;
  if (workers == job.assign.workers && !forms_group && job.started()) return;

  for (const Worker& worker : workers) {
    const Worker* before = job.assign.Find(worker.id);
    if (before != nullptr && *before == worker) continue;
    Emit(now, job, Severity::kInfo, RoleName(worker.role), worker.id,
         worker.leaving ? "released" : "assigned",
         absl::StrCat(
             RoleName(worker.role), " ", worker.id,
             worker.leaving ? " hands over its work and leaves the job" : " works for the job"));
  }

  job.assign.workers = std::move(workers);
  job.assign.queue = staff.queue;
  ++job.assign.revision;
  job.call_not_before = now.mono;

  if (forms_group) {
    job.assign.trainers_complete = true;
    ++job.assign.trainer_incarnation;
    if (job.assign.trainer_incarnation > 1) {
      Emit(now, job, Severity::kInfo, "controller", "", "trainer_group",
           absl::StrCat("trainer group ", job.assign.trainer_incarnation, " takes over"));
    }
    AddTrainerGroup(job);
  }

  if (job.record.state == JobState::kWaiting) {
    job.assign.phase = QueuePhase::kOpen;  // A resumed job was on HOLD.
    SetState(now, job, JobState::kStarting, "", "");
  }
  MarkChanged(job);
}

void Controller::RemoveLeftWorkers(Instant now, Job& job) {
  std::vector<Worker>& workers = job.assign.workers;
  const auto left = std::remove_if(workers.begin(), workers.end(), [&](const Worker& worker) {
    if (!worker.leaving || !HasLeft(job, worker)) return false;
    if (worker.role == Role::kTrainer) job.assign.trainers_complete = false;
    return true;
  });
  if (left == workers.end()) return;
  workers.erase(left, workers.end());
  ++job.assign.revision;
  job.call_not_before = now.mono;
  staff_due_ = true;
  MarkChanged(job);
}

void Controller::OnDaemonLost(Instant now, const Daemon& daemon, int64_t incarnation,
                              const std::string& cause) {
  staff_due_ = true;
  if (daemon.record.left) Save(daemon);
  for (const std::string& id : active_) {
    Job& job = jobs_.at(id);
    if (job.assign.queue == daemon.record.id) OnQueueLost(now, job, daemon, cause);
    const Worker* worker = job.assign.Find(daemon.record.id);
    if (worker == nullptr || worker->incarnation != incarnation) continue;

    const bool trainer = worker->role == Role::kTrainer;
    if (job.assign.opened) {
      out_.releases.push_back({id, job.assign.queue, AddressOf(job.assign.queue), worker->id,
                               trainer ? job.assign.trainer_incarnation : incarnation});
    }
    if (!job.live()) {
      MarkChanged(job);  // A lost worker counts as having left.
      continue;
    }

    const Role role = worker->role;
    const bool leaving = worker->leaving;
    job.assign.workers.erase(job.assign.workers.begin() + (worker - job.assign.workers.data()));
    if (trainer) job.assign.trainers_complete = false;
    ++job.assign.revision;
    job.call_not_before = now.mono;
    MarkChanged(job);

    if (daemon.draining || leaving) {
      Emit(now, job, Severity::kInfo, RoleName(role), daemon.record.id, "daemon_left",
           absl::StrCat(daemon.record.id, ": ", cause));
    } else {
      Emit(now, job, Severity::kWarning, RoleName(role), daemon.record.id, "daemon_lost",
           absl::StrCat(daemon.record.id, ": ", cause));
      CountRestart(now, job, role, cause);
    }
  }
}

// The job stays assigned to its queue, which alone has its data, and waits for it to come back.
void Controller::OnQueueLost(Instant now, Job& job, const Daemon& daemon,
                             const std::string& cause) {
  if (!job.live() || !job.started()) return;
  if (daemon.draining) {
    return Emit(now, job, Severity::kInfo, "queue", daemon.record.id, "daemon_left",
                absl::StrCat(daemon.record.id, ": ", cause));
  }
  Emit(now, job, Severity::kWarning, "queue", daemon.record.id, "daemon_lost",
       absl::StrCat(daemon.record.id, ": ", cause));
  CountRestart(now, job, Role::kQueue, cause);
}

void Controller::OnDaemonBack(Instant now, const Daemon& daemon) {
  staff_due_ = true;
  for (const std::string& id : active_) {
    if (jobs_.at(id).assign.queue != daemon.record.id) continue;
    Emit(now, jobs_.at(id), Severity::kInfo, "queue", daemon.record.id, "daemon_back",
         absl::StrCat("queue ", daemon.record.id, " sends heartbeats again"));
  }
}

std::string Controller::AddressOf(const std::string& daemon) const {
  const auto it = fleet_.daemons().find(daemon);
  if (it == fleet_.daemons().end()) return "";
  const auto address = it->second.record.addresses.find("grpc");
  return address == it->second.record.addresses.end() ? "" : address->second;
}

std::vector<Worker> Controller::Callers(const Job& job) const {
  std::vector<Worker> callers = job.assign.workers;
  for (Worker& worker : callers) {
    if (worker.role == Role::kTrainer) worker.incarnation = job.assign.trainer_incarnation;
  }
  return callers;
}

// The ranks of a trainer group leave together, because the others cannot train without the one that
// does. A single trainer that drains leaves by itself.
bool Controller::TrainerLeaves(const Job& job) const {
  if (job.record.needs.trainers.min < 2) return false;
  return absl::c_any_of(job.assign.workers, [&](const Worker& peer) {
    if (peer.role != Role::kTrainer) return false;
    const auto daemon = fleet_.daemons().find(peer.id);
    return peer.leaving || (daemon != fleet_.daemons().end() && daemon->second.draining);
  });
}

DaemonAssignment Controller::AssignmentOf(const Job& job, const Worker& worker) const {
  DaemonAssignment assignment;
  assignment.job = job.record.id;
  const bool trainer = worker.role == Role::kTrainer;
  assignment.incarnation = trainer ? job.assign.trainer_incarnation : worker.incarnation;
  assignment.peers = Callers(job);

  const bool stops =
      job.record.stage >= Stage::kStopAll || (job.record.stage == Stage::kStopTrainers && trainer);
  const bool leaves = worker.leaving || (trainer && TrainerLeaves(job));
  const bool others_go_on = stops ? job.record.target == JobState::kPaused : leaves;
  assignment.phase = others_go_on ? AssignmentPhase::kHold
                     : stops      ? AssignmentPhase::kStop
                                  : AssignmentPhase::kRun;
  assignment.checkpoint = trainer && (stops ? job.record.stop_checkpoint : leaves);

  assignment.queues = {AddressOf(job.assign.queue)};
  std::vector<std::string> trainers, rollouts;
  for (const Worker& peer : job.assign.workers) {
    if (peer.role == Role::kTrainer) {
      if (peer.id == worker.id) assignment.rank = static_cast<uint32_t>(trainers.size());
      trainers.push_back(AddressOf(peer.id));
    } else if (peer.role == Role::kRollout) {
      rollouts.push_back(AddressOf(peer.id));
    } else if (peer.role == Role::kReward && worker.role == Role::kRollout && !peer.leaving) {
      assignment.rewards.push_back(AddressOf(peer.id));
    }
  }

  if (trainer) {
    assignment.world = static_cast<uint32_t>(trainers.size());
    assignment.rendezvous = trainers.front();
  }
  assignment.weights = std::move(trainers);
  assignment.weights.insert(assignment.weights.end(), rollouts.begin(), rollouts.end());
  return assignment;
}

// Recomputes what each daemon is to be told. The generation rises with each change. It also rises
// above the one that the daemon has applied from an earlier controller process.
void Controller::RefreshDesiredStates() {
  std::map<std::string, std::vector<DaemonAssignment>> assignments;
  for (const std::string& id : active_) {
    const Job& job = jobs_.at(id);
    if (!job.assign.opened) continue;  // The queue must know the workers before they call it.
    for (const Worker& worker : job.assign.workers) {
      // A trainer whose trainer group is not complete gets no assignment of a live job yet.
      const bool trainers_missing = worker.role == Role::kTrainer && !job.assign.trainers_complete;
      if (!trainers_missing || !job.live())
        assignments[worker.id].push_back(AssignmentOf(job, worker));
    }
  }

  // This runs for each batch of inputs, and most daemons of a large fleet have no assignment.
  for (const auto& [id, daemon] : fleet_.daemons()) {
    if (!daemon.ever_heard) continue;  // Its first heartbeat says which generation it has applied.
    if (!daemon.record.unknown_jobs.empty()) continue;  // It would leave them.
    DesiredState& desired = desired_[id];
    const bool behind = daemon.generation_applied > desired.generation;
    std::vector<DaemonAssignment> wanted;
    if (const auto found = assignments.find(id); found != assignments.end())
      wanted = std::move(found->second);
    if (wanted == desired.assignments && !behind) continue;
    desired.assignments = std::move(wanted);
    desired.generation = std::max(desired.generation, daemon.generation_applied) + 1;
    out_.daemons.insert(id);
  }
}

DesiredState Controller::DesiredStateOf(const std::string& daemon) const {
  const auto it = desired_.find(daemon);
  DesiredState desired = it == desired_.end() ? DesiredState{} : it->second;
  const auto known = fleet_.daemons().find(daemon);
  if (known != fleet_.daemons().end()) {
    desired.events_stored = known->second.record.events_stored;
    desired.steps_stored = known->second.steps_stored;
  }
  return desired;
}

void Controller::CollectSetJobs(Instant now) {
  for (const std::string& id : active_) {
    Job& job = jobs_.at(id);
    if (job.assign.revision <= job.acked_revision || job.call_in_flight ||
        now.mono < job.call_not_before)
      continue;

    const std::string address = AddressOf(job.assign.queue);
    const auto queue = fleet_.daemons().find(job.assign.queue);
    if (address.empty() || queue == fleet_.daemons().end() || !queue->second.present()) continue;

    job.call_in_flight = true;
    out_.set_jobs.push_back({id, job.assign.queue, address, queue->second.record.incarnation,
                             job.assign.revision, job.assign.phase, Callers(job),
                             job.assign.trainer_incarnation});
  }
}

}  // namespace sluice::controller
