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

// What grants of the queue come to on this worker.
struct TakenGrants {
  std::vector<Member> members;             // For the streamer.
  std::vector<Request> requests;           // For the engine, of those members that go on sampling.
  std::vector<queue::v1::DropItem> drops;  // Groups whose row makes no prompt that fits.
};

// Turns grants into members and requests: renders the prompt, reads the prefix that an earlier
// attempt has left, and knows when that prefix is a whole answer already.
//
// Used by one thread.
class Grants {
 public:
  struct Options {
    std::string job_name;     // For people.
    std::string worker;       // This daemon's id.
    uint32_t max_prompt = 0;  // Tokens; a longer prompt is dropped.
  };
  // All outlive this.
  Grants(Options options, QueueClient* queue, LeaseKeeper* leases, const PromptRenderer* renderer,
         const MadeEngine* engine, const StepLoop* loop, daemon::Waits* waits,
         const Metrics& metrics);

  // Adds what `grant` comes to. Its leases are held already; those that end here are let go.
  // An error is the job's. What is wrong with a row or a lease ends that group or member alone.
  absl::Status Take(const queue::v1::Grant& grant, TakenGrants* taken);

 private:
  void DropGroup(const queue::v1::Grant& grant, const char* reason, const std::string& why,
                 TakenGrants* taken);
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
  uint64_t next_id_ = 1;  // Of requests, and of groups within the engine.
};

}  // namespace sluice::rollout
