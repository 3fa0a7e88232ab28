#include "common/queue_client/put_stream.h"

#include <algorithm>
#include <deque>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/queue_client/queue_client.h"
#include "common/queue_client/retry.h"
#include "common/rpc/payload.h"
#include "common/rpc/stream.h"

namespace sluice {
namespace {

constexpr size_t kMaxRecords = 1000;         // In one message.
constexpr size_t kAimHeaderBytes = 128 << 10;  // Half of what a header may have.

struct Item {
  common::v1::Record record;
  std::shared_ptr<const std::string> payload;
  PutStream::Done done;

  size_t header_bytes() const { return record.ByteSizeLong() + 4; }
  size_t bytes() const { return header_bytes() + payload->size(); }
};

// One message on its way: the items behind those of the messages before it.
struct Flight {
  size_t items = 0;
  size_t bytes = 0;
};

}  // namespace

struct PutStream::Impl {
  QueueClient* const client;
  const Options options;
  rpc::Cancel cancel;
  std::thread thread;

  Mutex mu;
  CondVar changed;
  std::deque<Item> items ABSL_GUARDED_BY(mu);  // Without outcome, oldest first; ..
  size_t sent ABSL_GUARDED_BY(mu) = 0;         // .. so many of them are sent on the stream in use, ..
  std::deque<Flight> flights ABSL_GUARDED_BY(mu);  // .. in these messages.
  size_t flying_bytes ABSL_GUARDED_BY(mu) = 0;
  size_t held_bytes ABSL_GUARDED_BY(mu) = 0;
  uint64_t first_seq ABSL_GUARDED_BY(mu) = 1;  // Of flights.front().
  uint64_t put ABSL_GUARDED_BY(mu) = 0;      // Items ever taken, ..
  uint64_t settled ABSL_GUARDED_BY(mu) = 0;  // .. and those whose callback has returned.
  bool broken ABSL_GUARDED_BY(mu) = false;
  bool stopped ABSL_GUARDED_BY(mu) = false;
  absl::Status end ABSL_GUARDED_BY(mu);  // Not OK: the stream has ended for good.

  // The put thread.
  void Run();
  bool AwaitItems() ABSL_LOCKS_EXCLUDED(mu);
  absl::Status Session(bool* progress);
  bool AwaitSendable() ABSL_LOCKS_EXCLUDED(mu);
  absl::Status SendSome(rpc::ClientStream* stream, uint64_t seq) ABSL_LOCKS_EXCLUDED(mu);
  void Settle(std::vector<Item> done, const std::vector<PutOutcome>& outcomes) ABSL_LOCKS_EXCLUDED(mu);
  void FailAll(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu);

  // A stream's reader.
  absl::Status Take(const queue::v1::PutAck& ack) ABSL_LOCKS_EXCLUDED(mu);
};

void PutStream::Impl::Run() {
  rpc::Backoff backoff(client->options().backoff);
  while (AwaitItems()) {
    bool progress = false;
    const absl::Status status = Session(&progress);
    if (cancel.triggered()) break;
    if (!IsRetryable(status)) return FailAll(status);
    if (progress) backoff.Reset();
    if (cancel.WaitFor(backoff.Next(DetailOf(status).retry_after))) break;
  }
  FailAll(absl::CancelledError("the stream to the queue was stopped"));
}

bool PutStream::Impl::AwaitItems() {
  MutexLock lock(&mu);
  while (items.empty() && !stopped) changed.Wait(&mu);
  return !stopped;
}

// Opens a stream, sends all from the oldest without outcome on, until it breaks or is stopped.
absl::Status PutStream::Impl::Session(bool* progress) {
  {
    MutexLock lock(&mu);
    sent = flying_bytes = 0;
    flights.clear();
    first_seq = 1;
    broken = false;
  }
  rpc::ClientStream stream(client->channel(), *queue::v1::PutMessage::descriptor(), &cancel);
  absl::Status refused;
  std::thread reader([&] {
    for (queue::v1::PutAck ack; refused.ok() && stream.Read(&ack);) {
      refused = Take(ack);
      *progress = true;
    }
    MutexLock lock(&mu);
    broken = true;
    changed.NotifyAll();
  });
  absl::Status status;
  for (uint64_t seq = 1; status.ok() && AwaitSendable(); ++seq) status = SendSome(&stream, seq);
  if (!refused.ok() || absl::IsResourceExhausted(status)) stream.TryCancel();
  {
    MutexLock lock(&mu);
    if (stopped) stream.TryCancel();
  }
  stream.WritesDone();
  reader.join();
  const absl::Status finished = stream.Finish();
  return refused.ok() ? finished : refused;
}

bool PutStream::Impl::AwaitSendable() {
  MutexLock lock(&mu);
  while (!broken && !stopped && (sent == items.size() || flying_bytes >= options.window_bytes)) changed.Wait(&mu);
  return !broken && !stopped;
}

absl::Status PutStream::Impl::SendSome(rpc::ClientStream* stream, uint64_t seq) {
  queue::v1::PutHeader header;
  std::vector<rpc::PayloadSlice> payload;
  header.set_seq(seq);
  if (seq == 1) *header.mutable_call() = client->MakeCall();
  {
    MutexLock lock(&mu);
    Flight flight;
    size_t header_bytes = 0, payload_bytes = 0;
    while (sent < items.size() && flight.items < kMaxRecords) {
      const Item& item = items[sent];
      header_bytes += item.header_bytes();
      payload_bytes += item.payload->size();
      if (flight.items > 0 && (header_bytes > kAimHeaderBytes || payload_bytes > rpc::kAimPayloadBytes)) break;
      *header.add_records() = item.record;
      if (!item.payload->empty()) payload.push_back({*item.payload, item.payload});
      ++sent;
      ++flight.items;
      flight.bytes += item.bytes();
    }
    flying_bytes += flight.bytes;
    flights.push_back(flight);
  }
  return stream->WriteFrame(header, payload);
}

// The ack of the oldest message in flight.
absl::Status PutStream::Impl::Take(const queue::v1::PutAck& ack) {
  std::vector<Item> done;
  {
    MutexLock lock(&mu);
    if (flights.empty() || ack.seq() != first_seq) {
      return absl::InternalError(absl::StrCat("QueueService.Put: an ack for message ", ack.seq(), "; wanted ", first_seq));
    }
    const Flight flight = flights.front();
    flights.pop_front();
    ++first_seq;
    flying_bytes -= flight.bytes;
    held_bytes -= flight.bytes;
    sent -= flight.items;
    for (size_t i = 0; i < flight.items; ++i) {
      done.push_back(std::move(items.front()));
      items.pop_front();
    }
    changed.NotifyAll();
  }
  std::vector<PutOutcome> outcomes(done.size());
  for (const queue::v1::Failed& failed : ack.failed()) {
    if (failed.record() >= done.size()) continue;
    outcomes[failed.record()] = {
        Error(static_cast<absl::StatusCode>(failed.code()), failed.reason(), absl::StrCat("QueueService.Put: ", failed.reason())),
        failed.watermark()};
  }
  Settle(std::move(done), outcomes);
  return absl::OkStatus();
}

void PutStream::Impl::Settle(std::vector<Item> done, const std::vector<PutOutcome>& outcomes) {
  for (size_t i = 0; i < done.size(); ++i) {
    if (done[i].done) done[i].done(outcomes[i]);
  }
  MutexLock lock(&mu);
  settled += done.size();
  changed.NotifyAll();
}

void PutStream::Impl::FailAll(const absl::Status& why) {
  std::vector<Item> left;
  {
    MutexLock lock(&mu);
    end = why;
    left.assign(std::make_move_iterator(items.begin()), std::make_move_iterator(items.end()));
    items.clear();
    held_bytes = 0;
    changed.NotifyAll();
  }
  const std::vector<PutOutcome> outcomes(left.size(), PutOutcome{why, 0});
  Settle(std::move(left), outcomes);
}

PutStream::PutStream(QueueClient* client) : PutStream(client, Options()) {}

PutStream::PutStream(QueueClient* client, const Options& options) : impl_(new Impl{client, options}) {
  impl_->thread = std::thread([this] { impl_->Run(); });
}

PutStream::~PutStream() { Stop(); }

absl::Status PutStream::Put(common::v1::Record record, std::string payload, Done done) {
  if (payload.size() > rpc::kMaxPayloadBytes || record.ByteSizeLong() > rpc::kMaxHeaderBytes / 2) {
    return Error(absl::StatusCode::kInvalidArgument, "TOO_LARGE",
                 absl::StrCat("a record of ", payload.size(), " bytes of payload and ", record.ByteSizeLong(),
                              " of header; the limits are ", rpc::kMaxPayloadBytes, " and ", rpc::kMaxHeaderBytes / 2));
  }
  Item item{std::move(record), std::make_shared<const std::string>(std::move(payload)), std::move(done)};
  const size_t bytes = item.bytes();
  MutexLock lock(&impl_->mu);
  if (!impl_->end.ok()) return impl_->end;
  if (impl_->stopped) return absl::CancelledError("the stream to the queue was stopped");
  if (impl_->held_bytes + bytes > impl_->options.buffer_bytes) {
    return Error(absl::StatusCode::kResourceExhausted, "BUFFER_FULL",
                 absl::StrCat("the queue has not acknowledged ", impl_->held_bytes, " bytes; the limit is ",
                              impl_->options.buffer_bytes));
  }
  impl_->held_bytes += bytes;
  impl_->items.push_back(std::move(item));
  ++impl_->put;
  impl_->changed.NotifyAll();
  return absl::OkStatus();
}

absl::Status PutStream::Flush(absl::Duration timeout) {
  const absl::Time until = absl::Now() + timeout;
  MutexLock lock(&impl_->mu);
  const uint64_t target = impl_->put;
  while (impl_->settled < target) {
    const absl::Duration left = until - absl::Now();
    if (left <= absl::ZeroDuration()) {
      return absl::DeadlineExceededError(absl::StrCat("the queue has not acknowledged ", target - impl_->settled, " records"));
    }
    impl_->changed.WaitFor(&impl_->mu, std::min(left, absl::Seconds(60)));
  }
  return impl_->end;
}

void PutStream::Stop() {
  {
    MutexLock lock(&impl_->mu);
    impl_->stopped = true;
    impl_->changed.NotifyAll();
  }
  impl_->cancel.Trigger();
  if (impl_->thread.joinable()) impl_->thread.join();
}

}  // namespace sluice
