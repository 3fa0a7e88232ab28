#include "common/queue_client/put_stream.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/digest.h"
#include "common/base/failpoint.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/queue_client/attachment.h"
#include "common/queue_client/queue_client.h"
#include "common/queue_client/retry.h"
#include "common/rpc/payload.h"
#include "common/rpc/stream.h"

namespace sluice {
namespace {

constexpr size_t kMaxRecords = 1000;              // Most records in one message.
constexpr size_t kTargetHeaderBytes = 128 << 10;  // Half of the limit of a header.
constexpr size_t kTargetSharedBytes = 4 << 20;    // Payload of one message in shared memory.
// A smaller payload costs less inside the message than in shared memory.
constexpr size_t kLeastSharedBytes = 64 << 10;

// A record, or as much of it as fits into one message.
struct Part {
  common::v1::Record record;
  std::vector<rpc::PayloadSlice> payload;
  size_t payload_bytes = 0;

  size_t header_bytes() const { return record.ByteSizeLong() + 4; }
};

// A record given to Put(), until its outcome is told. `parts` has one element, or several if the
// record was cut.
struct Item {
  std::vector<Part> parts;
  size_t bytes = 0;
  PutOutcome refused;  // The outcome of its first part that was refused; OK if none was.
  PutStream::Done done;
};

// A message that was sent and is not acknowledged. Each of its records is an item, or one part of
// an item. Only the first record may be a part whose item began in an earlier message, and only the
// last may be a part whose item goes on in the next message; `more` says that it does. `items`
// counts the items that end in this message.
struct Flight {
  size_t items = 0;
  bool more = false;
  size_t bytes = 0;
  std::optional<shm::Slice> shared;  // Where its payload lies in the client's shared buffer.
};

// Takes bytes from the front of a payload, without copying them.
class Cutter {
 public:
  explicit Cutter(std::vector<rpc::PayloadSlice> payload) : payload_(std::move(payload)) {}
  // Moves the next `bytes` bytes to `part` and returns their CRC-32C.
  uint32_t TakeBytes(size_t bytes, Part* part) {
    uint32_t crc = 0;
    part->payload_bytes += bytes;
    while (bytes > 0) {
      rpc::PayloadSlice& slice = payload_[at_];
      const absl::string_view piece = slice.bytes.substr(0, bytes);
      crc = Crc32c(piece, crc);
      part->payload.push_back({piece, slice.owner});
      bytes -= piece.size();
      slice.bytes.remove_prefix(piece.size());
      if (slice.bytes.empty()) ++at_;
    }
    return crc;
  }

 private:
  std::vector<rpc::PayloadSlice> payload_;
  size_t at_ = 0;
};

// Cuts a record that is too large for one message into parts. It is cut between fields, and within
// fields that are too large themselves. A part of a field says where it begins (`from`), the size
// of the whole field (`total`), and has its own size and CRC. All parts but the last have `more`
// set.
std::vector<Part> CutRecord(const common::v1::Record& record,
                            std::vector<rpc::PayloadSlice> payload) {
  common::v1::Record head = record;
  head.clear_fields();
  head.set_more(true);
  head.set_last(false);
  std::vector<Part> parts = {{head, {}, 0}};
  size_t header_bytes = head.ByteSizeLong();

  Cutter cutter(std::move(payload));
  for (const common::v1::Field& field : record.fields()) {
    const size_t total = field.inline_().empty() ? field.bytes() : 0;
    size_t from = 0;
    do {
      const size_t room =
          rpc::kTargetPayloadBytes - std::min(rpc::kTargetPayloadBytes, parts.back().payload_bytes);
      const bool whole = total - from <= room;
      // Begin a new part if the header is full, or if the field does not fit and this part has
      // payload already. A field that is too large itself then begins in an empty part.
      if (parts.back().record.fields_size() > 0 &&
          (header_bytes + field.ByteSizeLong() > kTargetHeaderBytes ||
           (!whole && room < rpc::kTargetPayloadBytes))) {
        parts.push_back({head, {}, 0});
        header_bytes = head.ByteSizeLong();
        continue;
      }

      const size_t take = std::min(total - from, room);
      common::v1::Field* const out = parts.back().record.add_fields();
      *out = field;
      header_bytes += field.ByteSizeLong() + 4;
      const uint32_t crc = cutter.TakeBytes(take, &parts.back());
      if (take < total) {
        out->set_from(from);
        out->set_total(total);
        out->set_bytes(take);
        out->set_crc32c(crc);
      }

      from += take;
      if (from >= total) break;
    } while (true);
  }
  parts.back().record.set_more(false);
  parts.back().record.set_last(record.last());
  return parts;
}

}  // namespace

struct PutStream::Impl {
  QueueClient* const client;
  const Options options;
  rpc::Cancel cancel;
  std::thread thread;

  Mutex mu;
  CondVar changed;

  // `items` have no outcome yet, oldest first. On the current stream, the first `sent` of them are
  // sent, and of the next one the first `sent_parts` parts. `flights` are the messages that carry
  // them, as far as they are not acknowledged.
  // sent <= items.size(); sent_parts < items[sent].parts.size(), or 0 if there is no such item.
  std::deque<Item> items ABSL_GUARDED_BY(mu);
  size_t sent ABSL_GUARDED_BY(mu) = 0;
  size_t sent_parts ABSL_GUARDED_BY(mu) = 0;
  std::deque<Flight> flights ABSL_GUARDED_BY(mu);

  // The attachment of the current stream. Only the put thread uses it, but the reader thread frees
  // the memory of acknowledged messages.
  std::shared_ptr<Attachment> attachment;
  size_t in_flight_bytes ABSL_GUARDED_BY(mu) = 0;  // Sum over flights.
  size_t held_bytes ABSL_GUARDED_BY(mu) = 0;       // Sum over items.
  uint64_t first_seq ABSL_GUARDED_BY(mu) = 1;      // Sequence number of flights.front().

  // items_put counts the items ever taken; the callbacks of the first items_done of them have
  // returned. items_done <= items_put.
  uint64_t items_put ABSL_GUARDED_BY(mu) = 0;
  uint64_t items_done ABSL_GUARDED_BY(mu) = 0;

  bool broken ABSL_GUARDED_BY(mu) = false;  // The current stream has failed.
  bool stopped ABSL_GUARDED_BY(mu) = false;
  absl::Status end ABSL_GUARDED_BY(mu);  // Not OK: the stream has ended for good.

  // Called on the put thread.
  void Run();
  bool AwaitItems() ABSL_LOCKS_EXCLUDED(mu);
  absl::Status RunStream(bool* progress);
  bool AwaitSendable() ABSL_LOCKS_EXCLUDED(mu);
  absl::Status SendMessage(rpc::ClientStream* stream, uint64_t seq) ABSL_LOCKS_EXCLUDED(mu);
  Flight PackMessage(queue::v1::PutHeader* header, std::vector<rpc::PayloadSlice>* payload,
                     size_t* payload_bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void ClearFlights() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // Runs the callbacks. If `why` is not OK, every callback gets it as its outcome.
  void RunCallbacks(std::vector<Item> done, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu);
  void FailAll(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu);

  // Called on a stream's reader thread.
  absl::Status HandleAck(const queue::v1::PutAck& ack) ABSL_LOCKS_EXCLUDED(mu);
};

void PutStream::Impl::Run() {
  rpc::Backoff backoff(client->options().backoff);
  while (AwaitItems()) {
    bool progress = false;
    const absl::Status status = RunStream(&progress);
    if (cancel.triggered()) break;
    // A new stream would meet this error again.
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

// Opens a stream and sends everything that has no outcome, oldest first, until the stream breaks or
// is stopped. `*progress` says whether an acknowledgement came.
absl::Status PutStream::Impl::RunStream(bool* progress) {
  attachment = client->EnsureAttached();
  {
    MutexLock lock(&mu);
    sent = sent_parts = in_flight_bytes = 0;
    first_seq = 1;
    broken = false;
    if (!items.empty()) items.front().refused = {};  // All its parts are sent again.
  }

  rpc::ClientStream stream(client->channel(), *queue::v1::PutMessage::descriptor(), &cancel);
  absl::Status ack_error;
  std::thread reader([&] {
    for (queue::v1::PutAck ack; ack_error.ok() && stream.Read(&ack);) {
      ack_error = HandleAck(ack);
      *progress = true;
    }
    if (!ack_error.ok()) stream.TryCancel();  // The two sides no longer mean the same messages.
    MutexLock lock(&mu);
    broken = true;
    changed.NotifyAll();
  });

  absl::Status status;
  for (uint64_t seq = 1; status.ok() && AwaitSendable(); ++seq) status = SendMessage(&stream, seq);
  // A frame that is too large would be too large on the next stream too, so the error ends this
  // PutStream for good.
  const bool too_large = ReasonOf(status) == "TOO_LARGE";
  if (too_large) stream.TryCancel();
  {
    MutexLock lock(&mu);
    if (stopped) stream.TryCancel();
  }

  stream.WritesDone();
  reader.join();
  const absl::Status finished = stream.Finish();
  MutexLock lock(&mu);
  ClearFlights();
  if (!ack_error.ok()) return ack_error;
  return too_large ? absl::InternalError(status.message()) : finished;
}

bool PutStream::Impl::AwaitSendable() {
  MutexLock lock(&mu);
  while (!broken && !stopped && (sent == items.size() || in_flight_bytes >= options.window_bytes))
    changed.Wait(&mu);
  return !broken && !stopped;
}

// Frees the shared memory of the messages, which the next stream will use again. If the queue still
// reads this memory for the old stream, the CRCs no longer match, so nothing wrong is stored.
void PutStream::Impl::ClearFlights() {
  for (const Flight& flight : flights) {
    if (flight.shared) attachment->Free(*flight.shared);
  }
  flights.clear();
}

// Fills one message from what is not sent yet, and moves `sent` and `sent_parts` behind it.
Flight PutStream::Impl::PackMessage(queue::v1::PutHeader* header,
                                    std::vector<rpc::PayloadSlice>* payload,
                                    size_t* payload_bytes) {
  Flight flight;
  const size_t target = attachment == nullptr ? rpc::kTargetPayloadBytes : kTargetSharedBytes;
  size_t header_bytes = 0;
  while (sent < items.size() && flight.items < kMaxRecords) {
    const Item& item = items[sent];
    const Part& part = item.parts[sent_parts];
    header_bytes += part.header_bytes();
    // A message holds at least one part, even if that exceeds the targets.
    if (header->records_size() > 0 &&
        (header_bytes > kTargetHeaderBytes || *payload_bytes + part.payload_bytes > target))
      break;
    *header->add_records() = part.record;
    payload->insert(payload->end(), part.payload.begin(), part.payload.end());
    *payload_bytes += part.payload_bytes;
    flight.bytes += part.header_bytes() + part.payload_bytes;
    // A part with `more` ends its message: the rest of its item comes first in the next one.
    if (++sent_parts < item.parts.size()) {
      flight.more = true;
      break;
    }
    sent_parts = 0;
    ++sent;
    ++flight.items;
  }
  SLUICE_CHECK(sent == items.size() ? sent_parts == 0 : sent_parts < items[sent].parts.size());
  return flight;
}

absl::Status PutStream::Impl::SendMessage(rpc::ClientStream* stream, uint64_t seq) {
  queue::v1::PutHeader header;
  std::vector<rpc::PayloadSlice> payload;
  size_t payload_bytes = 0;
  header.set_seq(seq);
  if (seq == 1) {
    *header.mutable_call() = client->MakeCall();
    if (attachment != nullptr) header.set_session(attachment->session());
  }

  std::optional<shm::Slice> shared;
  {
    MutexLock lock(&mu);
    Flight flight = PackMessage(&header, &payload, &payload_bytes);
    // If the shared buffer is full, the bytes go in the message.
    if (attachment != nullptr && payload_bytes >= kLeastSharedBytes)
      flight.shared = attachment->Allocate(payload_bytes);
    shared = flight.shared;
    in_flight_bytes += flight.bytes;
    flights.push_back(flight);
  }

  if (!shared) return stream->WriteFrame(header, payload);

  char* to = attachment->at(*shared);
  for (const rpc::PayloadSlice& slice : payload) {
    std::memcpy(to, slice.bytes.data(), slice.bytes.size());
    to += slice.bytes.size();
  }
  SLUICE_FAILPOINT("queue_client.put.after_copy");
  return stream->WriteSharedFrame(header, {&*shared, 1});
}

// Handles the acknowledgement of the oldest message in flight. An error of this function ends the
// stream for good.
absl::Status PutStream::Impl::HandleAck(const queue::v1::PutAck& ack) {
  std::vector<Item> done;
  {
    MutexLock lock(&mu);
    if (flights.empty() || ack.seq() != first_seq) {
      return absl::InternalError(absl::StrCat("QueueService.Put: the queue acknowledged message ",
                                              ack.seq(), "; wanted ", first_seq));
    }

    const Flight flight = flights.front();
    flights.pop_front();
    if (flight.shared) attachment->Free(*flight.shared);
    ++first_seq;
    in_flight_bytes -= flight.bytes;
    for (const queue::v1::Failed& failed : ack.failed()) {
      // An index beyond the message is ignored, and only the first refusal of an item counts.
      if (failed.record() >= flight.items + flight.more) continue;
      PutOutcome& refused = items[failed.record()].refused;
      if (!refused.status.ok()) continue;
      refused = {Error(static_cast<absl::StatusCode>(failed.code()), failed.reason(),
                       absl::StrCat("QueueService.Put: ", failed.reason())),
                 failed.watermark()};
    }

    SLUICE_CHECK(flight.items <= sent && sent <= items.size());
    sent -= flight.items;
    for (size_t i = 0; i < flight.items; ++i) {
      held_bytes -= items.front().bytes;
      done.push_back(std::move(items.front()));
      items.pop_front();
    }
    changed.NotifyAll();
  }
  RunCallbacks(std::move(done), absl::OkStatus());
  return absl::OkStatus();
}

void PutStream::Impl::RunCallbacks(std::vector<Item> done, const absl::Status& why) {
  for (const Item& item : done) {
    if (item.done) item.done(why.ok() ? item.refused : PutOutcome{why, 0});
  }
  MutexLock lock(&mu);
  items_done += done.size();
  SLUICE_CHECK(items_done <= items_put);
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
  RunCallbacks(std::move(left), why);
}

PutStream::PutStream(QueueClient* client) : PutStream(client, Options()) {}

PutStream::PutStream(QueueClient* client, const Options& options)
    : impl_(new Impl{client, options}) {
  impl_->thread = std::thread([this] { impl_->Run(); });
}

PutStream::~PutStream() { Stop(); }

absl::Status PutStream::Put(common::v1::Record record, std::string payload, Done done) {
  std::vector<rpc::PayloadSlice> slices;
  if (!payload.empty()) {
    const auto owner = std::make_shared<const std::string>(std::move(payload));
    slices.push_back({*owner, owner});
  }
  return Put(std::move(record), std::move(slices), std::move(done));
}

absl::Status PutStream::Put(common::v1::Record record, std::vector<rpc::PayloadSlice> payload,
                            Done done) {
  size_t payload_bytes = 0, field_bytes = 0, largest = 0;
  for (const rpc::PayloadSlice& slice : payload) payload_bytes += slice.bytes.size();
  for (const common::v1::Field& field : record.fields()) {
    field_bytes += field.inline_().empty() ? field.bytes() : 0;
    largest = std::max(largest, field.ByteSizeLong());
  }

  if (payload_bytes != field_bytes) {
    return Error(absl::StatusCode::kInvalidArgument, "BAD_PAYLOAD",
                 absl::StrCat("the record's fields need ", field_bytes,
                              " bytes of payload, but there are ", payload_bytes));
  }

  const size_t header_bytes = record.ByteSizeLong();
  if (largest > rpc::kMaxHeaderBytes / 2) {
    return Error(absl::StatusCode::kInvalidArgument, "TOO_LARGE",
                 absl::StrCat("a field has ", largest, " bytes beside its payload; the limit is ",
                              rpc::kMaxHeaderBytes / 2));
  }

  Item item{.bytes = payload_bytes + header_bytes, .refused = {}, .done = std::move(done)};
  if (payload_bytes > rpc::kMaxPayloadBytes || header_bytes > kTargetHeaderBytes) {
    item.parts = CutRecord(record, std::move(payload));
  } else {
    item.parts.push_back({std::move(record), std::move(payload), payload_bytes});
  }

  const size_t bytes = item.bytes;
  MutexLock lock(&impl_->mu);
  if (!impl_->end.ok()) return impl_->end;
  if (impl_->stopped) return absl::CancelledError("the stream to the queue was stopped");
  if (impl_->held_bytes + bytes > impl_->options.buffer_bytes) {
    return Error(absl::StatusCode::kResourceExhausted, "BUFFER_FULL",
                 absl::StrCat("the queue has not acknowledged ", impl_->held_bytes,
                              " bytes; the limit is ", impl_->options.buffer_bytes,
                              ". Put the record again when others are acknowledged"));
  }

  impl_->held_bytes += bytes;
  impl_->items.push_back(std::move(item));
  ++impl_->items_put;
  impl_->changed.NotifyAll();
  return absl::OkStatus();
}

absl::Status PutStream::Flush(absl::Duration timeout) {
  const absl::Time until = absl::Now() + timeout;
  MutexLock lock(&impl_->mu);
  const uint64_t target = impl_->items_put;
  while (impl_->items_done < target) {
    const absl::Duration left = until - absl::Now();
    if (left <= absl::ZeroDuration()) {
      return absl::DeadlineExceededError(
          absl::StrCat("the queue has not acknowledged ", target - impl_->items_done, " records"));
    }
    impl_->changed.WaitFor(&impl_->mu, std::min(left, absl::Seconds(60)));
  }
  return impl_->end;
}

PutStream::Backlog PutStream::backlog() const {
  MutexLock lock(&impl_->mu);
  return {impl_->items.size(), impl_->held_bytes};
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
