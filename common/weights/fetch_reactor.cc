#include "common/weights/fetch_reactor.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/digest.h"
#include "common/base/status.h"
#include "common/rpc/convert.h"
#include "common/rpc/payload.h"
#include "common/rpc/status.h"
#include "common/weights/ucx_stage.h"

namespace sluice {
namespace {

// Small enough that a receiver on a slow link soon sees that something comes.
constexpr uint64_t kPiece = 256 << 10;
constexpr absl::Duration kLongestWait = absl::Seconds(30);
// Callers end their streams earlier.
constexpr absl::Duration kLongestHold = absl::Minutes(2);

}  // namespace

FetchReactor* FetchReactor::Refuse(const absl::Status& why) {
  const auto reactor = std::make_shared<FetchReactor>();
  reactor->self_ = reactor;
  reactor->EndStream(why);
  return reactor.get();
}

std::shared_ptr<FetchReactor> FetchReactor::Make(const weights::v1::FetchRequest& request,
                                                 std::shared_ptr<WeightSource> source,
                                                 UcxStage* stage) {
  auto reactor = std::make_shared<FetchReactor>();
  reactor->self_ = reactor;
  reactor->source_ = std::move(source);
  reactor->stage_ = stage;
  reactor->job_ = request.call().job().job();
  reactor->version_ = rpc::FromProto(request.version());
  const absl::Duration wait =
      request.has_wait() ? std::min(rpc::FromProto(request.wait()), kLongestWait) : kLongestWait;
  reactor->deadline_ = reactor->begun_ + wait;
  MutexLock lock(&reactor->mu_);
  for (int i = 0; i < request.objects_size(); ++i)
    reactor->wanted_.push_back({static_cast<uint32_t>(i), request.objects(i)});
  return reactor;
}

void FetchReactor::Start() {
  MutexLock lock(&mu_);
  WriteNext();
}

void FetchReactor::Wake() {
  MutexLock lock(&mu_);
  listens_ = false;
  WriteNext();
}

void FetchReactor::WriteNext() {
  if (writing_ || finished_) return;
  if (!has_current_ && !TakeNextObject()) {
    if (wanted_.empty()) {
      // The caller still reads what is held for it, and then ends the stream.
      if (holds_.empty()) FinishWith(absl::OkStatus());
      return;
    }
    parked_since_ = std::min(parked_since_, clock_->Monotonic());
    return;
  }
  WritePiece();
}

bool FetchReactor::TakeNextObject() {
  // Listen before looking, so that nothing that comes in between is overlooked.
  if (!listens_) {
    listens_ = true;
    source_->CallWhenChanged([weak = weak_from_this()] {
      if (const auto reactor = weak.lock()) reactor->Wake();
    });
  }
  const bool late = clock_->Monotonic() >= deadline_;
  for (auto it = wanted_.begin(); it != wanted_.end(); ++it) {
    WeightSource::Lookup found = source_->Find(it->range.id(), version_);
    if (found.object == nullptr && found.is_coming && !late) continue;
    current_ = std::move(found.object);
    current_wanted_ = std::move(*it);
    wanted_.erase(it);
    has_current_ = true;
    if (current_ == nullptr) return true;

    at_ = std::min<uint64_t>(current_wanted_.range.offset(), current_->size());
    const uint64_t rest = current_->size() - at_, length = current_wanted_.range.length();
    end_ = at_ + (length == 0 ? rest : std::min(length, rest));
    return true;
  }
  return false;
}

void FetchReactor::WritePiece() {
  weights::v1::FetchHeader header;
  header.set_index(current_wanted_.index);
  if (parked_since_ != absl::InfiniteDuration()) {
    *header.mutable_waited() = rpc::ToProto(clock_->Monotonic() - parked_since_);
    parked_since_ = absl::InfiniteDuration();
  }
  if (current_ == nullptr) {
    header.add_missing(current_wanted_.range.id());
    has_current_ = false;
    return Write(std::move(header), {});
  }
  if (current_wanted_.range.offset() > current_->size()) {
    return FinishWith(absl::InvalidArgumentError(
        absl::StrCat("objects[", current_wanted_.index, "].offset ", current_wanted_.range.offset(),
                     " is beyond the object's ", current_->size(), " bytes")));
  }

  if (stage_ != nullptr && at_ == 0 && end_ == current_->size() && WritePlace(&header)) return;
  // An empty range still gets one message, so that the caller learns the object's size.
  const absl::string_view piece =
      absl::string_view(*current_).substr(at_, std::min(end_ - at_, kPiece));
  header.set_offset(at_);
  header.set_size(current_->size());
  header.set_crc32c(Crc32c(piece));
  at_ += piece.size();
  has_current_ = at_ < end_;
  source_->OnSent(piece.size());
  Write(std::move(header), piece);
}

bool FetchReactor::WritePlace(weights::v1::FetchHeader* header) {
  std::optional<UcxStage::Staged> staged =
      stage_->Stage(job_, current_wanted_.range.id(), *current_, clock_->Monotonic());
  if (!staged.has_value()) return false;
  header->set_size(staged->place.bytes);
  header->mutable_place()->set_worker(std::move(staged->place.worker));
  header->mutable_place()->set_key(std::move(staged->place.key));
  header->mutable_place()->set_address(staged->place.address);
  holds_.push_back(std::move(staged->hold));
  has_current_ = false;
  source_->OnSent(header->size());
  Write(std::move(*header), {});
  return true;
}

void FetchReactor::Write(weights::v1::FetchHeader header, absl::string_view piece) {
  absl::StatusOr<grpc::ByteBuffer> frame =
      piece.empty() ? rpc::EncodeFrame(header, {})
                    : rpc::EncodeFrame(header, {{.bytes = piece, .owner = current_}});
  if (!frame.ok()) return FinishWith(frame.status());
  frame_ = *std::move(frame);
  writing_ = true;
  StartWrite(&frame_);
}

void FetchReactor::Beat() {
  MutexLock lock(&mu_);
  const absl::Duration now = clock_->Monotonic();
  if (!finished_ && !holds_.empty() && now >= begun_ + kLongestHold) {
    return FinishWith(absl::DeadlineExceededError(
        absl::StrCat("memory was held for ", absl::FormatDuration(now - begun_))));
  }
  if (writing_ || finished_ || parked_since_ == absl::InfiniteDuration()) return;
  if (now >= deadline_) return WriteNext();
  weights::v1::FetchHeader header;
  *header.mutable_waited() = rpc::ToProto(now - parked_since_);
  Write(std::move(header), {});
}

void FetchReactor::OnWriteDone(bool ok) {
  MutexLock lock(&mu_);
  writing_ = false;
  if (finished_) return Finish(final_);
  if (!ok) return FinishWith(absl::CancelledError("the caller is gone"));
  WriteNext();
}

void FetchReactor::EndStream(const absl::Status& status) {
  MutexLock lock(&mu_);
  if (!finished_) FinishWith(status);
}

// A write that is under way must end first; OnWriteDone() finishes then.
void FetchReactor::FinishWith(const absl::Status& status) {
  finished_ = true;
  final_ = rpc::ToGrpcStatus(status);
  if (!writing_) Finish(final_);
}

void FetchReactor::OnCancel() { EndStream(absl::CancelledError("cancelled")); }

void FetchReactor::OnDone() {
  if (on_done) on_done();
  self_.reset();
}

}  // namespace sluice
