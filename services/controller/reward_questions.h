#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "services/controller/core/controller.h"
#include "sluice/job/v1/job.pb.h"

namespace sluice::controller {
class Peers;

// What people ask of the rewards of a job, passed on to its queue and its reward daemons. Call
// these on the loop's thread; `done` runs on a thread of `peers`, or at once.

// Has the queue score groups again (RESCORE), or draw prompts again that were given up (READMIT).
// `count` is that of queue.v1.RetaskResponse. The queue has the job.
void RetaskJob(Peers& peers, const Controller& core, const Job& job,
               const job::v1::ControlRequest& request,
               std::function<void(absl::Status status, uint32_t count)> done);

// Asks each reward daemon of the job for its rewards. The answers are in the order of the workers.
void DescribeRewards(Peers& peers, const Controller& core, const Job& job,
                     std::function<void(std::vector<job::v1::RewardDescribed> rewards)> done);

// Has each reward daemon of the job load its plug-in of the name `reward` anew, or all if that is
// empty.
// FAILED_PRECONDITION NOT_YET: the job has no reward daemon now.
void ReloadRewards(
    Peers& peers, const Controller& core, const Job& job, const std::string& reward,
    std::function<void(absl::Status status, std::vector<job::v1::RewardReloaded> rewards)> done);

}  // namespace sluice::controller
