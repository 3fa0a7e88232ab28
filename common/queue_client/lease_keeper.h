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

// Keeps a worker's leases alive: renews all of them each third of their TTL, and tells the queue at
// once which versions an engine holds. A rollout needs one even while it holds no lease: a worker
// that does not renew counts as gone.
//
// Thread-safe. Owns one thread, `renew`, which runs the handler.
class LeaseKeeper {
 public:
  struct Options {
    // These leases, still held here, are lost at the queue: abort their work. On the `renew`
    // thread; must not block on it.
    std::function<void(const std::vector<std::string>& leases)> lost;
    // Renewal has failed for good (fenced, wrong role) and the thread has ended.
    std::function<void(absl::Status why)> failed;
    absl::Duration first_period = absl::Seconds(2);  // Until the queue has told the TTL.
  };

  // `client` outlives the keeper. Starts to renew once there is something to tell: Hold, SetLoaded
  // or Sync.
  LeaseKeeper(QueueClient* client, Options options);
  // Stop().
  ~LeaseKeeper();
  LeaseKeeper(const LeaseKeeper&) = delete;
  LeaseKeeper& operator=(const LeaseKeeper&) = delete;

  // A grant: its lease is renewed from now on.
  void Hold(absl::string_view lease);
  // Before the call that ends the lease (Seal, Drop, Release), so that its end is not taken for a
  // loss.
  void Forget(absl::string_view lease);
  // Replaces the versions that the engine holds and sends them at once.
  void SetLoaded(std::vector<common::v1::Loaded> loaded);
  // Renews at once, if it renews at all: the queue was started anew.
  void RenewNow();
  // Waits for the answer to a Renew that says all that was set before. Before a rollout's first
  // Admit. CANCELLED: stopped. Else why renewal has failed for good.
  absl::Status Sync();

  // Ends the thread, and a call under way. Idempotent.
  void Stop();

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace sluice
