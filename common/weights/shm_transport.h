#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/fd.h"
#include "common/shm/segment.h"
#include "common/shm/socket.h"
#include "common/weights/transport.h"

namespace sluice {

namespace weights::v1 {
class ShareRequest;
class ShareResponse;
}  // namespace weights::v1

// The name of the socket where a daemon shares the memory of weights, by the address HOST:PORT of
// its gRPC server. It is abstract, so only processes of the same network namespace find it.
std::string ShmSocketName(absl::string_view address);
// Most objects of one request.
inline constexpr size_t kMostSharedObjects = 64;

// Gets objects from memory that a daemon of this host shares (shm_server.h): they are read where
// they lie, and no byte of them passes a socket. The memory is sealed against writing before it is
// read, so an object whose SHA-256 was found right stays right.
class ShmTransport : public Transport {
 public:
  // Connects to the daemon whose gRPC server has this address.
  // UNAVAILABLE: there is none on this host, or it shares no memory.
  // PERMISSION_DENIED: it belongs to another user.
  static absl::StatusOr<std::unique_ptr<ShmTransport>> Connect(absl::string_view address,
                                                               WeightCaller caller);

  const TransportCaps& caps() const override { return kShmCaps; }
  FetchEnd Fetch(const FetchTerms& terms, WantedObjects* wanted) override;

 private:
  using Segments = std::map<uint32_t, shm::Segment>;

  ShmTransport(shm::Socket socket, WeightCaller caller)
      : socket_(std::move(socket)), caller_(std::move(caller)) {}
  FetchEnd FetchAll(const FetchTerms& terms, WantedObjects* wanted);
  // Takes the objects of an answer. `asked` are the indexes of those that were asked for.
  FetchEnd TakeObjects(const FetchTerms& terms, absl::Span<const size_t> asked,
                       const weights::v1::ShareResponse& response, Segments* segments,
                       WantedObjects* wanted);
  // Finds the segment in *segments, or asks for it.
  absl::StatusOr<const shm::Segment*> FindSegment(const FetchTerms& terms, uint32_t number,
                                                  Segments* segments);
  // Sends a request and waits for its answer, and for a descriptor if `fd` is not null.
  absl::Status Ask(const FetchTerms& terms, const weights::v1::ShareRequest& request,
                   weights::v1::ShareResponse* response, Fd* fd);

  shm::Socket socket_;
  const WeightCaller caller_;
};

}  // namespace sluice
