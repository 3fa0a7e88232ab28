#pragma once

#include <memory>
#include <utility>

#include "absl/time/time.h"
#include "common/rpc/channel.h"
#include "common/weights/transport.h"

namespace sluice {
class UcxMemory;
namespace weights::v1 {
class FetchHeader;
}

// Gets objects by the call Fetch: as pieces of a stream, each with its CRC. It works between any
// two daemons that can connect. With `ucx` the stream only says where the objects lie in the
// holder's memory, and they are read from there; this is the transport `ucx`. What the holder has
// no such memory for still comes in pieces.
class GrpcTransport : public Transport {
 public:
  // `ucx` outlives the transport.
  GrpcTransport(std::shared_ptr<const rpc::Channel> channel, WeightCaller caller,
                UcxMemory* ucx = nullptr)
      : channel_(std::move(channel)), caller_(std::move(caller)), ucx_(ucx) {}

  const TransportCaps& caps() const override { return ucx_ != nullptr ? kUcxCaps : kGrpcCaps; }
  FetchEnd Fetch(const FetchTerms& terms, WantedObjects* wanted) override;
  absl::Status Call(const google::protobuf::Message& request, google::protobuf::Message* response,
                    const rpc::CallOptions& options) override;

 private:
  // Triggering `end` ends the stream.
  FetchEnd FetchUntil(rpc::Cancel* end, const FetchTerms& terms, WantedObjects* wanted);
  // Reads an object and takes it.
  FetchEnd TakeFromMemory(const weights::v1::FetchHeader& header, absl::Duration deadline,
                          rpc::Cancel* end, WantedObjects* wanted);

  const std::shared_ptr<const rpc::Channel> channel_;
  const WeightCaller caller_;
  UcxMemory* const ucx_;  // May be null.
};

}  // namespace sluice
