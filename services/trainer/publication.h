#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "common/checkpoint/tensor_set.h"
#include "common/rl/version.h"

namespace sluice {
class Clock;
class QueueClient;
class WeightPublisher;
}  // namespace sluice

namespace sluice::trainer {

// Publishes versions beside the next step: chunks, manifest, `latest`, then the queue's
// AdvanceVersion, in that order. A version that is overtaken before its turn is left out: engines
// want the newest.
//
// Owns one thread, `publish`. Thread-safe.
class Publication {
 public:
  // All outlive the publication; `queue`'s cancel token ends its calls. `published`: what the queue
  // has as published. `failed` runs on the `publish` thread once publication has failed for good:
  // whoever waits for data would wait for ever, because no engine samples for versions that never
  // come.
  Publication(WeightPublisher* weights, QueueClient* queue, Clock* clock,
              std::optional<PolicyVersion> published, std::function<void()> failed);
  // Cancel the queue's calls before; what is not published by then is not.
  ~Publication();
  Publication(const Publication&) = delete;
  Publication& operator=(const Publication&) = delete;

  // Hands over `weights` as `version`, once the queue has answered Apply for its last step. Returns
  // at once. `hold_until`: during a replay (contracts: engines keep what they hold up to that
  // number).
  void Offer(std::shared_ptr<const TensorSet> weights, PolicyVersion version,
             std::optional<int64_t> hold_until = std::nullopt) ABSL_LOCKS_EXCLUDED(mu_);

  // Waits until all that was offered is out. An error is why publication has failed for good.
  absl::Status Flush() ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status status() const ABSL_LOCKS_EXCLUDED(mu_);
  // The newest version that the queue knows.
  PolicyVersion published() const ABSL_LOCKS_EXCLUDED(mu_);
  double seconds() const ABSL_LOCKS_EXCLUDED(mu_);  // Spent publishing, in all.

 private:
  struct Item {
    std::shared_ptr<const TensorSet> weights;
    PolicyVersion version;
    std::optional<int64_t> hold_until;
  };
  struct Thread;
  void Run();
  absl::Status Publish(const Item& item);

  WeightPublisher* const weights_;
  QueueClient* const queue_;
  Clock* const clock_;
  const std::function<void()> failed_;

  mutable Mutex mu_;
  CondVar changed_;
  std::optional<Item> waiting_ ABSL_GUARDED_BY(mu_);
  bool busy_ ABSL_GUARDED_BY(mu_) = false;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
  std::optional<PolicyVersion> published_ ABSL_GUARDED_BY(mu_);
  double seconds_ ABSL_GUARDED_BY(mu_) = 0;
  std::unique_ptr<Thread> thread_;
};

}  // namespace sluice::trainer
