#pragma once

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "sluice/queue/v1/queue.pb.h"

namespace sluice {
class QueueClient;

// Follows a job at the queue: its version, phase, what is published, hints that work is in vain.
// The stream is opened again when it breaks, and then begins with the whole state.
//
// Owns one thread, `watch`, which runs the handlers.
class QueueWatch {
 public:
  struct Handlers {
    std::function<void(const queue::v1::WatchResponse& change)> changed;  // Beats are left out.
    std::function<void(absl::Status why)> failed;  // For good (fenced, wrong role); may be empty.
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
