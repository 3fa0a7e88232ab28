#include "services/trainer/batch_reader.h"

#include <deque>
#include <map>
#include <thread>
#include <utility>

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/queue_client/lease_keeper.h"
#include "common/queue_client/queue_client.h"
#include "sluice/queue/v1/queue.pb.h"

namespace sluice::trainer {
namespace {
// A lease that ends this often while one batch is read is too short for this process.
constexpr int kMostTimesLost = 3;
}  // namespace

struct BatchReader::Impl {
  QueueClient* const queue;
  LeaseKeeper* const leases;
  const Options options;
  std::thread thread;

  Mutex mu;
  CondVar changed;
  std::deque<Slice> slices ABSL_GUARDED_BY(mu);  // At most those of two batches.
  int64_t version ABSL_GUARDED_BY(mu) = 0;       // K: the batch after the last applied one.
  // Leases of batches that were read but not applied, by k.
  std::map<int64_t, std::string> held ABSL_GUARDED_BY(mu);
  bool stopped ABSL_GUARDED_BY(mu) = false;
  absl::Status failure ABSL_GUARDED_BY(mu);

  void Run() {
    absl::Status status;
    for (int64_t k = options.first; status.ok() && AwaitTurn(k); ++k) status = ReadBatch(k);
    MutexLock lock(&mu);
    failure = status.ok() ? absl::CancelledError("the reader was stopped") : status;
    changed.NotifyAll();
  }

  // Waits until batch k may be read; the queue hands out at most batch K + 1. Returns false once
  // the reader is stopped. At options.end it waits for that.
  bool AwaitTurn(int64_t k) {
    MutexLock lock(&mu);
    while (!stopped && (k > version + 1 || k == options.end)) changed.Wait(&mu);
    return !stopped;
  }

  absl::Status ReadBatch(int64_t k) {
    uint32_t from = 0;
    int times_lost = 0;
    while (true) {
      queue::v1::AcquireBatchRequest request;
      request.set_k(k);
      request.set_from(from);
      request.set_stream(options.stream);
      SLUICE_ASSIGN_OR_RETURN(const queue::v1::AcquireBatchResponse response,
                              queue->AcquireBatch(std::move(request)));

      // The queue had no batch within the time limit of the call, so ask again.
      if (!response.has_batch()) {
        MutexLock lock(&mu);
        if (stopped) return absl::CancelledError("the reader was stopped");
        continue;
      }

      const queue::v1::Batch& batch = response.batch();
      leases->Hold(batch.lease().id());
      {
        MutexLock lock(&mu);
        held[k] = batch.lease().id();
      }

      absl::StatusOr<std::vector<Group>> groups =
          options.encode_row ? EncodeGroups(options.encode_row, options.skip_bad_rows, batch)
                             : FetchGroups(*queue, batch, options.experts, options.rewards);
      // The lease ends while this process is paused or gets no processor. The batch is still ours
      // to train if the queue grants it again.
      if (ReasonOf(groups.status()) == "LEASE_LOST" && ++times_lost <= kMostTimesLost) {
        leases->Forget(batch.lease().id());
        continue;
      }
      SLUICE_RETURN_IF_ERROR(groups.status());

      from = batch.from() + static_cast<uint32_t>(batch.groups_size());
      Slice slice{k, *std::move(groups), batch.closed() && from >= batch.size(), batch.crc32c(),
                  batch.lease().id()};
      const bool closed = slice.closed;
      MutexLock lock(&mu);
      slices.push_back(std::move(slice));
      changed.NotifyAll();
      if (closed) return absl::OkStatus();
    }
  }
};

BatchReader::BatchReader(QueueClient* queue, LeaseKeeper* leases, Options options)
    : impl_(new Impl{.queue = queue, .leases = leases, .options = std::move(options)}) {
  impl_->version = impl_->options.first;
  impl_->thread = std::thread([impl = impl_.get()] { impl->Run(); });
}

BatchReader::~BatchReader() { Stop(); }

std::vector<std::string> BatchReader::Stop() {
  {
    MutexLock lock(&impl_->mu);
    impl_->stopped = true;
    impl_->changed.NotifyAll();
  }
  if (impl_->thread.joinable()) impl_->thread.join();
  MutexLock lock(&impl_->mu);
  std::vector<std::string> leases;
  for (const auto& [k, lease] : impl_->held) leases.push_back(lease);
  return leases;
}

absl::StatusOr<BatchReader::Slice> BatchReader::Next() {
  MutexLock lock(&impl_->mu);
  while (impl_->slices.empty() && impl_->failure.ok()) impl_->changed.Wait(&impl_->mu);
  if (impl_->slices.empty()) return impl_->failure;
  Slice slice = std::move(impl_->slices.front());
  impl_->slices.pop_front();
  return slice;
}

void BatchReader::OnApplied(int64_t k) {
  MutexLock lock(&impl_->mu);
  SLUICE_CHECK(k == impl_->version);
  impl_->version = k + 1;
  impl_->held.erase(k);
  impl_->changed.NotifyAll();
}

}  // namespace sluice::trainer
