#pragma once

#include <memory>

namespace grpc {
class Service;
}

namespace sluice {
class WeightPublisher;
class Clock;

// WeightsService over one publisher: translates and nothing else. Register service() with a server before it starts and
// call Shutdown() before the server drains: it ends the open streams.
class WeightsServer {
 public:
  explicit WeightsServer(Clock* clock);
  ~WeightsServer();
  grpc::Service* service();

  // The publisher of the job that this daemon works for; null when it has none (calls get UNAVAILABLE). Which callers are
  // let in is the publisher's job id: another job's get NOT_FOUND.
  void SetPublisher(std::shared_ptr<WeightPublisher> publisher);
  void Shutdown();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice
