#include "services/queue/streams.h"

#include <grpcpp/impl/codegen/proto_utils.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/failpoint.h"
#include "common/base/status.h"
#include "common/rpc/convert.h"
#include "common/rpc/payload.h"
#include "common/rpc/status.h"
#include "services/queue/convert.h"

namespace sluice::queue {
namespace {
constexpr size_t kAimHeaderBytes = 128 << 10;

template <typename Message>
grpc::ByteBuffer Encode(const Message& message) {
  grpc::ByteBuffer bytes;
  bool own = false;
  SLUICE_CHECK(grpc::SerializationTraits<Message>::Serialize(message, &bytes, &own).ok());
  return bytes;
}
}  // namespace

// Put. ----------------------------------------------------------------------------------------------------------------

void PutReactor::OnReadDone(bool ok) {
  if (!ok) return Finish(grpc::Status::OK);  // The writer is done, or gone.
  absl::StatusOr<v1::PutAck> ack = Store();
  if (!ack.ok()) return Finish(rpc::ToGrpcStatus(ack.status()));
  out_ = Encode(*ack);
  StartWrite(&out_);
}

void PutReactor::OnWriteDone(bool ok) {
  if (!ok) return Finish(grpc::Status(grpc::StatusCode::CANCELLED, "the writer is gone"));
  in_.Clear();
  StartRead(&in_);
}

absl::StatusOr<v1::PutAck> PutReactor::Store() {
  rpc::Frame frame;
  v1::PutHeader header;
  SLUICE_RETURN_IF_ERROR(rpc::DecodeFrame(in_, &frame));
  SLUICE_RETURN_IF_ERROR(frame.ParseHeader(&header));
  if (runner_ == nullptr) {
    SLUICE_ASSIGN_OR_RETURN(From from, FromProto(header.call()));
    SLUICE_ASSIGN_OR_RETURN(runner_, jobs_->Find(from.job));
    caller_ = std::move(from.caller);
  }
  SLUICE_ASSIGN_OR_RETURN(PutBatch batch, ReadRecords(header, frame, jobs_->arena()));
  std::vector<Failed> failed = std::move(batch.failed);
  absl::Status status;
  runner_->Run(caller_, Put{std::move(batch.records)}, [&](Reply reply) {
    if (const auto* error = std::get_if<absl::Status>(&reply)) {
      status = *error;
      return;
    }
    for (Failed& refused : std::get<PutAnswer>(reply).failed) {
      refused.record = batch.places[refused.record];
      failed.push_back(std::move(refused));
    }
  });
  SLUICE_RETURN_IF_ERROR(status);
  std::sort(failed.begin(), failed.end(), [](const Failed& a, const Failed& b) { return a.record < b.record; });
  v1::PutAck ack;
  ack.set_seq(header.seq());
  for (const Failed& refused : failed) {
    v1::Failed& to = *ack.add_failed();
    to.set_record(refused.record);
    to.set_code(static_cast<uint32_t>(refused.status.code()));
    to.set_reason(ReasonOf(refused.status));
    to.set_watermark(refused.watermark);
  }
  return ack;
}

// Get. ----------------------------------------------------------------------------------------------------------------

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

GetReactor::GetReactor(JobTable* jobs, const grpc::ByteBuffer& bytes) {
  v1::GetRequest request;
  grpc::ByteBuffer copy = bytes;  // Shares the slices; parsing empties it.
  absl::Status status;
  if (grpc::SerializationTraits<v1::GetRequest>::Deserialize(&copy, &request).ok()) {
    absl::StatusOr<std::deque<grpc::ByteBuffer>> frames = ReadFrames(jobs, request);
    status = frames.status();
    if (frames.ok()) frames_ = *std::move(frames);
  } else {
    status = absl::InvalidArgumentError("not a GetRequest");
  }
  end_ = rpc::ToGrpcStatus(status);
  Next();
}

void GetReactor::Next() {
  if (frames_.empty()) return Finish(end_);
  StartWrite(&frames_.front());
}

void GetReactor::OnWriteDone(bool ok) {
  if (!ok) return Finish(grpc::Status(grpc::StatusCode::CANCELLED, "the reader is gone"));
  frames_.pop_front();
  Next();
}

// Watch. --------------------------------------------------------------------------------------------------------------

std::shared_ptr<WatchReactor> WatchReactor::Make() {
  auto reactor = std::make_shared<WatchReactor>();
  reactor->self_ = reactor;
  return reactor;
}

void WatchReactor::Follow(std::shared_ptr<JobRunner> runner, Caller caller, std::function<void()> ended) {
  runner_ = std::move(runner);
  caller_ = std::move(caller);
  ended_ = std::move(ended);
  queue_incarnation_ = runner_->queue_incarnation();
  const std::weak_ptr<WatchReactor> weak = weak_from_this();
  watcher_ = runner_->AddWatcher([weak](const WatchUpdate& update) {
    if (const auto reactor = weak.lock()) reactor->Take(update);
  });
}

void WatchReactor::Take(const WatchUpdate& update) {
  MutexLock lock(&mu_);
  if (update.state) {
    pending_.set_trainer(update.state->trainer);
    pending_.set_version(update.state->version);
    pending_.set_end(update.state->end);
    pending_.set_phase(static_cast<v1::Phase>(update.state->phase));
    pending_.clear_published();
    for (const Loaded& loaded : update.state->published) ToProto(loaded, pending_.add_published());
  }
  bool news = update.state.has_value();
  for (const CancelHint& hint : update.cancel) {
    if (hint.worker != caller_.worker) continue;
    ToProto(hint.ref, pending_.add_cancel()->mutable_ref());
    pending_.mutable_cancel(pending_.cancel_size() - 1)->set_reason(hint.reason);
    news = true;
  }
  for (const Alarm& alarm : update.alarms) {
    common::v1::Event& event = *pending_.add_alarms();
    event.set_seq(update.sequence);
    event.set_severity(common::v1::SEVERITY_ALARM);
    event.set_code(alarm.code);
    event.set_message(alarm.message);
    news = true;
  }
  if (!news) return;
  pending_.set_queue_incarnation(queue_incarnation_);
  has_pending_ = true;
  WriteNext();
}

void WatchReactor::Beat() {
  MutexLock lock(&mu_);
  if (writing_ || has_pending_ || finished_) return;
  pending_.Clear();
  has_pending_ = true;
  WriteNext();
}

void WatchReactor::WriteNext() {
  if (writing_ || finished_ || !has_pending_) return;
  current_.Swap(&pending_);
  pending_.Clear();
  has_pending_ = false;
  writing_ = true;
  StartWrite(&current_);
}

void WatchReactor::OnWriteDone(bool ok) {
  MutexLock lock(&mu_);
  writing_ = false;
  if (finished_) return Finish(final_);
  if (!ok) {
    finished_ = true;
    return Finish(grpc::Status(grpc::StatusCode::CANCELLED, "the watcher is gone"));
  }
  WriteNext();
}

void WatchReactor::End(grpc::Status status) {
  MutexLock lock(&mu_);
  if (finished_) return;
  finished_ = true;
  if (!writing_) Finish(status);
  final_ = std::move(status);
}

void WatchReactor::OnDone() {
  if (runner_ != nullptr) runner_->RemoveWatcher(watcher_);
  if (ended_) ended_();
  self_.reset();
}

}  // namespace sluice::queue
