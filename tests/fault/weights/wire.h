#pragma once

#include <memory>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "common/weights/transport.h"
#include "tests/fault/weights/timeline.h"
#include "tests/fault/weights/world.h"

namespace sluice::fault {

// Who reads by a wire, in one download.
struct Reader {
  World* world;
  Endpoint* self;
  Fiber* fiber;
  std::string caller;           // As the trainer knows it.
  std::set<std::string> taken;  // Ids of objects that have come in this download.
  // Waits while the process is stopped.
  void AwaitRunning() const;
};

// A transport over simulated links, which keeps to the contract of Transport: holders die, stop,
// are cut off, hang, are slow, end early, deny what they have, and send other bytes.
class Wire : public Transport {
 public:
  // `reader` outlives the wire.
  Wire(const TransportCaps& caps, Reader* reader, std::string holder)
      : caps_(caps), reader_(*reader), holder_(std::move(holder)) {}

  const TransportCaps& caps() const override { return caps_; }
  FetchEnd Fetch(const FetchTerms& terms, WantedObjects* wanted) override;
  absl::Status Call(const google::protobuf::Message& request, google::protobuf::Message* response,
                    const rpc::CallOptions& options) override;

 private:
  class Stream;
  // What the holder answers to a call.
  absl::Status Answer(Endpoint& holder, const google::protobuf::Message& request,
                      google::protobuf::Message* response);

  const TransportCaps& caps_;
  Reader& reader_;
  const std::string holder_;  // The name of an Endpoint.
};

// What a liar announces instead of `latest`.
PublishedVersion MakeUpVersion(World* world, const PublishedVersion& latest);

}  // namespace sluice::fault
