#pragma once

#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "services/controller/core/controller.h"
#include "sluice/job/v1/job.pb.h"
#include "sluice/weights/v1/weights.pb.h"

namespace sluice::controller {
class Peers;

// What people ask of the weights of a job, passed on to its daemons. Call these on the loop's
// thread; `done` runs on a thread of `peers`, or at once.

// Asks the trainer which versions it keeps. While there is none, a rollout is asked.
// FAILED_PRECONDITION NOT_YET: the job has neither.
void ListWeights(Peers& peers, const Controller& core, const Job& job,
                 const weights::v1::ListRequest& request,
                 std::function<void(absl::Status status, weights::v1::ListResponse list)> done);

// Has each rollout of the job read its weights again. The answers are in the order of the workers.
void VerifyWeights(Peers& peers, const Controller& core, const Job& job,
                   const weights::v1::VerifyRequest& request,
                   std::function<void(std::vector<job::v1::RolloutVerified> verified)> done);

// Has the trainer go back to the version `step`.
// FAILED_PRECONDITION NOT_YET: the job has no trainer now, or others than those of `incarnation`.
// Other errors are those of weights.v1.Rollback.
void RollBackWeights(Peers& peers, const Controller& core, const Job& job,
                     const job::v1::ControlRequest& request,
                     std::function<void(absl::Status status)> done);

// Pins or unpins a version at the trainer.
// FAILED_PRECONDITION NOT_YET: the job has no trainer now.
void PinWeights(Peers& peers, const Controller& core, const Job& job,
                const job::v1::PinWeightsRequest& request,
                std::function<void(absl::Status status)> done);

}  // namespace sluice::controller
