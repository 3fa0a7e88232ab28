#include "services/queue/streams.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/rpc/buffer.h"
#include "common/rpc/convert.h"
#include "common/rpc/payload.h"
#include "common/rpc/text.h"
#include "services/queue/convert.h"

namespace sluice::queue {

void PutStream::OnMessage(grpc::ByteBuffer& message) {
  if (absl::Status status = StoreMessage(message); !status.ok()) End(std::move(status));
}

void PutStream::OnReadsDone() {
  bool end = false;
  {
    MutexLock lock(&mu_);
    reads_done_ = true;
    end = storing_ == 0;
  }
  if (end) End(absl::OkStatus());
}

absl::Status PutStream::Open(const v1::PutHeader& header) {
  SLUICE_ASSIGN_OR_RETURN(From from, ReadCaller(*context_, header.call()));
  SLUICE_ASSIGN_OR_RETURN(std::shared_ptr<JobRunner> runner, jobs_->Find(from.job));
  SLUICE_RETURN_IF_ERROR(runner->CheckWasListed(from.caller));
  if (!header.session().empty()) {
    session_ = attached_->Find(header.session(), from.job, from.caller);
    // The client's connection to the socket has broken. It must open the stream again, with another
    // session or without one.
    if (session_ == nullptr)
      return Error(absl::StatusCode::kUnavailable, "NO_SESSION",
                   "the client is not attached to the queue's memory; attach again");
  }
  reader_ = std::make_unique<RecordReader>(
      runner->arena(),
      runner->ReadJob([](const Job& job, Instant) { return job.spec().member_bytes(); }));
  caller_ = std::move(from.caller);
  runner_ = std::move(runner);
  return absl::OkStatus();
}

absl::Status PutStream::ResolveSlices(rpc::Frame* frame) const {
  std::vector<absl::string_view> views;
  for (const shm::Slice& slice : frame->shared()) {
    if (session_ == nullptr || slice.segment != 0 ||
        !session_->buffer.Contains(slice.offset, slice.length)) {
      return Error(absl::StatusCode::kInvalidArgument, "BAD_SLICE",
                   absl::StrCat("shared memory: ", slice.length, " bytes at ", slice.offset,
                                " of segment ", slice.segment, " are not in the client's buffer"));
    }
    views.emplace_back(session_->buffer.data() + slice.offset, slice.length);
  }
  frame->Resolve(std::move(views), session_);
  return absl::OkStatus();
}

absl::Status PutStream::StoreMessage(const grpc::ByteBuffer& message) {
  rpc::Frame frame;
  v1::PutHeader header;
  SLUICE_RETURN_IF_ERROR(rpc::DecodeFrame(message, &frame));
  SLUICE_RETURN_IF_ERROR(frame.ParseHeader(&header));
  if (runner_ == nullptr) SLUICE_RETURN_IF_ERROR(Open(header));
  if (!frame.shared().empty()) SLUICE_RETURN_IF_ERROR(ResolveSlices(&frame));

  const uint64_t bytes = frame.payload_bytes() + frame.header().size();
  {
    MutexLock lock(&mu_);
    if (storing_bytes_ + bytes > kWindowBytes) {
      return Error(absl::StatusCode::kResourceExhausted, "WINDOW",
                   absl::StrCat("more than ", kWindowBytes,
                                " bytes of the stream are unacknowledged; wait for acks"));
    }
    ++storing_;
    storing_bytes_ += bytes;
  }
  SLUICE_ASSIGN_OR_RETURN(PutBatch batch, reader_->Read(header, frame));
  Put put{std::move(batch.records)};

  // Run the Put even if no record is to be stored, because acks come in the order of messages.
  runner_->Run(caller_, std::move(put),
               [self = shared_from_this(), batch = std::move(batch), seq = header.seq(),
                bytes](Reply reply) { self->Acknowledge(seq, bytes, batch, std::move(reply)); });
  return absl::OkStatus();
}

// Called in the order of the messages, because a job's answers go out in the order of its events.
void PutStream::Acknowledge(uint64_t seq, uint64_t bytes, const PutBatch& batch, Reply reply) {
  if (const auto* error = std::get_if<absl::Status>(&reply)) return End(*error);
  std::vector<Failed> failed = batch.failed;
  for (Failed& refused : std::get<PutAnswer>(reply).failed) {
    refused.record = batch.places[refused.record];
    failed.push_back(std::move(refused));
  }
  std::sort(failed.begin(), failed.end(),
            [](const Failed& a, const Failed& b) { return a.record < b.record; });

  v1::PutAck ack;
  ack.set_seq(seq);
  for (const Failed& refused : failed) {
    v1::Failed& to = *ack.add_failed();
    to.set_record(refused.record);
    to.set_code(static_cast<uint32_t>(refused.status.code()));
    to.set_reason(ReasonOf(refused.status));
    to.set_watermark(refused.watermark);
  }
  Send(rpc::ToBuffer(ack));
  bool end = false;
  {
    MutexLock lock(&mu_);
    storing_bytes_ -= bytes;
    end = --storing_ == 0 && reads_done_;
  }
  if (end) End(absl::OkStatus());
}

void WatchStream::Follow(const std::shared_ptr<WatchStream>& stream,
                         std::shared_ptr<JobRunner> runner, Caller caller,
                         std::function<void()> closed) {
  stream->runner_ = std::move(runner);
  stream->caller_ = std::move(caller);
  stream->closed_ = std::move(closed);
  stream->watcher_ = stream->runner_->AddWatcher(
      [weak = std::weak_ptr<WatchStream>(stream)](const WatchUpdate& update) {
        if (const auto alive = weak.lock()) alive->AddUpdate(update);
      });
}

void WatchStream::AddUpdate(const WatchUpdate& update) {
  MutexLock lock(&mu_);
  if (update.state) {
    queue_incarnation_ = update.state->queue_incarnation;
    next_.set_trainer(update.state->trainer);
    next_.set_version(update.state->version);
    next_.set_end(update.state->end);
    next_.set_phase(static_cast<v1::Phase>(update.state->phase));
    next_.clear_published();
    for (const Loaded& loaded : update.state->published) ToProto(loaded, next_.add_published());
  }

  bool news = update.state.has_value();
  for (const CancelHint& hint : update.cancel) {
    if (hint.worker != caller_.worker) continue;
    ToProto(hint.ref, next_.add_cancel()->mutable_ref());
    next_.mutable_cancel(next_.cancel_size() - 1)->set_reason(hint.reason);
    news = true;
  }
  for (const Alarm& alarm : update.alarms) {
    common::v1::Event& event = *next_.add_alarms();
    event.set_seq(update.sequence);
    event.set_severity(alarm.is_news ? common::v1::SEVERITY_INFO : common::v1::SEVERITY_ALARM);
    event.set_code(alarm.code);
    event.set_message(alarm.message);
    news = true;
  }

  if (!news) return;
  next_.set_queue_incarnation(queue_incarnation_);
  news_ = true;
  if (pending() == 0) Flush();
}

void WatchStream::SendHeartbeat() {
  MutexLock lock(&mu_);
  if (pending() == 0) Flush();
}

void WatchStream::Flush() {
  rpc::MakeTextValid(&next_);
  Send(std::move(next_));
  next_ = v1::WatchResponse();
  news_ = false;
}

void WatchStream::OnSent() {
  MutexLock lock(&mu_);
  if (news_ && pending() == 0) Flush();
}

void WatchStream::OnClosed() {
  if (runner_ != nullptr) runner_->RemoveWatcher(watcher_);
  if (closed_) closed_();
}

}  // namespace sluice::queue
