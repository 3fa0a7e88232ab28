#include "services/controller/core/assign.h"

#include <algorithm>
#include <limits>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"

namespace sluice::controller {
namespace {

bool ServesOneJob(Role role) { return role == Role::kRollout || role == Role::kTrainer; }

int SizeOf(const std::vector<std::string>& list) { return static_cast<int>(list.size()); }

// How many daemons of this role the owner may have.
int QuotaOf(const JobView& job, Role role) {
  const std::optional<int>& most = role == Role::kTrainer ? job.quota.trainers : job.quota.rollouts;
  return job.owner.empty() || !most ? std::numeric_limits<int>::max() : *most;
}

// "rollouts" after this number of them.
std::string RoleNoun(int count, Role role) {
  return absl::StrCat(RoleName(role), count == 1 ? "" : "s");
}

// "1 of 2 rollouts".
std::string MissingText(int missing, int of, Role role) {
  return absl::StrCat(missing, " of ", of, " ", RoleNoun(of, role));
}

// This runs on the one thread that answers all calls, and a fleet may have thousands of daemons and
// of waiting jobs. So what all jobs ask for is counted once, and a job that waits, or that has what
// it wants, looks at no daemon.
class Planner {
 public:
  explicit Planner(const std::vector<DaemonView>& daemons) {
    for (const DaemonView& daemon : daemons) daemons_[daemon.id].view = daemon;
    for (auto& [id, daemon] : daemons_) {
      if (daemon.view.usable && daemon.view.present)
        pools_[daemon.view.pool].usable[daemon.view.role].push_back(&daemon);
    }
  }

  // Plans for all jobs, which are in order.
  std::map<std::string, JobStaff> Plan(const std::vector<JobView>& jobs, WantedDaemons* wanted) {
    for (const JobView& job : jobs) KeepHeld(job);
    for (auto& [name, pool] : pools_) InitFree(&pool);
    for (const JobView& job : jobs) {
      if (job.ending || !job.started) continue;
      FillMinimum(job);
      AddRunning(job);
    }
    for (const JobView& job : jobs) {
      if (!job.ending && !job.started && Start(job)) AddRunning(job);
    }
    if (wanted != nullptr) *wanted = CountWanted(jobs);
    // The order in which equal shares are given must be the same once these jobs have started.
    std::sort(running_.begin(), running_.end(), [](const Running& a, const Running& b) {
      return std::make_tuple(-a.job->needs.priority, a.job->order, a.job->id) <
             std::make_tuple(-b.job->needs.priority, b.job->order, b.job->id);
    });
    ShareRollouts();
    for (const Running& running : running_) {
      const int most = running.job->needs.rewards.max;
      Fill(*running.job, Role::kReward, most);
      // There may be more since the maximum was lowered.
      std::vector<std::string>& rewards = running.staff->rewards;
      rewards.resize(static_cast<size_t>(std::min(SizeOf(rewards), most)));
    }
    return std::move(plan_);
  }

 private:
  struct Daemon {
    DaemonView view;
    int load = 0;  // Number of its jobs.
  };
  struct Pool {
    // The daemons that are usable and present, in the order of their ids.
    std::map<Role, std::vector<Daemon*>> usable;
    std::map<Role, int> free;  // How many of these may take one more job.
    int soon = 0;              // Rollouts that are leaving jobs and will be free.
    int claimed = 0;           // Rollouts for waiting jobs that start once enough are free.
    // What is kept for waiting jobs that cannot start, from the minimum of later ones.
    int kept_trainers = 0, kept_rollouts = 0;
    // Rollouts that running jobs have above their minimum, less those that others lack.
    int spare = 0;
    int left = 0;  // Rollouts that ShareRollouts() has not shared yet.

    int CountUsable(Role role) const {
      const auto found = usable.find(role);
      return found == usable.end() ? 0 : static_cast<int>(found->second.size());
    }
    int CountFree(Role role) const {
      const auto found = free.find(role);
      return found == free.end() ? 0 : found->second;
    }
    // Free rollouts that no waiting job claims.
    int CountUnclaimed() const { return std::max(0, CountFree(Role::kRollout) - claimed); }
  };
  // A job that runs, or starts now.
  struct Running {
    const JobView* job;
    JobStaff* staff;
    Pool* pool;
    int* used;      // Rollouts of the owner's jobs.
    int share = 0;  // Rollouts that the job should have.
  };

  // Puts into the plan the daemons that the job has and keeps.
  void KeepHeld(const JobView& job) {
    JobStaff& staff = plan_[job.id];
    if (!job.queue.empty()) {
      staff.queue = job.queue;
      if (Daemon* const queue = Find(job.queue)) ++queue->load;
    }
    for (const std::string& id : job.held) {
      Daemon* const daemon = Find(id);
      if (daemon == nullptr || !daemon->view.present || daemon->view.role == Role::kQueue) continue;
      if (daemon->view.drained && !job.ending) continue;
      staff.of(daemon->view.role).push_back(id);
      ++daemon->load;
    }
    for (const std::string& id : job.leaving) {
      Daemon* const daemon = Find(id);
      if (daemon == nullptr) continue;
      ++daemon->load;
      if (!job.ending && daemon->view.role == Role::kRollout)
        pools_[daemon->view.pool].soon += daemon->view.present && !daemon->view.drained;
    }

    for (const Role role : {Role::kTrainer, Role::kRollout, Role::kReward}) {
      std::sort(staff.of(role).begin(), staff.of(role).end());
      used_[{job.owner, role}] += job.ending    ? SizeOf(staff.of(role))
                                  : job.started ? job.needs.of(role).min
                                                : 0;
    }
  }

  Daemon* Find(const std::string& id) {
    const auto found = daemons_.find(id);
    return found == daemons_.end() ? nullptr : &found->second;
  }

  // Call it once what the jobs hold is known.
  static void InitFree(Pool* pool) {
    for (const auto& [role, daemons] : pool->usable) {
      pool->free[role] =
          static_cast<int>(std::count_if(daemons.begin(), daemons.end(), [](const Daemon* daemon) {
            return !ServesOneJob(daemon->view.role) || daemon->load == 0;
          }));
    }
  }

  // Usable daemons that may take one more job, the least loaded first.
  static std::vector<Daemon*> Candidates(Pool* pool, Role role,
                                         const std::vector<std::string>& have) {
    const std::set<absl::string_view> had(have.begin(), have.end());
    std::vector<Daemon*> daemons;
    for (Daemon* const daemon : pool->usable[role]) {
      if (ServesOneJob(role) && daemon->load > 0) continue;
      if (!had.contains(daemon->view.id)) daemons.push_back(daemon);
    }
    std::stable_sort(daemons.begin(), daemons.end(),
                     [](const Daemon* a, const Daemon* b) { return a->load < b->load; });
    return daemons;
  }

  // Adds daemons of `role` until the job has `want` of them.
  void Fill(const JobView& job, Role role, int want) {
    std::vector<std::string>& have = plan_[job.id].of(role);
    if (SizeOf(have) >= want) return;
    Pool& pool = pools_[job.needs.pool];
    for (Daemon* const daemon : Candidates(&pool, role, have)) {
      if (SizeOf(have) >= want) break;
      have.push_back(daemon->view.id);
      ++daemon->load;
      if (ServesOneJob(role)) --pool.free[role];
    }
    std::sort(have.begin(), have.end());
  }

  // Adds the daemons that the minimum lacks, as far as usable ones are left, and sets `lacks`.
  // Trainers are added all or none, because a trainer group needs all its ranks.
  void FillMinimum(const JobView& job) {
    JobStaff& staff = plan_[job.id];
    Pool& pool = pools_[job.needs.pool];
    if (staff.queue.empty()) {
      const std::vector<Daemon*> queues = Candidates(&pool, Role::kQueue, {});
      if (!queues.empty()) {
        staff.queue = queues.front()->view.id;
        ++queues.front()->load;
      }
    }
    const int trainers = job.needs.trainers.min;
    if (pool.CountFree(Role::kTrainer) >= trainers - SizeOf(staff.trainers))
      Fill(job, Role::kTrainer, trainers);
    Fill(job, Role::kRollout, job.needs.rollouts.min);
    Fill(job, Role::kReward, job.needs.rewards.min);

    std::vector<std::string> lacks;
    if (staff.queue.empty()) lacks.push_back("a queue");
    for (const Role role : {Role::kTrainer, Role::kRollout, Role::kReward}) {
      const int have = SizeOf(staff.of(role)), min = job.needs.of(role).min;
      if (have < min) lacks.push_back(MissingText(min - have, min, role));
    }
    SetLacks(job, lacks, &staff);
  }

  static void SetLacks(const JobView& job, const std::vector<std::string>& lacks, JobStaff* staff) {
    staff->lacks = absl::StrJoin(lacks, ", ");
    if (!lacks.empty() && job.needs.pool != kDefaultPool)
      absl::StrAppend(&staff->lacks, " of pool ", job.needs.pool);
  }

  // Call it once it is known which jobs start, and before the rollouts are shared.
  WantedDaemons CountWanted(const std::vector<JobView>& jobs) {
    constexpr Role kCounted[] = {Role::kTrainer, Role::kRollout, Role::kReward};
    std::map<std::string, int> trainers;  // By pool: free ones that no earlier job takes.
    WantedDaemons wanted;
    for (const Role role : kCounted) wanted[{kDefaultPool, role}] = {0, 0};
    for (const auto& [name, pool] : pools_) {
      trainers[name] = pool.CountFree(Role::kTrainer);
      for (const Role role : kCounted) wanted[{name, role}] = {0, 0};
    }
    const auto add = [&](const JobView& job, Role role, int min, int max) {
      Count& count = wanted.try_emplace({job.needs.pool, role}, Count{0, 0}).first->second;
      count.min = role == Role::kReward ? std::max(count.min, min) : count.min + min;
      count.max += max;
    };

    for (const Running& running : running_) {
      const Needs& needs = running.job->needs;
      add(*running.job, Role::kTrainer, needs.trainers.min, needs.trainers.min);
      add(*running.job, Role::kReward, needs.rewards.min, needs.rewards.max);
    }
    std::map<const int*, int> used;  // Rollouts by owner, as Running::used has them.
    for (const Running& running : running_) {
      const Count& rollouts = running.job->needs.rollouts;
      int& of_owner = used.try_emplace(running.used, *running.used).first->second;
      const int left = std::max(0, QuotaOf(*running.job, Role::kRollout) - of_owner);
      const int more = std::clamp(rollouts.max - rollouts.min, 0, left);
      of_owner += more;
      add(*running.job, Role::kRollout, rollouts.min, rollouts.min + more);
    }
    for (const JobView& job : jobs) {
      const JobStaff& staff = plan_[job.id];
      if (job.ending) {
        for (const Role role : kCounted)
          add(job, role, SizeOf(staff.of(role)), SizeOf(staff.of(role)));
        continue;
      }
      if (job.started || staff.lacks.empty() || staff.waits_for == WaitsFor::kQuota ||
          LacksQueue(job, staff))
        continue;
      const Needs& needs = job.needs;
      add(job, Role::kTrainer, needs.trainers.min, needs.trainers.min);
      int& left = trainers[needs.pool];
      if (left < needs.trainers.min) continue;
      left -= needs.trainers.min;
      for (const Role role : {Role::kRollout, Role::kReward})
        add(job, role, needs.of(role).min, needs.of(role).min);
    }
    return wanted;
  }

  // The job has its minimum, as far as there are daemons for it.
  void AddRunning(const JobView& job) {
    Pool& pool = pools_[job.needs.pool];
    JobStaff& staff = plan_[job.id];
    pool.spare += SizeOf(staff.rollouts) - job.needs.rollouts.min;
    running_.push_back({&job, &staff, &pool, &used_[{job.owner, Role::kRollout}]});
  }

  // Starts a waiting job if it can be; else says in `lacks` why not, and keeps for it what it
  // waits for.
  bool Start(const JobView& job) {
    JobStaff& staff = plan_[job.id];
    const Needs& needs = job.needs;
    Pool& pool = pools_[needs.pool];
    // Whether the pool has enough trainers and rollouts, busy ones included.
    const bool has_enough = pool.CountUsable(Role::kTrainer) >= needs.trainers.min &&
                            pool.CountUsable(Role::kRollout) >= needs.rollouts.min;
    if (std::string text = OverQuota(job); !text.empty()) {
      staff.lacks = std::move(text);
      const bool fits = FitsQuota(job);
      staff.waits_for = fits ? WaitsFor::kQuota : WaitsFor::kLargerQuota;
      if (has_enough && fits) KeepQuota(job);
      return false;
    }

    const int free_trainers = pool.CountFree(Role::kTrainer),
              all_rollouts = pool.CountFree(Role::kRollout) + pool.soon + pool.spare;
    const int trainers = std::max(0, free_trainers - pool.kept_trainers);
    const int obtainable = std::max(0, all_rollouts - pool.claimed - pool.kept_rollouts);

    std::vector<std::string> lacks = ListMissingShared(job, staff);
    const bool can_be_served = lacks.empty() && has_enough;
    if (lacks.empty() && free_trainers >= needs.trainers.min && all_rollouts >= needs.rollouts.min)
      staff.waits_for = WaitsFor::kEarlierJob;
    if (trainers < needs.trainers.min)
      lacks.push_back(
          MissingText(needs.trainers.min - trainers, needs.trainers.min, Role::kTrainer));
    const bool all_but_rollouts = lacks.empty();
    // While something else is missing, what other jobs would give back is not.
    const int rollouts =
        all_but_rollouts ? std::min(pool.CountUnclaimed(), obtainable) : obtainable;
    if (rollouts < needs.rollouts.min)
      lacks.push_back(
          MissingText(needs.rollouts.min - rollouts, needs.rollouts.min, Role::kRollout));

    const bool claims = all_but_rollouts && obtainable >= needs.rollouts.min;
    if (claims) {
      for (const Role role : {Role::kTrainer, Role::kRollout})
        used_[{job.owner, role}] += needs.of(role).min;
    }
    if (lacks.empty()) {
      FillMinimum(job);
      return true;
    }

    SetLacks(job, lacks, &staff);
    if (claims) {
      absl::StrAppend(&staff.lacks, ", which other jobs are giving back");
      staff.waits_for = WaitsFor::kGivenBack;
      pool.claimed += needs.rollouts.min;
      pool.kept_trainers += needs.trainers.min;
    } else if (can_be_served) {
      pool.kept_trainers += std::min(needs.trainers.min, trainers);
      pool.kept_rollouts += std::min(needs.rollouts.min, obtainable);
      KeepQuota(job);
    }
    return false;
  }

  // Keeps the owner's quota for a waiting job from the owner's later ones.
  void KeepQuota(const JobView& job) {
    for (const Role role : {Role::kTrainer, Role::kRollout})
      kept_quota_[{job.owner, role}] += job.needs.of(role).min;
  }

  // Whether the quota lets the job start when the owner has no other job. It may have been lowered
  // since Submit.
  static bool FitsQuota(const JobView& job) {
    return job.needs.trainers.min <= QuotaOf(job, Role::kTrainer) &&
           job.needs.rollouts.min <= QuotaOf(job, Role::kRollout);
  }

  // Why the owner's quota does not let the job start. Empty if it does. What the owner's other jobs
  // have above their minimum does not count, because they give it back.
  std::string OverQuota(const JobView& job) {
    for (const Role role : {Role::kTrainer, Role::kRollout}) {
      const int used = used_[{job.owner, role}], kept = kept_quota_[{job.owner, role}];
      const int most = QuotaOf(job, role), min = job.needs.of(role).min;
      if (used + kept <= most - min) continue;
      return absl::StrCat(min, " more ", RoleNoun(min, role), " for submitter ", job.owner,
                          ", whose jobs need ", used, " of ", most, " (the operator's quota)",
                          kept > 0 ? absl::StrCat(", and earlier ones wait for ", kept) : "");
    }
    return "";
  }

  // Whether there is no queue for a waiting job. One that was paused has its data in its queue.
  bool LacksQueue(const JobView& job, const JobStaff& staff) {
    if (staff.queue.empty()) return pools_[job.needs.pool].CountFree(Role::kQueue) == 0;
    const Daemon* const queue = Find(staff.queue);
    return queue == nullptr || !queue->view.usable;
  }

  // What is missing of a queue and rewards, which serve any number of jobs.
  std::vector<std::string> ListMissingShared(const JobView& job, const JobStaff& staff) {
    const Pool& pool = pools_[job.needs.pool];
    std::vector<std::string> lacks;
    if (LacksQueue(job, staff))
      lacks.push_back(staff.queue.empty() ? "a queue" : absl::StrCat("its queue ", staff.queue));
    const int rewards = pool.CountFree(Role::kReward), min = job.needs.rewards.min;
    if (rewards < min) lacks.push_back(MissingText(min - rewards, min, Role::kReward));
    return lacks;
  }

  // Step 4 of Assign(). Each job's share is computed from all rollouts that the jobs have or can
  // have. A job above its share gives some back; they are free once they have left.
  void ShareRollouts() {
    for (auto& [name, pool] : pools_)
      pool.left = pool.CountFree(Role::kRollout) + pool.soon - pool.claimed;
    for (Running& running : running_) {
      const int have = SizeOf(running.staff->rollouts);
      running.share = std::min(have, running.job->needs.rollouts.min);
      running.pool->left += have - running.share;
    }

    for (Running& running : running_) {
      for (int& left = running.pool->left;
           left > 0 && running.share < running.job->needs.rollouts.min; --left)
        ++running.share;
    }
    while (Running* const next = NextToShare()) {
      ++next->share;
      ++*next->used;
      --next->pool->left;
    }

    for (const Running& running : running_) {
      std::vector<std::string>& rollouts = running.staff->rollouts;
      const int most = SizeOf(rollouts) + running.pool->CountUnclaimed();
      if (running.share < SizeOf(rollouts)) rollouts.resize(static_cast<size_t>(running.share));
      else Fill(*running.job, Role::kRollout, std::min(running.share, most));
    }
  }

  // The running job whose share is the smallest, and which may have one more. Of jobs with equal
  // shares, one that has the rollout already goes first, because then none moves.
  Running* NextToShare() {
    Running* next = nullptr;
    std::pair<int, bool> best;
    for (Running& running : running_) {
      if (running.pool->left <= 0 || running.share >= running.job->needs.rollouts.max ||
          *running.used >= QuotaOf(*running.job, Role::kRollout))
        continue;
      const std::pair<int, bool> rank(running.share,
                                      SizeOf(running.staff->rollouts) <= running.share);
      if (next != nullptr && rank >= best) continue;
      next = &running;
      best = rank;
    }
    return next;
  }

  std::map<std::string, Daemon> daemons_;  // By id.
  std::map<std::string, Pool> pools_;      // By name.
  // By owner and role: the daemons that its jobs have, or need as their minimum.
  std::map<std::pair<std::string, Role>, int> used_;
  // By owner and role: what is kept of the quota for waiting jobs.
  std::map<std::pair<std::string, Role>, int> kept_quota_;
  std::vector<Running> running_;
  std::map<std::string, JobStaff> plan_;
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
                                       const std::vector<DaemonView>& daemons,
                                       WantedDaemons* wanted) {
  const auto key = [](const JobView& job) {
    const int64_t age = job.started ? 0 : job.waited / kAgingStep;
    return std::make_tuple(-(job.needs.priority + age), job.order, job.id);
  };
  std::sort(jobs.begin(), jobs.end(),
            [&](const JobView& a, const JobView& b) { return key(a) < key(b); });

  return Planner(daemons).Plan(jobs, wanted);
}

}  // namespace sluice::controller
