#include "services/queue/streams.h"

#include <algorithm>

#include "common/base/status.h"
#include "common/rpc/buffer.h"
#include "common/rpc/convert.h"
#include "common/rpc/payload.h"
#include "services/queue/convert.h"

namespace sluice::queue {
namespace {
constexpr size_t kAimHeaderBytes = 128 << 10;
}  // namespace

void PutStream::Received(grpc::ByteBuffer& message) {
  if (absl::Status status = Store(message); !status.ok()) End(status);
}

void PutStream::ReadsDone() {
  bool end = false;
  {
    MutexLock lock(&mu_);
    reads_done_ = true;
    end = stored_ == 0;
  }
  if (end) End(absl::OkStatus());
}

absl::Status PutStream::Store(const grpc::ByteBuffer& message) {
  rpc::Frame frame;
  v1::PutHeader header;
  SLUICE_RETURN_IF_ERROR(rpc::DecodeFrame(message, &frame));
  SLUICE_RETURN_IF_ERROR(frame.ParseHeader(&header));
  if (runner_ == nullptr) {
    SLUICE_ASSIGN_OR_RETURN(From from, FromProto(header.call()));
    SLUICE_ASSIGN_OR_RETURN(runner_, jobs_->Find(from.job));
    caller_ = std::move(from.caller);
  }
  SLUICE_ASSIGN_OR_RETURN(PutBatch batch, ReadRecords(header, frame, runner_->arena()));
  {
    MutexLock lock(&mu_);
    ++stored_;
  }
  runner_->Run(caller_, Put{std::move(batch.records)},
               [self = shared_from_this(), seq = header.seq(), places = std::move(batch.places), failed = std::move(batch.failed)](Reply reply) mutable {
                 self->Stored(seq, places, std::move(failed), std::move(reply));
               });
  return absl::OkStatus();
}

// In the order of the messages: a job's answers go out in the order of its events.
void PutStream::Stored(uint64_t seq, const std::vector<uint32_t>& places, std::vector<Failed> failed, Reply reply) {
  if (const auto* error = std::get_if<absl::Status>(&reply)) return End(*error);
  for (Failed& refused : std::get<PutAnswer>(reply).failed) {
    refused.record = places[refused.record];
    failed.push_back(std::move(refused));
  }
  std::sort(failed.begin(), failed.end(), [](const Failed& a, const Failed& b) { return a.record < b.record; });
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
    end = --stored_ == 0 && reads_done_;
  }
  if (end) End(absl::OkStatus());
}

absl::StatusOr<std::deque<grpc::ByteBuffer>> ReadFrames(JobTable* jobs, const v1::GetRequest& request) {
  SLUICE_ASSIGN_OR_RETURN(const From from, FromProto(request.call()));
  SLUICE_ASSIGN_OR_RETURN(const std::shared_ptr<JobRunner> runner, jobs->Find(from.job));
  Id16 lease;
  const bool controller = request.lease().empty() && from.caller.incarnation == 0;
  if (!controller) {
    SLUICE_ASSIGN_OR_RETURN(lease, Id16::FromBytes(request.lease()));
  }
  std::vector<Want> wants;
  for (const common::v1::Want& want : request.wants()) {
    SLUICE_ASSIGN_OR_RETURN(wants.emplace_back(), FromProto(want));
  }
  SLUICE_ASSIGN_OR_RETURN(const ReadAnswer answer, runner->Look([&](const Job& job, Instant) { return job.Read(from.caller, controller, lease, wants); }));

  std::deque<grpc::ByteBuffer> frames;
  v1::GetHeader header;
  std::vector<rpc::PayloadSlice> payload;
  size_t header_bytes = 0, payload_bytes = 0;
  const auto flush = [&]() -> absl::Status {
    SLUICE_ASSIGN_OR_RETURN(grpc::ByteBuffer frame, rpc::EncodeFrame(header, payload));
    frames.push_back(std::move(frame));
    header.Clear();
    payload.clear();
    header_bytes = payload_bytes = 0;
    return absl::OkStatus();
  };
  for (const Record& record : answer.records) {
    common::v1::Record message;
    std::vector<rpc::PayloadSlice> slices;
    ToProto(record, &message, &slices);
    size_t bytes = 0;
    for (const rpc::PayloadSlice& slice : slices) bytes += slice.bytes.size();
    const size_t message_bytes = message.ByteSizeLong() + 4;
    const bool full = header_bytes + message_bytes > kAimHeaderBytes || payload_bytes + bytes > rpc::kAimPayloadBytes;
    if (header.records_size() > 0 && full) SLUICE_RETURN_IF_ERROR(flush());
    header_bytes += message_bytes;
    payload_bytes += bytes;
    *header.add_records() = std::move(message);
    payload.insert(payload.end(), slices.begin(), slices.end());
  }
  for (const Want& want : answer.missing) ToProto(want, header.add_missing());
  header.set_end(true);
  SLUICE_RETURN_IF_ERROR(flush());
  return frames;
}

void WatchStream::Follow(const std::shared_ptr<WatchStream>& stream, std::shared_ptr<JobRunner> runner, Caller caller, std::function<void()> closed) {
  stream->runner_ = std::move(runner);
  stream->caller_ = std::move(caller);
  stream->closed_ = std::move(closed);
  stream->watcher_ = stream->runner_->AddWatcher([weak = std::weak_ptr<WatchStream>(stream)](const WatchUpdate& update) {
    if (const auto alive = weak.lock()) alive->Take(update);
  });
}

void WatchStream::Take(const WatchUpdate& update) {
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
    event.set_severity(common::v1::SEVERITY_ALARM);
    event.set_code(alarm.code);
    event.set_message(alarm.message);
    news = true;
  }
  if (!news) return;
  next_.set_queue_incarnation(queue_incarnation_);
  news_ = true;
  if (pending() == 0) Flush();
}

void WatchStream::Beat() {
  MutexLock lock(&mu_);
  if (pending() == 0) Flush();
}

void WatchStream::Flush() {
  Send(std::move(next_));
  next_ = v1::WatchResponse();
  news_ = false;
}

void WatchStream::Sent() {
  MutexLock lock(&mu_);
  if (news_ && pending() == 0) Flush();
}

void WatchStream::Closed() {
  if (runner_ != nullptr) runner_->RemoveWatcher(watcher_);
  if (closed_) closed_();
}

}  // namespace sluice::queue
