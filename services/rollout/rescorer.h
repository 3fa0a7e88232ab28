#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/base/mutex.h"
#include "common/rl/version.h"
#include "services/rollout/core/engine/engine.h"
#include "services/rollout/core/engine/request_owner.h"
#include "services/rollout/metrics.h"
#include "sluice/common/v1/common.pb.h"

namespace sluice::rollout {
struct Member;

// Checks the engine: it computes one sealed trajectory in `one_in` again by prefill, and compares
// the log-probs with those from sampling. A corrupt block of the KV cache, a wrong hit in the
// prefix cache, or a token with a wrong version shows as a difference. This work has the lowest
// priority. The choice is a hash of the group's ordinal and the member, so all workers, and all
// runs of a job, make the same choice.
//
// A trajectory can be compared only if it was granted, sampled and sealed under one version, and
// this version is still loaded. Others are skipped, as are those that come while kMostPending are
// being computed.
//
// Thread-safe.
class Rescorer {
 public:
  static constexpr size_t kMostPending = 64;
  // A trajectory whose mean difference is above this is logged as a warning. In nats.
  static constexpr double kWarnAbove = 0.02;

  struct Options {
    std::string job_name;
    uint32_t one_in = 1000;  // At least 1.
  };
  // `add` gives a request to the engine. The caller passes the engine's events to TakeEvents().
  Rescorer(Options options, std::function<void(Request request)> add, const Metrics& metrics);

  // Says that `member` is sealed, while the engine's version is `loaded`. Adds a request if the
  // trajectory is chosen and can be compared.
  void OnSealed(const Member& member, PolicyVersion loaded) ABSL_LOCKS_EXCLUDED(mu_);
  // Removes the events of its own requests from `step`, and compares.
  void TakeEvents(StepEvents* step) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // What is kept of a sealed trajectory until it is compared.
  struct Sampled {
    common::v1::TrajectoryRef ref;
    uint32_t prompt = 0;          // Number of tokens.
    std::vector<float> logprobs;  // Log-probs of the answer's tokens.
    PolicyVersion version;
  };
  bool IsChosen(const common::v1::TrajectoryRef& ref) const;
  Sampled Remove(uint64_t request) ABSL_LOCKS_EXCLUDED(mu_);
  void Compare(const Sampled& sampled, const TokenEvent& event) const;

  const Options options_;
  const std::function<void(Request request)> add_;
  const Metrics metrics_;
  Mutex mu_;
  absl::flat_hash_map<uint64_t, Sampled> pending_ ABSL_GUARDED_BY(mu_);  // By request id.
  uint64_t next_ ABSL_GUARDED_BY(mu_) = FirstRequestId(RequestOwner::kRescorer);
};

}  // namespace sluice::rollout
