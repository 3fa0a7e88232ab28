#include "services/queue/get_stream.h"

#include <grpcpp/server_context.h>

#include <algorithm>
#include <utility>

#include "common/base/digest.h"
#include "common/base/status.h"
#include "services/queue/convert.h"

namespace sluice::queue {
namespace {
// A message is sent once its header, or its payload in shared memory, has this size.
constexpr size_t kTargetHeaderBytes = 128 << 10;
constexpr size_t kTargetSharedBytes = 4 << 20;
// With less payload than this, sending the bytes costs less than sharing them.
constexpr size_t kLeastSharedBytes = 64 << 10;
}  // namespace

// A message under construction. Its payload is either entirely in shared memory or entirely in the
// message.
struct GetStream::Message {
  bool may_share = false;
  v1::GetHeader header;
  std::vector<rpc::PayloadSlice> payload;
  std::vector<shm::Slice> shared;
  size_t header_bytes = 0, payload_bytes = 0;

  bool sharing() const { return may_share && (payload.empty() || !shared.empty()); }
  size_t max_bytes() const { return sharing() ? rpc::kMaxSharedBytes : rpc::kMaxPayloadBytes; }
  bool full() const {
    return header_bytes >= kTargetHeaderBytes ||
           payload_bytes >= (sharing() ? kTargetSharedBytes : rpc::kTargetPayloadBytes);
  }
  absl::StatusOr<grpc::ByteBuffer> Encode() const {
    return shared.empty() || payload_bytes < kLeastSharedBytes
               ? rpc::EncodeFrame(header, payload)
               : rpc::EncodeSharedFrame(header, shared);
  }
};

void GetStream::Start(Request request) {
  request_ = std::move(request);
  {
    MutexLock lock(&mu_);
    progress_ = clock_->Monotonic();
  }
  Fill();
}

void GetStream::OnSent() {
  {
    MutexLock lock(&mu_);
    progress_ = clock_->Monotonic();
  }
  Fill();
}

void GetStream::OnClosed() {
  MutexLock lock(&mu_);
  context_ = nullptr;
}

void GetStream::CutIfStuck() {
  MutexLock lock(&mu_);
  if (context_ != nullptr && pending() > 0 && clock_->Monotonic() - progress_ > kPatience)
    context_->TryCancel();
}

// Makes messages while there is room for them. Only one thread at a time makes messages; a call
// from another thread makes that thread look for room once more.
void GetStream::Fill() {
  {
    MutexLock lock(&mu_);
    again_ = true;
    if (filling_) return;
    filling_ = true;
  }

  while (true) {
    while (!done_ && pending() < kInFlight) {
      absl::StatusOr<std::optional<grpc::ByteBuffer>> message = MakeMessage();
      done_ = !message.ok() || !message->has_value();
      if (done_) {
        End(message.status());
      } else if (!Send(**std::move(message))) {
        done_ = true;  // The reader has left.
      }
    }
    MutexLock lock(&mu_);
    if (!std::exchange(again_, false)) {
      filling_ = false;
      return;
    }
  }
}

absl::Status GetStream::ReadWant() {
  const std::vector<Want> want = {request_.wants[next_want_++]};
  SLUICE_ASSIGN_OR_RETURN(ReadAnswer answer, request_.runner->ReadJob([&](const Job& job, Instant) {
    return job.Read(request_.caller, request_.controller, request_.lease, want);
  }));
  records_ = std::move(answer.records);
  record_ = field_ = 0;
  missing_.insert(missing_.end(), answer.missing.begin(), answer.missing.end());
  return absl::OkStatus();
}

absl::StatusOr<std::optional<grpc::ByteBuffer>> GetStream::MakeMessage() {
  if (record_ == records_.size() && next_want_ > request_.wants.size()) return std::nullopt;
  Message message{.may_share = request_.shared};
  bool room = true;
  while (room) {
    while (record_ < records_.size() && room) {
      room = AddRecord(&message);
      if (room) ++record_;
    }
    if (!room || message.full()) break;
    if (next_want_ < request_.wants.size()) {
      SLUICE_RETURN_IF_ERROR(ReadWant());
      continue;
    }
    if (next_want_++ == request_.wants.size()) {
      for (const Want& want : missing_) ToProto(want, message.header.add_missing());
      message.header.set_end(true);
    }
    break;
  }
  SLUICE_ASSIGN_OR_RETURN(grpc::ByteBuffer frame, message.Encode());
  return frame;
}

bool GetStream::AddRecord(Message* message) {
  if (message->full()) return false;
  const Record& record = records_[record_];
  common::v1::Record* const out = message->header.add_records();
  ToProto(record, out);
  message->header_bytes += out->ByteSizeLong() + 4;

  const size_t began = field_;
  const uint64_t began_at = from_;
  // A record may fill a message before its first field is added (a piece with very many version
  // runs). If it is the first record of its message, one field is added all the same; otherwise no
  // message would ever get further.
  const bool first = message->header.records_size() == 1;
  for (; field_ < record.fields.size(); ++field_, from_ = 0) {
    const bool must_fit = first && field_ == began && from_ == began_at;
    if ((message->full() && !must_fit) || !AddField(record.fields[field_], message)) {
      if (field_ == began && from_ == began_at) {
        message->header.mutable_records()->RemoveLast();  // Nothing of the record found room.
      } else {
        out->set_more(true);
      }
      return false;
    }
  }
  field_ = 0;
  return true;
}

// Adds the field, or as much of it as fits into the message. Returns false if the message is full;
// from_ then says how much was added.
bool GetStream::AddField(const Field& field, Message* message) {
  common::v1::Record& record = *message->header.mutable_records(message->header.records_size() - 1);

  // Fields of up to 64 bytes are inline.
  const bool in_place = field.bytes.size <= 64;
  const std::optional<shm::Slice> slice = in_place || !message->sharing()
                                              ? std::nullopt
                                              : Arena::SliceOf(field.bytes.data, field.bytes.size);

  // This field is not in shared memory (it came from the heap), so the whole message must carry its
  // payload.
  if (!in_place && message->sharing() && !slice) {
    if (message->payload_bytes > 0) return false;
    message->may_share = false;
  }

  const uint64_t left = field.bytes.size - from_,
                 room = message->max_bytes() - message->payload_bytes;
  // If the rest of the field fits into the next message as a whole, it is not cut.
  if (!in_place && left > room && left <= message->max_bytes() && message->payload_bytes > 0)
    return false;

  const uint64_t take = in_place ? left : std::min(left, room);
  common::v1::Field* const out = record.add_fields();
  ToProto(field, out);
  if (take < field.bytes.size) {
    out->set_from(from_);
    out->set_total(field.bytes.size);
    out->set_bytes(take);
    out->set_crc32c(Crc32c(field.bytes.view().substr(from_, take)));
  }

  message->header_bytes += out->ByteSizeLong() + 4;
  if (in_place || take == 0) return true;
  message->payload.push_back(
      {.bytes = field.bytes.view().substr(from_, take), .owner = field.bytes.data});
  if (slice)
    message->shared.push_back(
        {slice->segment, slice->block, slice->offset + from_, take, slice->generation});
  message->payload_bytes += take;
  from_ += take;
  return from_ == field.bytes.size;
}

}  // namespace sluice::queue
