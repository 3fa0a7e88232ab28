#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/checkpoint/tensor_set.h"
#include "common/rl/version.h"
#include "common/weights/weight_source.h"
#include "services/trainer/core/canary.h"
#include "services/trainer/metrics.h"
#include "services/trainer/one_slot_worker.h"

namespace sluice {
class Clock;
class QueueClient;
class WeightPublisher;
}  // namespace sluice

namespace sluice::trainer {

class CanaryTrial;

// Publishes versions while the next step is trained, in this order: chunks, manifest, `latest`,
// then the queue's AdvanceVersion. A version that is followed by a newer one before its turn comes
// is not published, because engines want the newest. With a canary, a version is on trial between
// manifest and `latest`, and the next one waits for the end of that.
//
// Owns one thread, `publish`. Thread-safe.
class Publication {
 public:
  // The pointers outlive the publication. The cancel token of `queue` ends its calls. `published`
  // is the version that the queue has as published. `failed` is called on the `publish` thread once
  // publication has failed for good. The job must then end: it would wait for data for ever,
  // because no engine samples for versions that never come.
  // `canary`: how versions above `known` are tried; those up to it are known from earlier trials,
  // or are weights from which the run goes on.
  struct Canary {
    CanaryTrial* trial = nullptr;
    CanaryRules rules;
    int64_t known = 0;
  };
  Publication(WeightPublisher* weights, QueueClient* queue, Clock* clock,
              const PublishMetrics& metrics, std::optional<PolicyVersion> published,
              std::optional<Canary> canary, std::function<void()> failed);
  // Cancel the queue's calls before. Versions that are not published by then will not be.
  ~Publication() = default;
  Publication(const Publication&) = delete;
  Publication& operator=(const Publication&) = delete;

  // Hands over `weights` as `version` and returns at once. Call it after the queue has answered
  // Apply for the last step that the version contains. `hold_until` is set during a replay: engines
  // that hold a version up to this number keep it.
  void Offer(std::shared_ptr<const TensorSet> weights, PolicyVersion version,
             std::optional<int64_t> hold_until = std::nullopt) ABSL_LOCKS_EXCLUDED(mu_);

  // Waits until all that was offered is published. The error is the one with which publication has
  // failed for good.
  absl::Status Flush() { return worker_.Flush(); }
  absl::Status status() const { return worker_.status(); }
  // The newest version that the queue knows.
  PolicyVersion published() const ABSL_LOCKS_EXCLUDED(mu_);
  double seconds() const ABSL_LOCKS_EXCLUDED(mu_);  // Time spent publishing so far.

 private:
  absl::Status Publish(const TensorSet& weights, PolicyVersion version,
                       std::optional<int64_t> hold_until) ABSL_LOCKS_EXCLUDED(mu_);
  // Publishes it once it has passed its trial.
  absl::StatusOr<PublishedVersion> PublishTried(const TensorSet& weights, PolicyVersion version);

  WeightPublisher* const weights_;
  QueueClient* const queue_;
  Clock* const clock_;
  const PublishMetrics metrics_;
  const std::optional<Canary> canary_;

  mutable Mutex mu_;
  std::optional<PolicyVersion> published_ ABSL_GUARDED_BY(mu_);
  double seconds_ ABSL_GUARDED_BY(mu_) = 0;

  OneSlotWorker worker_;  // Its thread reads the fields above.
};

}  // namespace sluice::trainer
