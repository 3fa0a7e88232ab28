#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/base/mutex.h"
#include "common/rl/version.h"
#include "services/rollout/core/engine/engine.h"
#include "services/rollout/metrics.h"
#include "sluice/common/v1/common.pb.h"

namespace sluice::rollout {
struct Member;

// Computes one sealed trajectory in `one_in` again, by prefill and behind all other work, and
// compares its log-probs with those it was sampled with: a corrupt block of keys and values, a
// wrong hit in the prefix cache or a wrong stamp shows where it arises. The choice is a hash of
// group and member, so that every worker, and every run of a seeded job, makes the same.
//
// Only what was granted, sampled and sealed under one version that is loaded still can be compared:
// the log-probs of others are of no single version that is here, and they are passed over, as is
// what comes while kMostPending are under way.
//
// Thread-safe.
class Rescorer {
 public:
  // Ids of its requests have this bit, the job's own do not.
  static constexpr uint64_t kRescored = uint64_t{1} << 62;
  static constexpr size_t kMostPending = 64;
  static constexpr double kWarnAbove = 0.02;  // Nats, the mean of a trajectory.

  struct Options {
    std::string job_name;
    uint32_t one_in = 1000;  // At least 1.
  };
  // `add` hands a request to the engine; its events come back to Take().
  Rescorer(Options options, std::function<void(Request request)> add, const Metrics& metrics);

  // The queue has all of `member`, and `loaded` samples now.
  void Sealed(const Member& member, PolicyVersion loaded) ABSL_LOCKS_EXCLUDED(mu_);
  // Takes those events out of `step` that are for it.
  void Take(StepEvents* step) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Sampled {
    common::v1::TrajectoryRef ref;
    uint32_t prompt = 0;          // Tokens.
    std::vector<float> logprobs;  // Of the answer.
    PolicyVersion version;
  };
  bool Chosen(const common::v1::TrajectoryRef& ref) const;
  Sampled Remove(uint64_t request) ABSL_LOCKS_EXCLUDED(mu_);
  void Compare(const Sampled& sampled, const TokenEvent& event) const;

  const Options options_;
  const std::function<void(Request request)> add_;
  const Metrics metrics_;
  Mutex mu_;
  absl::flat_hash_map<uint64_t, Sampled> pending_ ABSL_GUARDED_BY(mu_);  // By request.
  uint64_t next_ ABSL_GUARDED_BY(mu_) = kRescored;
};

}  // namespace sluice::rollout
