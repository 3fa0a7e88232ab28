#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/base/mutex.h"
#include "common/rl/version.h"
#include "common/weights/version_health.h"
#include "services/rollout/core/engine/engine.h"
#include "services/rollout/core/engine/request_owner.h"

namespace sluice::rollout {
struct Member;

// Finds out how far a version on trial is from the ones before: it computes the last answers of
// this engine again by prefill, and compares the log-probs with those from sampling. A step of
// training moves them a little; weights that are broken move them far, or give none that are
// finite. It needs no new work from the queue, which may have none while a version is on trial.
//
// Thread-safe.
class VersionProbe {
 public:
  // The newest answers are kept, up to these numbers. Tokens are counted with the prompts.
  static constexpr size_t kMostAnswers = 256, kMostTokens = 16384;

  // `add` gives a request to the engine. The caller passes the engine's events to TakeEvents().
  explicit VersionProbe(std::function<void(Request request)> add) : add_(std::move(add)) {}

  // Keeps a sealed answer for the next trial. Answers of earlier incarnations say nothing about the
  // versions of a new one, which may have gone back: they are forgotten when it begins.
  void OnSealed(const Member& member) ABSL_LOCKS_EXCLUDED(mu_);
  // The engine now computes with `version`. If it is on trial, the kept answers are computed again.
  void StartVersion(PolicyVersion version, bool on_trial) ABSL_LOCKS_EXCLUDED(mu_);
  // Removes the events of its own requests from `step`, and compares.
  void TakeEvents(StepEvents* step) ABSL_LOCKS_EXCLUDED(mu_);
  // What the answers say of the version that was started last. `rows` are tokens of answers.
  VersionHealth health() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Answer {
    std::vector<int32_t> tokens;  // The prompt's and the answer's.
    size_t prompt = 0;            // Number of the prompt's tokens.
    std::vector<float> logprobs;  // Of the answer's tokens.
    float temperature = 1;
    int64_t incarnation = 0;  // The lowest one of its tokens' versions.
  };
  Answer Remove(uint64_t request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Compare(const TokenEvent& event) ABSL_LOCKS_EXCLUDED(mu_);
  void CountFailure(const RequestFailure& failure) ABSL_LOCKS_EXCLUDED(mu_);

  const std::function<void(Request request)> add_;
  mutable Mutex mu_;
  std::deque<Answer> answers_ ABSL_GUARDED_BY(mu_);  // Oldest first.
  size_t tokens_ ABSL_GUARDED_BY(mu_) = 0;           // Of answers_.

  PolicyVersion version_ ABSL_GUARDED_BY(mu_);
  uint64_t rows_ ABSL_GUARDED_BY(mu_) = 0, bad_rows_ ABSL_GUARDED_BY(mu_) = 0;
  double gaps_ ABSL_GUARDED_BY(mu_) = 0;  // Sum over the rows that are finite.
  // Requests for `version_` and earlier ones, by id.
  absl::flat_hash_map<uint64_t, Answer> pending_ ABSL_GUARDED_BY(mu_);
  uint64_t first_ ABSL_GUARDED_BY(mu_) = 0;  // The first request for `version_`.
  uint64_t next_ ABSL_GUARDED_BY(mu_) = FirstRequestId(RequestOwner::kProbe);
};

}  // namespace sluice::rollout
