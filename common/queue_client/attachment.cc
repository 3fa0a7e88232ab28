#include "common/queue_client/attachment.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status.h"
#include "sluice/queue/v1/queue.pb.h"

namespace sluice {
namespace {
// How long to wait for an answer of the queue.
constexpr absl::Duration kAnswerTimeout = absl::Seconds(5);
// A segment that was not used for this long is unmapped.
constexpr absl::Duration kUnmapAfter = absl::Minutes(1);

// Sends a request for `segment` (0: a new buffer of the client's own) and maps the descriptor that
// comes with the answer. Only the own buffer is mapped writable.
absl::StatusOr<std::pair<queue::v1::AttachResponse, shm::Segment>> RequestSegment(
    shm::Socket* socket, const common::v1::Call& call, uint32_t segment) {
  queue::v1::AttachRequest request;
  *request.mutable_call() = call;
  request.set_segment(segment);
  SLUICE_RETURN_IF_ERROR(socket->Send(request.SerializeAsString()));
  SLUICE_ASSIGN_OR_RETURN(shm::Socket::Packet packet, socket->Receive(kAnswerTimeout));

  queue::v1::AttachResponse response;
  if (!response.ParseFromString(packet.bytes))
    return absl::InternalError("the queue's answer is not an AttachResponse");

  if (response.code() != 0)
    return absl::Status(static_cast<absl::StatusCode>(response.code()), response.message());
  SLUICE_ASSIGN_OR_RETURN(
      shm::Segment mapped,
      shm::Segment::Map(std::move(packet.fd), response.bytes(), /*writable=*/segment == 0));
  return std::make_pair(std::move(response), std::move(mapped));
}

absl::Status RecycledError() {
  return Error(absl::StatusCode::kAborted, "RECYCLED",
               "the queue has used the memory again; ask for the bytes again");
}
absl::Status NotSharedError(uint32_t segment, const absl::Status& why) {
  return Error(absl::StatusCode::kAborted, "NOT_SHARED",
               absl::StrCat("the queue does not share segment ", segment, ": ", why.message(),
                            "; ask for the bytes in messages"));
}
}  // namespace

absl::StatusOr<std::shared_ptr<Attachment>> Attachment::Attach(const std::string& address,
                                                               const common::v1::Call& call) {
  // The queue names its socket after its numeric address.
  const std::string name = absl::StartsWith(address, "localhost:")
                               ? absl::StrCat("127.0.0.1", address.substr(9))
                               : address;
  SLUICE_ASSIGN_OR_RETURN(shm::Socket socket, shm::Socket::Connect("sluice-queue/" + name));
  // Segment 0 asks for a buffer of the client's own.
  SLUICE_ASSIGN_OR_RETURN(auto answer, RequestSegment(&socket, call, 0));
  return std::shared_ptr<Attachment>(
      new Attachment(std::move(socket), std::move(answer.second), answer.first.session(), call));
}

std::optional<shm::Slice> Attachment::Allocate(uint64_t bytes) {
  MutexLock lock(&buffer_mu_);
  const std::optional<uint64_t> offset = free_parts_.Allocate(bytes);
  if (!offset) return std::nullopt;
  return shm::Slice{.offset = *offset, .length = bytes};
}

void Attachment::Free(const shm::Slice& slice) {
  MutexLock lock(&buffer_mu_);
  free_parts_.Free(slice.offset, slice.length);
}

absl::StatusOr<std::shared_ptr<const shm::Segment>> Attachment::FindOrRequestSegment(
    uint32_t segment) {
  if (const auto it = segments_.find(segment); it != segments_.end()) {
    it->second.used = absl::Now();
    return it->second.segment;
  }

  if (broken_) return NotSharedError(segment, absl::UnavailableError("the connection is broken"));
  auto answer = RequestSegment(&socket_, call_, segment);
  if (!answer.ok()) {
    // After any error but NOT_FOUND an answer may still be on its way. The next request would take
    // it for its own, so the connection must not be used again.
    broken_ = !absl::IsNotFound(answer.status());
    return NotSharedError(segment, answer.status());
  }

  const auto mapped = std::make_shared<const shm::Segment>(std::move(answer->second));
  segments_.emplace(segment, Mapped{mapped, absl::Now()});
  return mapped;
}

absl::Status Attachment::Map(absl::Span<const shm::Slice> slices,
                             std::vector<std::shared_ptr<const shm::Segment>>* segments) {
  {
    MutexLock lock(&mu_);
    // Let the system take back segments that were not used lately.
    std::erase_if(segments_, [now = absl::Now()](const auto& mapped) {
      return now - mapped.second.used > kUnmapAfter;
    });
    for (const shm::Slice& slice : slices) {
      SLUICE_ASSIGN_OR_RETURN(segments->emplace_back(), FindOrRequestSegment(slice.segment));
      if (!shm::InBounds(*segments->back(), slice)) {
        return Error(absl::StatusCode::kInvalidArgument, "BAD_SLICE",
                     absl::StrCat("shared memory: ", slice.length, " bytes at ", slice.offset,
                                  " are not in segment ", slice.segment));
      }
    }
  }
  return CheckNotRecycled(slices, *segments);
}

absl::Status Attachment::CheckNotRecycled(
    absl::Span<const shm::Slice> slices,
    absl::Span<const std::shared_ptr<const shm::Segment>> segments) {
  for (size_t i = 0; i < slices.size(); ++i) {
    if (!shm::IsCurrent(*segments[i], slices[i])) return RecycledError();
  }
  return absl::OkStatus();
}

}  // namespace sluice
