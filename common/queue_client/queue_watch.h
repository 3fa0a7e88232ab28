#pragma once

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "sluice/queue/v1/queue.pb.h"

namespace sluice {
class QueueClient;

// Follows the state of a job at the queue: its version, its phase, what is published, and hints
// that work is in vain. When the stream breaks it is opened again, and then begins with the whole
// state.
//
// Owns one thread, `watch`, which runs the handlers.
class QueueWatch {
 public:
  struct Handlers {
    // Not called for heartbeats.
    std::function<void(const queue::v1::WatchResponse& change)> on_change;
    // The watch has ended for good (fenced, wrong role). May be empty.
    std::function<void(absl::Status why)> on_failed;
  };

  // `client` outlives the watch.
  QueueWatch(QueueClient* client, Handlers handlers);
  // Ends the stream and joins the thread.
  ~QueueWatch();
  QueueWatch(const QueueWatch&) = delete;
  QueueWatch& operator=(const QueueWatch&) = delete;

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace sluice
