#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "sluice/common/v1/common.pb.h"

namespace sluice {
class QueueClient;

// Keeps the leases of a worker alive. It renews all of them every third of their TTL (time to
// live), and tells the queue at once which versions an engine holds. A rollout needs a keeper even
// while it holds no lease, because a worker that does not renew is taken for dead.
//
// Thread-safe. Owns one thread, `renew`, which runs the handlers.
class LeaseKeeper {
 public:
  struct Options {
    // The queue no longer knows these leases, which are still held here: abort their work. Runs on
    // the `renew` thread and must not block.
    std::function<void(const std::vector<std::string>& leases)> on_lost;
    // Renewal has failed for good (fenced, wrong role), and the thread has ended.
    std::function<void(absl::Status why)> on_failed;
    absl::Duration first_period = absl::Seconds(2);  // Used until the queue has told the TTL.
  };

  // `client` outlives the keeper. Renewing starts with the first Hold(), SetLoaded() or Sync().
  LeaseKeeper(QueueClient* client, Options options);
  // Calls Stop().
  ~LeaseKeeper();
  LeaseKeeper(const LeaseKeeper&) = delete;
  LeaseKeeper& operator=(const LeaseKeeper&) = delete;

  // Renews `lease` from now on.
  void Hold(absl::string_view lease);
  // Stops renewing `lease`. Call it before the call that ends the lease (Seal, Drop, Release), so
  // that the end is not taken for a loss.
  void Forget(absl::string_view lease);
  // Replaces the list of versions that the engine holds, and sends it at once.
  void SetLoaded(std::vector<common::v1::Loaded> loaded);
  // Renews at once, if renewing has started. Call it when the queue has restarted.
  void RenewNow();
  // Waits until the queue has answered a Renew that contains everything set before. A rollout calls
  // it before its first Admit.
  // CANCELLED: the keeper was stopped.
  // Any other error: the reason why renewal has failed for good.
  absl::Status Sync();

  // Ends the thread and a call in progress. Idempotent.
  void Stop();

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace sluice
