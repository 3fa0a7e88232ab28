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

// WeightsService over one publisher: translates and nothing else. Register service() with a server
// before it starts, and call Shutdown() before the server drains: it ends the open streams.
//
// Thread-safe. Owns one thread, which sends a beat on silent streams each 10 s.
class WeightsServer {
 public:
  // `callers`: who works for the job; outlives the server.
  explicit WeightsServer(const rpc::CallerTable* callers);
  ~WeightsServer();
  grpc::Service* service();

  // The publisher of the job that this daemon works for; null when it has none: calls get
  // UNAVAILABLE.
  void SetPublisher(std::shared_ptr<WeightPublisher> publisher);
  void Shutdown();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice
