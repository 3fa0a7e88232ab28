#pragma once

#include <utility>

#include "common/rpc/channel.h"
#include "common/weights/transport.h"

namespace sluice {

// Gets objects by the call Fetch: as pieces of a stream, each with its CRC. It works between any
// two daemons that can connect.
class GrpcTransport : public Transport {
 public:
  // `channel` outlives the transport.
  GrpcTransport(const rpc::Channel* channel, WeightCaller caller)
      : channel_(channel), caller_(std::move(caller)) {}

  const TransportCaps& caps() const override { return kGrpcCaps; }
  FetchEnd Fetch(const FetchTerms& terms, WantedObjects* wanted) override;

 private:
  // Triggering `end` ends the stream.
  FetchEnd FetchUntil(rpc::Cancel* end, const FetchTerms& terms, WantedObjects* wanted);

  const rpc::Channel* const channel_;
  const WeightCaller caller_;
};

}  // namespace sluice
