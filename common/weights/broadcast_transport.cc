#include "common/weights/broadcast_transport.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/collective/remote_rendezvous.h"
#include "common/rpc/cancel.h"
#include "common/rpc/client.h"
#include "common/rpc/convert.h"
#include "sluice/weights/v1/weights.pb.h"

namespace sluice {
namespace {

// A rank has two buffers of the size of a bucket.
constexpr uint64_t kMostBucketBytes = 64 << 20;

// The trainer broadcasts nothing, or no longer has the version.
bool IsDeclined(const absl::Status& status) {
  return absl::IsFailedPrecondition(status) || absl::IsNotFound(status);
}

FetchEnd FaultOf(absl::Status status) {
  const HolderFault fault = absl::IsDataLoss(status)           ? HolderFault::kLied
                            : absl::IsDeadlineExceeded(status) ? HolderFault::kSilent
                                                               : HolderFault::kGone;
  return {std::move(status), fault};
}

}  // namespace

BroadcastTransport::BroadcastTransport(std::shared_ptr<const rpc::Channel> trainer,
                                       WeightCaller caller, BroadcastOptions options)
    : trainer_(std::move(trainer)), caller_(std::move(caller)), options_(std::move(options)) {}
BroadcastTransport::~BroadcastTransport() = default;

FetchEnd BroadcastTransport::Fetch(const FetchTerms& terms, WantedObjects* wanted) {
  FetchEnd end;
  if (terms.whole != nullptr && terms.whole->manifest != manifest_) {
    if (absl::Status joined = Join(terms); !joined.ok()) {
      end = FaultOf(std::move(joined));
      group_.reset();
      manifest_.clear();
    }
  }
  if (terms.whole != nullptr && group_ != nullptr) {
    int64_t callback = 0;
    if (terms.cancel != nullptr)
      callback = terms.cancel->AddCallback([group = group_.get()] { group->Abort(); });
    end = TakePart(terms, wanted);
    if (terms.cancel != nullptr) terms.cancel->RemoveCallback(callback);
    if (!end.status.ok() || next_ == terms.whole->ids.size()) group_.reset();
  }
  if (terms.cancel != nullptr && terms.cancel->triggered())
    return {absl::CancelledError("the fetch was cancelled"), {}};
  if (!end.status.ok()) return end;

  for (size_t i = 0; i < wanted->ids().size(); ++i) {
    if (wanted->is_open(i)) wanted->AddMissing(i);
  }
  return {wanted->CheckMissing(terms.name), std::nullopt};
}

absl::Status BroadcastTransport::Join(const FetchTerms& terms) {
  const WholeVersion& whole = *terms.whole;
  manifest_ = whole.manifest;
  group_.reset();
  missing_.clear();
  next_ = 0;
  bucket_ = {};

  weights::v1::JoinBroadcastRequest request;
  *request.mutable_call() = MakeCall(caller_);
  request.set_manifest(whole.manifest);
  *request.mutable_wait() = rpc::ToProto(options_.wait);
  weights::v1::JoinBroadcastResponse seat;
  const absl::Duration limit = terms.patience * terms.history->limits().silent;
  const absl::Duration deadline = options_.wait + limit;
  const absl::Status joined =
      rpc::Call(*trainer_, request, &seat,
                {.deadline = deadline, .give_up = deadline, .cancel = terms.cancel});
  if (IsDeclined(joined)) return absl::OkStatus();
  SLUICE_RETURN_IF_ERROR(joined);
  if (seat.group().empty()) return absl::OkStatus();

  if (seat.bucket_bytes() == 0 || seat.bucket_bytes() > kMostBucketBytes) {
    return absl::DataLossError(absl::StrCat("the trainer broadcasts pieces of ",
                                            seat.bucket_bytes(), " bytes; the limit is ",
                                            kMostBucketBytes));
  }
  missing_.insert(seat.missing().begin(), seat.missing().end());
  uint64_t bytes = 0;
  for (size_t i = 0; i < whole.ids.size(); ++i) bytes += missing_.contains(i) ? 0 : whole.bytes[i];

  rpc::Cancel never;
  RemoteRendezvous rendezvous(trainer_,
                              {.job = caller_.job,
                               .worker = caller_.worker,
                               .incarnation = caller_.incarnation,
                               .group = seat.group(),
                               .give_up = limit,
                               .cancel = terms.cancel == nullptr ? &never : terms.cancel});
  SLUICE_ASSIGN_OR_RETURN(group_, options_.join({.rank = static_cast<int>(seat.rank()),
                                                 .world = static_cast<int>(seat.world()),
                                                 .host = options_.host,
                                                 .ports = options_.ports,
                                                 .timeout = limit,
                                                 .meet = limit,
                                                 .connect = limit},
                                                &rendezvous));
  return group_->StartStream(bytes, seat.bucket_bytes());
}

FetchEnd BroadcastTransport::TakePart(const FetchTerms& terms, WantedObjects* wanted) {
  const WholeVersion& whole = *terms.whole;
  // An object that occurs twice in the manifest comes twice.
  std::multimap<absl::string_view, size_t> open;
  for (size_t i = 0; i < wanted->ids().size(); ++i) {
    if (wanted->is_open(i)) open.emplace(wanted->ids()[i], i);
  }
  for (; next_ < whole.end; ++next_) {
    if (missing_.contains(next_)) continue;
    const absl::StatusOr<absl::string_view> object = Read(whole.bytes[next_], wanted);
    if (!object.ok()) return FaultOf(object.status());
    const auto found = open.find(whole.ids[next_]);
    if (found == open.end()) continue;  // It was here already.
    const size_t index = found->second;
    open.erase(found);
    if (absl::Status taken = wanted->Take(index, *object); !taken.ok())
      return {std::move(taken), HolderFault::kLied};
  }
  // At the end the last bucket must leave this rank, for those behind it.
  if (next_ == whole.ids.size()) (void)group_->NextBucket();
  return {};
}

absl::StatusOr<absl::string_view> BroadcastTransport::Read(uint64_t bytes, WantedObjects* wanted) {
  const auto take = [&](uint64_t count) {
    const absl::string_view taken(bucket_.data(), count);
    bucket_.remove_prefix(count);
    return taken;
  };
  if (bytes <= bucket_.size()) return take(bytes);

  object_.clear();
  while (object_.size() < bytes) {
    if (bucket_.empty()) {
      SLUICE_ASSIGN_OR_RETURN(bucket_, group_->NextBucket());
      wanted->AddReceived(bucket_.size());
    }
    absl::StrAppend(&object_, take(std::min<uint64_t>(bytes - object_.size(), bucket_.size())));
  }
  return object_;
}

}  // namespace sluice
