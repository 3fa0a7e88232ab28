// What a job waits for, as the controller sees it. It adds the reasons that no daemon can report,
// because that daemon is missing or silent.

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "services/controller/core/controller.h"

namespace sluice::controller {
namespace {

// How many jobs, and daemons of each, a waiting job's text names. It is part of the job's status,
// so it must stay short, and must not change with each daemon of a large fleet.
constexpr size_t kNamed = 3;

// "trainer-0 and rollout-0".
std::string NameSome(const std::vector<absl::string_view>& ids) {
  const auto end = ids.begin() + static_cast<long>(std::min(ids.size(), kNamed));
  return absl::StrCat(absl::StrJoin(ids.begin(), end, " and "),
                      ids.size() > kNamed ? " and others" : "");
}

}  // namespace

Controller::Supplies Controller::CountSupplies() const {
  Supplies supplies;
  for (const auto& [id, daemon] : fleet_.daemons())
    supplies[{daemon.record.pool(), daemon.record.role}].obtainable += daemon.usable() ? 1 : 0;

  // Only trainers and rollouts are held; queues and rewards serve any number of jobs.
  for (const std::string& id : active_) {
    const Job& job = jobs_.at(id);
    for (const Role role : {Role::kTrainer, Role::kRollout}) {
      Supply& supply = supplies[{job.record.needs.pool, role}];
      std::vector<absl::string_view> held;
      for (const Worker& worker : job.assign.workers) {
        if (worker.role != role) continue;
        held.push_back(worker.id);
        const auto daemon = fleet_.daemons().find(worker.id);
        if (daemon != fleet_.daemons().end() && daemon->second.usable()) --supply.obtainable;
      }
      if (held.empty()) continue;
      // The job gives its surplus back when a waiting one can start with it.
      supply.obtainable +=
          std::max(0, static_cast<int>(held.size()) - job.record.needs.of(role).min);
      supply.held.emplace_back(&job, std::move(held));
    }
  }
  return supplies;
}

std::string Controller::DescribeOtherHolders(const Job& job, const Supplies& supplies) const {
  // Daemon ids by the name of the job that has them. A submitter learns nothing of the jobs of
  // others, which are all under the empty name.
  std::vector<std::pair<absl::string_view, std::vector<absl::string_view>>> holders;
  bool more = false;
  for (const Role role : {Role::kTrainer, Role::kRollout}) {
    const auto supply = supplies.find({job.record.needs.pool, role});
    // If enough daemons of this role can be had, those of other jobs are not the reason.
    if (supply == supplies.end() || supply->second.obtainable >= job.record.needs.of(role).min)
      continue;
    for (const auto& [other, ids] : supply->second.held) {
      absl::string_view name;
      if (other->record.owner == job.record.owner) name = other->record.name;
      auto holder = std::find_if(holders.begin(), holders.end(),
                                 [&](const auto& known) { return known.first == name; });
      if (holder == holders.end() && holders.size() == kNamed) {
        more = true;
        continue;
      }
      if (holder == holders.end()) holder = holders.insert(holder, {name, {}});
      holder->second.insert(holder->second.end(), ids.begin(), ids.end());
    }
  }
  const std::string text = absl::StrJoin(holders, ", ", [](std::string* out, const auto& holder) {
    absl::StrAppend(out, holder.first.empty() ? "another submitter" : "job ", holder.first, " has ",
                    NameSome(holder.second));
  });
  return absl::StrCat(text, more ? ", and other jobs have others" : "");
}

std::string Controller::DescribeStart(const Job& job, const JobStaff& staff,
                                      const Supplies& supplies) const {
  switch (staff.waits_for) {
    case WaitsFor::kQuota: return "it starts when other jobs of this submitter have ended";
    case WaitsFor::kLargerQuota:
      return "it needs more than the quota allows; it starts when the operator has raised the "
             "quota, or when it needs less (`sluice job set`)";
    case WaitsFor::kGivenBack: return "it starts when they have left those jobs";
    case WaitsFor::kEarlierJob:
      return "it starts after a job that comes before it, for which free daemons are kept, or when "
             "others have registered";
    case WaitsFor::kDaemons: break;
  }
  const std::string held = DescribeOtherHolders(job, supplies);
  if (held.empty()) return "it starts when they have registered";
  return absl::StrCat("it starts when they are free, or others have registered; ", held);
}

bool Controller::StepsAdvance(Instant now, const Job& job) const {
  if (job.record.state != JobState::kRunning) return false;
  std::vector<double> seconds = job.step_seconds;
  if (seconds.empty()) return false;
  std::nth_element(seconds.begin(), seconds.begin() + seconds.size() / 2, seconds.end());
  return now.mono - job.last_advance <
         std::max(absl::Seconds(2), 3 * absl::Seconds(seconds[seconds.size() / 2]));
}

// Says why a daemon does nothing, as an edge from the daemon to itself, at which chains end.
// Nullopt if the daemon is live.
std::optional<Edge> Controller::FaultOf(Instant now, const std::string& id, Role role) const {
  const Node node{"DAEMON", id, id};
  const auto it = fleet_.daemons().find(id);
  if (it == fleet_.daemons().end())
    return Edge{node,
                node,
                absl::ZeroDuration(),
                absl::StrCat(id, " is not registered"),
                "",
                -absl::Seconds(1),
                "start it"};

  const Daemon& daemon = it->second;
  if (daemon.liveness == Liveness::kLive) return std::nullopt;
  const absl::Duration silent = now.mono - daemon.last_heard;
  Edge edge{
      node, node, silent,
      absl::StrCat(id, " has been silent for ", DurationText(silent), " (", StateText(daemon), ")"),
      ""};
  edge.hint = absl::StrCat("see the log of ", id, ", and start it again");

  if (daemon.liveness == Liveness::kLost) {
    if (role == Role::kQueue) edge.next = "the job goes on when the queue is back";
    return edge;
  }

  // A daemon that is not lost yet may come back and keep its work.
  const absl::Duration left =
      daemon.stream == 0 ? kLostAfterBreak - (now.mono - daemon.broken_at) : kLostAfter - silent;
  edge.next_in = std::max(left, absl::ZeroDuration());
  edge.next = absl::StrCat(
      id, " is given up",
      role == Role::kTrainer ? ", and the next trainer goes on from the last checkpoint" : "");
  return edge;
}

Waits Controller::WaitsOf(Instant now, const Job& job) const {
  const Node root{"JOB", job.record.id, ""};
  Waits waits{root, {}, {}, {}};
  const absl::Duration no_time = -absl::Seconds(1);
  const auto add = [&](const std::string& daemon, absl::Duration since, std::string cause,
                       std::string next, std::string hint, absl::Duration next_in) {
    waits.edges.push_back({root,
                           {"DAEMON", daemon, daemon},
                           now.mono - since,
                           std::move(cause),
                           std::move(next),
                           next_in,
                           std::move(hint)});
  };

  if (IsFinal(job.record.state)) return waits;
  if (job.record.state == JobState::kWaiting) {
    add("", job.state_since, job.record.message, job.starts_when,
        job.record.code.empty()
            ? "start daemons, or end another job: `sluice job list`"
            : "end another job of this submitter, or ask the operator for a larger quota",
        no_time);
    AddSilentDaemons(now, job, waits);
    return waits;
  }

  if (job.record.state == JobState::kPaused) {
    add("", job.state_since, "the job is paused", "",
        absl::StrCat("`sluice job resume ", job.record.name, "`"), no_time);
    return waits;
  }

  std::map<Role, int> working;
  const auto works = [&](const std::string& id, Role role) {
    waits.roles[id] = std::string(RoleName(role));
    std::optional<Edge> fault = FaultOf(now, id, role);
    if (fault) waits.edges.push_back(*std::move(fault));
  };
  works(job.assign.queue, Role::kQueue);
  for (const Worker& worker : job.assign.workers) {
    works(worker.id, worker.role);
    ++working[worker.role];
  }

  for (const Role role : {Role::kTrainer, Role::kRollout, Role::kReward}) {
    if (!job.live() || working[role] > 0 || job.record.needs.of(role).min == 0) continue;
    const std::string name(RoleName(role));
    const Node node{"DAEMON", name, name};
    waits.edges.push_back(
        {node, node, absl::ZeroDuration(), absl::StrCat("no ", name, " works for the job"),
         "it goes on when one has registered", no_time, absl::StrCat("start a ", name)});
    // Without a trainer, no other edge leads from the job to the one above. Missing rollouts and
    // rewards are reached through the waits of the trainer and the queue.
    if (role == Role::kTrainer) add(name, job.state_since, "", "", "", no_time);
  }

  if (!job.live()) {
    AddLeaving(now, job, waits);
  } else if (job.record.state == JobState::kRunning) {
    // A running job waits for its trainers, which report themselves what they wait for. So these
    // edges need no cause.
    for (const Worker& worker : job.assign.workers) {
      if (worker.role == Role::kTrainer) add(worker.id, job.last_advance, "", "", "", no_time);
    }
  } else {
    const absl::Duration left =
        job.record.state == JobState::kStarting
            ? std::max(job.record.needs.start - (now.mono - job.state_since), absl::ZeroDuration())
            : no_time;
    const std::string late =
        job.record.state == JobState::kStarting ? "the job fails (limits.start)" : "";
    if (const std::string queue = WhyQueueDoesNotServe(job); !queue.empty())
      add(job.assign.queue, job.state_since, queue, late, "", left);
    for (const Worker& worker : job.assign.workers) {
      const auto daemon = fleet_.daemons().find(worker.id);
      if (daemon == fleet_.daemons().end()) continue;
      const auto progress = daemon->second.progress.find(job.record.id);
      if (progress != daemon->second.progress.end() && progress->second.ready) continue;
      const std::string phase = progress == daemon->second.progress.end()
                                    ? " has not taken up the job"
                                    : absl::StrCat(" is not ready: ", progress->second.phase);
      add(worker.id, job.state_since, absl::StrCat(worker.id, phase), late,
          absl::StrCat("see the log of ", worker.id), left);
    }
  }
  return waits;
}

// It may be that a waiting job lacks nothing but daemons that are registered and silent now.
void Controller::AddSilentDaemons(Instant now, const Job& job, Waits& waits) const {
  const auto in_pool = [&](const Daemon& daemon) {
    return daemon.record.pool() == job.record.needs.pool;
  };
  std::map<Role, int> usable;
  for (const auto& [id, daemon] : fleet_.daemons())
    usable[daemon.record.role] += daemon.usable() && in_pool(daemon) ? 1 : 0;
  for (const auto& [id, daemon] : fleet_.daemons()) {
    if (!in_pool(daemon)) continue;
    const Role role = daemon.record.role;
    const int wanted = role == Role::kQueue ? 1 : job.record.needs.of(role).min;
    if (usable[role] >= wanted || daemon.liveness != Liveness::kSuspect) continue;
    Edge fault = *FaultOf(now, id, role);
    fault.next = absl::StrCat(id, " is given up");
    waits.edges.push_back(
        {waits.root, fault.waiter, now.mono - job.state_since, job.record.message,
         absl::StrCat("it starts when ", id, " is heard again, or others have registered")});
    waits.edges.push_back(std::move(fault));
  }
}

// An ending or pausing job waits for the workers that have not left yet, then for the queue to
// complete the ledger.
void Controller::AddLeaving(Instant now, const Job& job, Waits& waits) const {
  const auto add = [&](const std::string& daemon, std::string cause, std::string next) {
    waits.edges.push_back({waits.root,
                           {"DAEMON", daemon, daemon},
                           now.mono - job.stage_since,
                           std::move(cause),
                           std::move(next),
                           -absl::Seconds(1),
                           absl::StrCat("see the log of ", daemon)});
  };
  if (job.record.stage > Stage::kStopAll)
    return add(job.assign.queue, absl::StrCat(job.assign.queue, " completes the ledger"),
               "the job ends without a complete ledger");
  for (const Worker& worker : job.assign.workers) {
    if (HasLeft(job, worker) ||
        (job.record.stage == Stage::kStopTrainers && worker.role != Role::kTrainer))
      continue;
    add(worker.id,
        absl::StrCat(worker.id, worker.role == Role::kTrainer && job.record.stop_checkpoint
                                    ? " writes the last checkpoint"
                                    : " has not left the job yet"),
        job.record.target == JobState::kPaused ? "the job is paused without it"
                                               : "the job goes on to its end without it");
  }
}

}  // namespace sluice::controller
