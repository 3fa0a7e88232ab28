#include "services/controller/core/assign.h"

#include <algorithm>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"

namespace sluice::controller {
namespace {

bool ServesOneJob(Role role) { return role == Role::kRollout || role == Role::kTrainer; }

class Planner {
 public:
  explicit Planner(const std::vector<DaemonView>& daemons) {
    for (const DaemonView& daemon : daemons) daemons_.emplace(daemon.id, daemon);
    for (const auto& [id, daemon] : daemons_) {
      if (daemon.usable && daemon.present) usable_[daemon.role].push_back(id);
    }
  }

  // Puts into `staff` the daemons that the job has and keeps.
  void KeepHeld(const JobView& job, JobStaff* staff) {
    if (!job.queue.empty()) {
      staff->queue = job.queue;
      ++load_[job.queue];
    }
    for (const std::string& id : job.held) {
      const auto it = daemons_.find(id);
      if (it == daemons_.end() || !it->second.present || it->second.role == Role::kQueue) continue;
      if (it->second.drained && !job.ending) continue;
      staff->of(it->second.role).push_back(id);
      ++load_[id];
    }
    for (const std::string& id : job.leaving) ++load_[id];
  }

  // Adds daemons of `role` until the job has `want` of them. With `whole`, all that are missing are
  // added or none.
  void Fill(Role role, int want, bool whole, JobStaff* staff) {
    std::vector<std::string>& have = staff->of(role);
    const int missing = want - static_cast<int>(have.size());
    if (missing <= 0) return;
    const std::vector<std::string> candidates = Candidates(role, have);
    if (whole && static_cast<int>(candidates.size()) < missing) return;
    for (const std::string& id : candidates) {
      if (static_cast<int>(have.size()) >= want) break;
      have.push_back(id);
      ++load_[id];
    }
    std::sort(have.begin(), have.end());
  }

  // Adds the daemons that the minimum lacks, as far as usable ones are left, and sets `lacks`.
  // Trainers are added all or none, because a trainer group needs all its ranks.
  void FillMinimum(const JobView& job, JobStaff* staff) {
    const Needs& needs = job.needs;
    if (staff->queue.empty()) {
      const std::vector<std::string> queues = Candidates(Role::kQueue, {});
      if (!queues.empty()) {
        staff->queue = queues.front();
        ++load_[staff->queue];
      }
    }
    Fill(Role::kTrainer, needs.trainers.min, true, staff);
    Fill(Role::kRollout, needs.rollouts.min, false, staff);
    Fill(Role::kReward, needs.rewards.min, false, staff);
    staff->lacks = Lacks(job, staff);
  }

  // Undoes KeepHeld() and FillMinimum() for a job that cannot start.
  void GiveBack(JobStaff* staff) {
    if (!staff->queue.empty()) --load_[staff->queue];
    for (const Role role : kRoles) {
      if (role == Role::kQueue) continue;
      for (const std::string& id : staff->of(role)) --load_[id];
      staff->of(role).clear();
    }
    staff->queue.clear();
  }

 private:
  // Usable daemons that may take one more job, the least loaded first.
  std::vector<std::string> Candidates(Role role, const std::vector<std::string>& have) {
    // This is asked for each job and role, so loads are looked up once and not while sorting.
    std::vector<std::pair<int, const std::string*>> free;  // With their loads.
    for (const std::string& id : usable_[role]) {
      const auto entry = load_.find(id);
      const int load = entry == load_.end() ? 0 : entry->second;
      if (ServesOneJob(role) && load > 0) continue;
      if (std::find(have.begin(), have.end(), id) == have.end()) free.emplace_back(load, &id);
    }
    std::stable_sort(free.begin(), free.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    std::vector<std::string> ids;
    for (const auto& [load, id] : free) ids.push_back(*id);
    return ids;
  }

  std::string Lacks(const JobView& job, JobStaff* staff) const {
    const Needs& needs = job.needs;
    std::vector<std::string> lacks;
    const auto queue = daemons_.find(staff->queue);
    if (staff->queue.empty()) lacks.push_back("a queue");
    // A job that was paused has its data there.
    else if (!job.started && (queue == daemons_.end() || !queue->second.usable))
      lacks.push_back(absl::StrCat("its queue ", staff->queue));
    for (const Role role : {Role::kTrainer, Role::kRollout, Role::kReward}) {
      const int have = static_cast<int>(staff->of(role).size());
      if (const int min = needs.of(role).min; have < min) {
        lacks.push_back(
            absl::StrCat(min - have, " of ", min, " ", RoleName(role), min == 1 ? "" : "s"));
      }
    }
    return absl::StrJoin(lacks, ", ");
  }

  std::map<std::string, DaemonView> daemons_;  // By id.
  // Ids of the daemons that are usable and present, in their order.
  std::map<Role, std::vector<std::string>> usable_;
  std::map<std::string, int> load_;  // Number of jobs that a daemon has, by its id.
};

}  // namespace

std::vector<std::string>& JobStaff::of(Role role) {
  SLUICE_CHECK(role != Role::kQueue);
  return role == Role::kTrainer ? trainers : role == Role::kRollout ? rollouts : rewards;
}

const std::vector<std::string>& JobStaff::of(Role role) const {
  SLUICE_CHECK(role != Role::kQueue);
  return role == Role::kTrainer ? trainers : role == Role::kRollout ? rollouts : rewards;
}

std::map<std::string, JobStaff> Assign(std::vector<JobView> jobs,
                                       const std::vector<DaemonView>& daemons) {
  std::sort(jobs.begin(), jobs.end(), [](const JobView& a, const JobView& b) {
    return std::make_tuple(!a.started, -a.needs.priority, a.order, a.id) <
           std::make_tuple(!b.started, -b.needs.priority, b.order, b.id);
  });
  Planner planner(daemons);

  std::map<std::string, JobStaff> plan;

  // Three rounds over the jobs: what each keeps, its minimum, the surplus.
  for (const JobView& job : jobs) planner.KeepHeld(job, &plan[job.id]);
  for (const JobView& job : jobs) {
    if (job.ending) continue;
    JobStaff& staff = plan[job.id];
    planner.FillMinimum(job, &staff);
    if (!job.started && !staff.lacks.empty()) planner.GiveBack(&staff);
  }
  for (const JobView& job : jobs) {
    JobStaff& staff = plan[job.id];
    if (job.ending || (!job.started && !staff.lacks.empty())) continue;
    planner.Fill(Role::kRollout, job.needs.rollouts.max, false, &staff);
    planner.Fill(Role::kReward, job.needs.rewards.max, false, &staff);
  }
  for (auto& [id, staff] : plan) {
    for (const Role role : {Role::kTrainer, Role::kRollout, Role::kReward}) {
      std::sort(staff.of(role).begin(), staff.of(role).end());
    }
  }
  return plan;
}

}  // namespace sluice::controller
