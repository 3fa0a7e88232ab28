#pragma once

#include <memory>

namespace grpc {
class Service;
}

namespace sluice::rpc {
class CallerTable;
}

namespace sluice::trainer {

// The gRPC service RendezvousService, where the ranks of a job meet at rank 0. It keeps the values
// of one incarnation of one job. Register service() with a server before that starts. Thread-safe.
class RendezvousServer {
 public:
  // `callers` says which workers may call; it must outlive the server.
  explicit RendezvousServer(const rpc::CallerTable* callers);
  ~RendezvousServer();
  grpc::Service* service();

 private:
  class Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::trainer
