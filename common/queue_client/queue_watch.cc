#include "common/queue_client/queue_watch.h"

#include <thread>
#include <utility>

#include "common/base/status.h"
#include "common/queue_client/queue_client.h"
#include "common/queue_client/retry.h"
#include "common/rpc/stream.h"

namespace sluice {

struct QueueWatch::Impl {
  QueueClient* const client;
  const Handlers handlers;
  rpc::Cancel cancel;
  std::thread thread;

  void Run() {
    rpc::Backoff backoff(client->options().backoff);
    while (true) {
      const absl::Status status = ReadStream(&backoff);
      if (cancel.triggered()) return;
      if (!IsRetryable(status)) {
        if (handlers.on_failed) handlers.on_failed(status);
        return;
      }
      if (cancel.WaitFor(backoff.Next(DetailOf(status).retry_after))) return;
    }
  }

  // Reads one stream to its end.
  absl::Status ReadStream(rpc::Backoff* backoff) {
    rpc::ClientStream stream(client->channel(), *queue::v1::WatchRequest::descriptor(), &cancel);
    queue::v1::WatchRequest request;
    *request.mutable_call() = client->MakeCall();
    if (stream.Write(request)) stream.WritesDone();
    for (queue::v1::WatchResponse change; stream.Read(&change);) {
      backoff->Reset();
      // An empty message is a heartbeat.
      if (change.ByteSizeLong() > 0) handlers.on_change(change);
    }
    return stream.Finish();
  }
};

QueueWatch::QueueWatch(QueueClient* client, Handlers handlers)
    : impl_(new Impl{client, std::move(handlers)}) {
  impl_->thread = std::thread([this] { impl_->Run(); });
}

QueueWatch::~QueueWatch() {
  impl_->cancel.Trigger();
  impl_->thread.join();
}

}  // namespace sluice
