#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/collective/collective.h"
#include "common/rpc/channel.h"
#include "common/weights/transport.h"

namespace sluice {

// How a receiver takes part in broadcasts.
struct BroadcastOptions {
  JoinCollective join;
  // See Collective::Options.
  std::string host;
  PortRange ports;
  // How long the first receiver that wants a version waits for others.
  absl::Duration wait = absl::Milliseconds(500);
};

// Gets the chunks of a whole version from a broadcast of the trainer (BroadcastServer), if others
// want it at the same time. The bytes come from the rank before this one and are passed on to the
// next; nothing else protects them than the SHA-256 of each object. All other objects, and all if
// there is no broadcast, are missing here.
//
// Another receiver that dies or is late ends the broadcast for those behind it, after the limit of
// silence at the latest. One that hangs also ends it for those before it, because Gloo gives up all
// connections of a rank when one of them has moved nothing for that long. What has come by then is
// not fetched again.
class BroadcastTransport : public Transport {
 public:
  BroadcastTransport(std::shared_ptr<const rpc::Channel> trainer, WeightCaller caller,
                     BroadcastOptions options);
  ~BroadcastTransport() override;

  const TransportCaps& caps() const override { return kC10dCaps; }
  // Fetches the parts of a version one after the other.
  FetchEnd Fetch(const FetchTerms& terms, WantedObjects* wanted) override;

 private:
  // Sets group_ if there is a broadcast.
  absl::Status Join(const FetchTerms& terms);
  // Takes what is wanted of the part.
  FetchEnd TakePart(const FetchTerms& terms, WantedObjects* wanted);
  // Reads the next `bytes` of the stream, which are valid until the next call.
  absl::StatusOr<absl::string_view> Read(uint64_t bytes, WantedObjects* wanted);

  const std::shared_ptr<const rpc::Channel> trainer_;
  const WeightCaller caller_;
  const BroadcastOptions options_;

  std::string manifest_;               // Whose broadcast was joined last.
  std::unique_ptr<Collective> group_;  // Null: there is none.
  std::set<size_t> missing_;           // Chunks that are not sent.
  size_t next_ = 0;                    // The chunk that is next in the stream.
  absl::Span<const char> bucket_;      // What has come of the stream and was not read.
  std::string object_;                 // One that did not lie in one bucket.
};

}  // namespace sluice
