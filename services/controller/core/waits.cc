// What a job waits for, seen from the controller: the ends of `why` that no daemon can tell, as it is missing or silent.

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "services/controller/core/controller.h"

namespace sluice::controller {

std::string Controller::HeldByOthers(const Job& job) const {
  std::map<Role, int> idle;
  for (const auto& [id, daemon] : fleet_.daemons()) idle[daemon.record.role] += daemon.usable() ? 1 : 0;
  std::map<std::string, std::vector<std::string>> held;  // By the holder's name.
  for (const Role role : {Role::kTrainer, Role::kRollout}) {  // Queues and rewards serve any number of jobs.
    std::map<std::string, std::vector<std::string>> of_role;
    for (const std::string& id : active_) {
      const Job& other = jobs_.at(id);
      for (const Worker& worker : other.assign.workers) {
        if (worker.role != role) continue;
        of_role[other.record.name].push_back(worker.id);
        const auto daemon = fleet_.daemons().find(worker.id);
        if (daemon != fleet_.daemons().end() && daemon->second.usable()) --idle[role];
      }
    }
    if (idle[role] >= job.record.needs.of(role).min) continue;
    for (const auto& [name, ids] : of_role) held[name].insert(held[name].end(), ids.begin(), ids.end());
  }
  return absl::StrJoin(held, ", ", [](std::string* out, const auto& entry) {
    absl::StrAppend(out, "job ", entry.first, " has ", absl::StrJoin(entry.second, " and "));
  });
}

std::vector<Edge> Controller::Waits(Instant now, const Job& job) const {
  std::vector<Edge> edges;
  const Node root{"JOB", job.record.id, ""};
  const auto add = [&](const std::string& daemon, std::string cause, std::string next, std::string hint, absl::Duration next_in) {
    edges.push_back({root, {"DAEMON", daemon, daemon}, now.mono - job.state_since, std::move(cause), std::move(next), next_in,
                     std::move(hint)});
  };
  const absl::Duration never = -absl::Seconds(1);
  if (IsFinal(job.record.state)) return edges;
  if (job.record.state == JobState::kWaiting) {
    const std::string held = HeldByOthers(job);
    add("", absl::StrCat(job.record.message, held.empty() ? "" : "; ", held),
        held.empty() ? "it starts when they have registered" : "it starts when they are free, or others have registered",
        "start daemons, or end another job: `sluice job list`", never);
    return edges;
  }
  for (const Worker& worker : job.assign.workers) {
    const auto it = fleet_.daemons().find(worker.id);
    if (it == fleet_.daemons().end()) continue;
    const Daemon& daemon = it->second;
    if (daemon.liveness != Liveness::kLive) {
      const absl::Duration left = std::max(kLostAfter - (now.mono - daemon.heard), absl::ZeroDuration());
      add(worker.id, absl::StrCat(RoleName(worker.role), " is ", LivenessName(daemon.liveness), ", silent for ", Short(now.mono - daemon.heard)),
          "it is given up, and its work goes on elsewhere", "see its log; start it again", left);
    } else if (job.live()) {
      const auto progress = daemon.progress.find(job.record.id);
      if (progress != daemon.progress.end() && progress->second.ready) continue;
      const std::string phase = progress == daemon.progress.end() ? "has not taken up the job" : absl::StrCat("is not ready: ", progress->second.phase);
      add(worker.id, absl::StrCat(RoleName(worker.role), " ", phase), "it says `ready`", "see its log",
          job.record.state == JobState::kStarting ? std::max(job.record.needs.start - (now.mono - job.state_since), absl::ZeroDuration()) : never);
    } else if (job.record.stage <= Stage::kStopAll && !Left(job, worker)) {
      add(worker.id, absl::StrCat(RoleName(worker.role), " has not left the job yet"), "the job goes on without it",
          "see its log", never);
    }
  }
  const auto queue = fleet_.daemons().find(job.assign.queue);
  if (queue == fleet_.daemons().end() || !queue->second.present()) {
    add(job.assign.queue, "the queue is lost", "it is started again, or the job fails after limits.start", "start it again", never);
  }
  if (job.live() && !job.assign.gang_whole) {
    add("", "no idle trainer for the next gang", "it starts when one has registered", "start a trainer", never);
  }
  return edges;
}

}  // namespace sluice::controller
