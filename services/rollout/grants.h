#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/daemon/waits.h"
#include "common/prompt/prompt.h"
#include "services/rollout/core/engine/registry.h"
#include "services/rollout/core/step_loop/step_loop.h"
#include "services/rollout/metrics.h"
#include "services/rollout/streamer.h"
#include "sluice/queue/v1/queue.pb.h"

namespace sluice {
class LeaseKeeper;
class QueueClient;
}  // namespace sluice

namespace sluice::rollout {

// What this worker makes of the queue's grants.
struct GrantedWork {
  std::vector<Member> members;  // For the streamer.
  // For the engine: one request for each member whose answer has not ended.
  std::vector<Request> requests;
  std::vector<queue::v1::DropItem> drops;  // Groups whose row gives no prompt, or too long a one.
};

// Turns grants into members and requests. It renders the prompt, reads the part of the answer that
// an earlier attempt has sampled (the prefix), and finds out whether this part is already a whole
// answer.
//
// Not thread-safe; one thread uses it.
class Grants {
 public:
  struct Options {
    std::string job_name;     // For logs.
    std::string worker;       // This daemon's id.
    uint32_t max_prompt = 0;  // In tokens; groups with a longer prompt are dropped.
  };
  // All pointers outlive this object.
  Grants(Options options, QueueClient* queue, LeaseKeeper* leases, const PromptRenderer* renderer,
         const MadeEngine* engine, const StepLoop* loop, daemon::Waits* waits,
         const Metrics& metrics);

  // Adds the members, requests and drops that `grant` leads to. The caller has given the grant's
  // leases to the lease keeper; this removes those of members that are dropped or lost. An error
  // concerns the whole job: a bad row drops only its group, a lost lease only its member.
  absl::Status ConvertGrant(const queue::v1::Grant& grant, GrantedWork* work);

 private:
  void DropGroup(const queue::v1::Grant& grant, const char* reason, const std::string& why,
                 GrantedWork* work);
  absl::StatusOr<Member> MakeMember(const queue::v1::Grant& grant, const queue::v1::Member& granted,
                                    std::shared_ptr<const RenderedPrompt> prompt);
  absl::StatusOr<Trajectory> ResumeTrajectory(const queue::v1::Member& granted,
                                              const common::v1::TrajectoryRef& ref,
                                              uint32_t prompt_tokens);
  FinishReason FinishOf(const std::vector<int32_t>& answer, const SamplingParams& sampling) const;
  Request MakeRequest(const queue::v1::Grant& grant, const Member& member,
                      const SamplingParams& sampling, uint64_t engine_group) const;

  const Options options_;
  QueueClient* const queue_;
  LeaseKeeper* const leases_;
  const PromptRenderer* const renderer_;
  const MadeEngine* const engine_;
  const StepLoop* const loop_;
  daemon::Waits* const waits_;
  const Metrics metrics_;
  uint64_t next_id_ = 1;  // Next id of a request or of a group in the engine.
};

}  // namespace sluice::rollout
