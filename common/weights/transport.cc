#include "common/weights/transport.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/digest.h"
#include "common/base/id.h"
#include "common/base/status.h"
#include "sluice/common/v1/common.pb.h"

namespace sluice {

common::v1::Call MakeCall(const WeightCaller& caller) {
  common::v1::Call call;
  call.mutable_job()->set_job(caller.job);
  call.mutable_job()->set_worker(caller.worker);
  call.mutable_job()->set_incarnation(caller.incarnation);
  return call;
}

std::string ShortObjectId(const std::string& id) { return ToHex(id).substr(0, 16); }

WantedObjects::WantedObjects(absl::Span<const std::string> ids, Taker taker,
                             std::function<void(uint64_t bytes)> on_progress)
    : ids_(ids),
      taker_(std::move(taker)),
      on_progress_(std::move(on_progress)),
      open_(ids.size(), true),
      arrived_(ids.size(), false),
      left_(ids.size()) {}

const std::string& WantedObjects::first_open() const {
  SLUICE_CHECK(left_ > 0);
  return ids_[static_cast<size_t>(std::find(open_.begin(), open_.end(), true) - open_.begin())];
}

void WantedObjects::Close(size_t index) {
  SLUICE_CHECK(open_[index] && left_ > 0);
  open_[index] = false;
  --left_;
}

absl::Status WantedObjects::Take(size_t index, absl::string_view object) {
  const std::string& id = ids_[index];
  if (Sha256(object) != id) {
    return Error(absl::StatusCode::kDataLoss, "BAD_DIGEST",
                 absl::StrCat("object ", ShortObjectId(id), " has another SHA-256 than its id"));
  }
  Close(index);
  arrived_[index] = true;
  absl::Status taken = taker_(id, object);
  taker_failed_ |= !taken.ok();
  return taken;
}

void WantedObjects::AddMissing(size_t index) {
  Close(index);
  if (!missing_.has_value()) missing_ = index;
}

std::vector<std::string> WantedObjects::ListNotArrived() const {
  std::vector<std::string> ids;
  for (size_t i = 0; i < ids_.size(); ++i) {
    if (!arrived_[i]) ids.push_back(ids_[i]);
  }
  return ids;
}

absl::Status WantedObjects::CheckMissing(absl::string_view holder) const {
  if (!missing_.has_value()) return absl::OkStatus();
  return absl::NotFoundError(
      absl::StrCat(holder, " does not have object ", ShortObjectId(ids_[*missing_])));
}

absl::Status Transport::List(weights::v1::ListResponse*) {
  return absl::UnimplementedError(
      absl::StrCat("the transport ", caps().name, " lists no versions"));
}

absl::Status Transport::Call(const google::protobuf::Message&, google::protobuf::Message*,
                             const rpc::CallOptions&) {
  return absl::UnimplementedError(absl::StrCat("the transport ", caps().name, " makes no calls"));
}

}  // namespace sluice
