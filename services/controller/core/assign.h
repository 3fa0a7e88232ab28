#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "services/controller/core/types.h"

namespace sluice::controller {

// What Assign() knows of a daemon.
struct DaemonView {
  std::string id;
  Role role = Role::kRollout;
  bool present = false;  // It is not lost, so it keeps the work that it has.
  bool usable = false;   // It sends heartbeats and does not drain, so it may get work.
  bool drained = false;  // It gives back the work that it has, but a queue keeps its jobs.
  std::string pool{kDefaultPool};
};

// What Assign() knows of a job.
struct JobView {
  std::string id;
  int64_t order = 0;  // Position of its Submit among all jobs.
  Needs needs;
  // A started job keeps what it has and takes what it can get. A waiting job gets its whole minimum
  // or nothing.
  bool started = false;
  bool ending = false;  // It keeps what it has and gets nothing more.
  // Empty if it has none yet. A job never changes its queue, also while it is paused.
  std::string queue;
  std::vector<std::string> held;  // Daemons that work for the job now, without the queue.
  // Daemons that are leaving the job. They are not its any more, and not free yet.
  std::vector<std::string> leaving = {};
  absl::Duration waited = absl::ZeroDuration();  // How long a waiting job has waited.
  // The submitter, and the most daemons that all its jobs together may have. Empty: no quota.
  std::string owner = {};
  DaemonQuota quota = {};
};

// What would let a waiting job start.
enum class WaitsFor {
  kDaemons,      // More of the daemons that it lacks.
  kGivenBack,    // Other jobs are giving back all that it lacks.
  kEarlierJob,   // It could have what it lacks, but this is kept for a job that comes before it.
  kQuota,        // Its owner's quota lets it start when the owner's other jobs need less.
  kLargerQuota,  // Its minimum alone is above its owner's quota.
};

// The daemons that work for a job; each list is sorted by id.
struct JobStaff {
  std::string queue;
  std::vector<std::string> trainers, rollouts, rewards;
  std::string lacks;  // What is missing from the minimum, for people; empty if nothing is.
  WaitsFor waits_for = WaitsFor::kDaemons;  // Meaningful for a waiting job that lacks something.

  std::vector<std::string>& of(Role role);
  const std::vector<std::string>& of(Role role) const;
};

// How many daemons of a role the jobs of a pool can use now, by the pool's name. `min`: with so
// many all jobs go on, and those start that lack nothing else. `max`: more would have no work.
//
// - A started job counts with its minimum and maximum, as far as its owner's quota goes, and an
//   ending one with what it has.
// - A waiting job counts with its minimum alone, as it can use no more before it starts. It does
//   not count while its owner's quota or its queue keeps it from starting, and only with its
//   trainers while these are missing: jobs that wait for a trainer add no rollouts.
// - Rewards serve any number of jobs, so the minimum is the largest of the jobs, not their sum.
//
// Each pool that a usable daemon or a job names has all three roles, and so has the default pool.
using WantedDaemons = std::map<std::pair<std::string, Role>, Count>;

// A waiting job's priority rises by 1 in this time, so that no stream of jobs of a higher priority
// can starve it.
inline constexpr absl::Duration kAgingStep = absl::Minutes(10);

// Gives daemons to jobs. A pure function: the order of the views does not matter, and applying the
// answer and calling it again changes nothing more. A job uses daemons of its pool alone. A rollout
// or trainer serves one job at a time. A queue or reward serves any number; the least loaded is
// chosen first.
//
// 1. Jobs keep the present daemons that they hold, except those that are drained.
// 2. Each started job gets what it lacks of its minimum: a queue, all trainer ranks, `min` rollouts
//    and `min` rewards. It never gives back so much that it falls below that.
// 3. The waiting jobs come in the order of priority (which rises while they wait), then of Submit.
//    A job whose minimum is free starts. If nothing is missing but rollouts, and other jobs have
//    enough of them above their minimum, these leave them, and the job starts when they have left.
//    Any other job that this fleet could serve at all has what is free kept for it, up to its
//    minimum, so that smaller jobs that come later cannot starve it. They start on what is left.
// 4. The rollouts that are left are shared: the job with the fewest gets the next one, up to `max`.
//    A job that has more than its share leaves some to the others.
//
// A job that would take its owner above the quota waits. No daemon is kept for it, but the owner's
// later jobs do not overtake it.
//
// `wanted`, if given, is set to what the jobs can use.
std::map<std::string, JobStaff> Assign(std::vector<JobView> jobs,
                                       const std::vector<DaemonView>& daemons,
                                       WantedDaemons* wanted = nullptr);

}  // namespace sluice::controller
