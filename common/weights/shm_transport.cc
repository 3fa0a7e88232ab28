#include "common/weights/shm_transport.h"

#include <algorithm>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/rpc/cancel.h"
#include "common/rpc/convert.h"
#include "sluice/weights/v1/weights.pb.h"

namespace sluice {
namespace {

// The largest segment that a daemon makes: as many objects as one request names, of the largest
// size that chunks have, and a manifest.
constexpr uint64_t kMaxSegmentBytes = uint64_t{1} << 30;

}  // namespace

std::string ShmSocketName(absl::string_view address) {
  // Daemons name their sockets after their numeric addresses.
  if (absl::StartsWith(address, "localhost:"))
    return absl::StrCat("sluice-weights/127.0.0.1", address.substr(9));
  return absl::StrCat("sluice-weights/", address);
}

absl::StatusOr<std::unique_ptr<ShmTransport>> ShmTransport::Connect(absl::string_view address,
                                                                    WeightCaller caller) {
  SLUICE_ASSIGN_OR_RETURN(shm::Socket socket, shm::Socket::Connect(ShmSocketName(address)));
  return std::unique_ptr<ShmTransport>(new ShmTransport(std::move(socket), std::move(caller)));
}

FetchEnd ShmTransport::Fetch(const FetchTerms& terms, WantedObjects* wanted) {
  int64_t callback = 0;
  if (terms.cancel != nullptr) callback = terms.cancel->AddCallback([this] { socket_.Shutdown(); });
  FetchEnd end = FetchAll(terms, wanted);
  if (terms.cancel != nullptr) {
    terms.cancel->RemoveCallback(callback);
    if (terms.cancel->triggered()) return {absl::CancelledError("the fetch was cancelled"), {}};
  }
  return end;
}

FetchEnd ShmTransport::FetchAll(const FetchTerms& terms, WantedObjects* wanted) {
  Segments segments;
  absl::Duration last = terms.clock->Monotonic();  // When an object came last.
  size_t first = 0;                                // No object before this one is open.
  while (wanted->left() > 0) {
    weights::v1::ShareRequest request;
    *request.mutable_call() = MakeCall(caller_);
    *request.mutable_version() = rpc::ToProto(terms.version);
    while (!wanted->is_open(first)) ++first;
    std::vector<size_t> asked;
    for (size_t i = first; i < wanted->ids().size() && asked.size() < kMostSharedObjects; ++i) {
      if (!wanted->is_open(i)) continue;
      asked.push_back(i);
      request.add_objects(wanted->ids()[i]);
    }
    weights::v1::ShareResponse response;
    if (absl::Status answered = Ask(terms, request, &response, nullptr); !answered.ok()) {
      const bool silent = absl::IsDeadlineExceeded(answered), lied = absl::IsDataLoss(answered);
      return {std::move(answered), lied     ? HolderFault::kLied
                                   : silent ? HolderFault::kSilent
                                            : HolderFault::kGone};
    }

    if (response.waits()) {
      const absl::Duration waited = terms.clock->Monotonic() - last;
      if (terms.is_patient || waited < terms.history->limits().starved) continue;
      return {absl::UnavailableError(absl::StrCat(terms.name, " has waited ",
                                                  absl::FormatDuration(waited), " for object ",
                                                  ShortObjectId(wanted->first_open()), " itself")),
              HolderFault::kStarved};
    }
    if (response.objects().empty() && response.missing().empty())
      return {absl::DataLossError("it has answered nothing"), HolderFault::kLied};
    const size_t left = wanted->left();
    FetchEnd taken = TakeObjects(terms, asked, response, &segments, wanted);
    if (!taken.status.ok()) return taken;
    const absl::Duration now = terms.clock->Monotonic();
    if (wanted->left() < left) {
      last = now;
    } else if (!terms.is_patient && now - last >= terms.history->limits().starved) {
      return {absl::UnavailableError(absl::StrCat("the memory of ", terms.name,
                                                  " was dropped before it was mapped, for ",
                                                  absl::FormatDuration(now - last))),
              HolderFault::kStarved};
    }
    // Objects of one request mostly lie in one segment; the next ones lie in others.
    if (segments.size() > 2) segments.clear();
  }
  return {wanted->CheckMissing(terms.name), std::nullopt};
}

FetchEnd ShmTransport::TakeObjects(const FetchTerms& terms, absl::Span<const size_t> asked,
                                   const weights::v1::ShareResponse& response, Segments* segments,
                                   WantedObjects* wanted) {
  const auto lied = [](absl::Status why) { return FetchEnd{std::move(why), HolderFault::kLied}; };
  const auto is_open = [&](uint32_t index) {
    return index < asked.size() && wanted->is_open(asked[index]);
  };
  for (const uint32_t index : response.missing()) {
    if (!is_open(index)) return lied(absl::DataLossError("it lacks what was not asked for"));
    wanted->AddMissing(asked[index]);
  }
  for (const weights::v1::SharedObject& object : response.objects()) {
    if (!is_open(object.index()))
      return lied(absl::DataLossError("it has named an object that was not asked for"));
    const absl::StatusOr<const shm::Segment*> segment =
        FindSegment(terms, object.segment(), segments);
    // The daemon has dropped it to make room for other receivers. It is asked for again.
    if (absl::IsNotFound(segment.status())) return {};
    if (absl::IsDataLoss(segment.status())) return lied(segment.status());
    if (absl::IsDeadlineExceeded(segment.status())) return {segment.status(), HolderFault::kSilent};
    if (!segment.ok()) return {segment.status(), HolderFault::kGone};
    if (object.size() > kMaxObjectBytes || !(*segment)->Contains(object.offset(), object.size())) {
      return lied(absl::DataLossError(absl::StrCat(
          "object ", ShortObjectId(wanted->ids()[asked[object.index()]]), " of ", object.size(),
          " bytes at ", object.offset(), " does not lie in a segment of ", (*segment)->bytes(),
          " bytes, or is larger than ", kMaxObjectBytes)));
    }
    wanted->AddReceived(object.size());
    const absl::string_view bytes((*segment)->data() + object.offset(), object.size());
    if (absl::Status taken = wanted->Take(asked[object.index()], bytes); !taken.ok())
      return lied(std::move(taken));
  }
  return {};
}

absl::StatusOr<const shm::Segment*> ShmTransport::FindSegment(const FetchTerms& terms,
                                                              uint32_t number, Segments* segments) {
  if (const auto it = segments->find(number); it != segments->end()) return &it->second;
  if (number == 0) return absl::DataLossError("it has named no segment");
  weights::v1::ShareRequest request;
  *request.mutable_call() = MakeCall(caller_);
  request.set_segment(number);
  weights::v1::ShareResponse response;
  Fd fd;
  SLUICE_RETURN_IF_ERROR(Ask(terms, request, &response, &fd));
  if (response.segment_bytes() > kMaxSegmentBytes) {
    return absl::DataLossError(absl::StrCat("it has announced a segment of ",
                                            response.segment_bytes(), " bytes; the limit is ",
                                            kMaxSegmentBytes));
  }
  absl::StatusOr<shm::Segment> mapped =
      shm::Segment::Map(std::move(fd), response.segment_bytes(), /*writable=*/false);
  // What can still be changed, or cut short under a reader, is not read at all.
  if (absl::IsInvalidArgument(mapped.status()))
    return absl::DataLossError(mapped.status().message());
  SLUICE_RETURN_IF_ERROR(mapped.status());
  if (!mapped->is_constant())
    return absl::DataLossError("its memory is not sealed against writing");
  return &segments->emplace(number, *std::move(mapped)).first->second;
}

absl::Status ShmTransport::Ask(const FetchTerms& terms, const weights::v1::ShareRequest& request,
                               weights::v1::ShareResponse* response, Fd* fd) {
  SLUICE_RETURN_IF_ERROR(socket_.Send(request.SerializeAsString()));
  // If it lives it answers within 250 ms, whatever it has.
  const absl::Duration limit = terms.patience * terms.history->limits().silent;
  absl::StatusOr<shm::Socket::Packet> packet = socket_.Receive(limit);
  if (absl::IsDeadlineExceeded(packet.status())) {
    // The answer may still come. The next request would take it for its own.
    socket_.Shutdown();
    return absl::DeadlineExceededError(
        absl::StrCat(terms.name, " has not answered for ", absl::FormatDuration(limit)));
  }
  SLUICE_RETURN_IF_ERROR(packet.status());
  if (!response->ParseFromString(packet->bytes))
    return absl::DataLossError("its answer cannot be parsed as a ShareResponse");
  if (response->code() != 0)
    return absl::Status(static_cast<absl::StatusCode>(response->code()), response->message());
  if (fd == nullptr) return absl::OkStatus();
  *fd = std::move(packet->fd);
  return absl::OkStatus();
}

}  // namespace sluice
