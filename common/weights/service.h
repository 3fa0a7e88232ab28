#pragma once

#include <memory>

namespace grpc {
class Service;
}

namespace sluice {
class WeightPublisher;
namespace rpc {
class CallerTable;
}

// The gRPC service WeightsService over one publisher, without the call Verify. It only translates.
// Register service() with a server before that starts. Call Shutdown() before the server drains, to
// end the open streams.
//
// Thread-safe. Owns one thread, which sends an empty message (a beat) on each open Watch stream
// every 10 s, unless a write is under way.
class WeightsServer {
 public:
  // `callers` says which workers may call; it must outlive the server.
  explicit WeightsServer(const rpc::CallerTable* callers);
  ~WeightsServer();
  grpc::Service* service();

  // Sets the publisher of the job that this daemon works for. While it is null, calls get
  // UNAVAILABLE. Open Watch streams end, so that subscribers come back to the new publisher.
  void SetPublisher(std::shared_ptr<WeightPublisher> publisher);
  void Shutdown();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice
