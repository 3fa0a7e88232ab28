#pragma once

#include <memory>
#include <set>
#include <string>

#include "common/collective/rendezvous.h"

namespace grpc {
class Service;
}

namespace sluice::rpc {
class CallerTable;
}

namespace sluice {

// The gRPC service RendezvousService, where the ranks of a group meet at rank 0. It keeps the
// values of one incarnation of the trainers of one job, and those of other groups that are added.
// Register service() with a server before that starts. Thread-safe.
class RendezvousServer {
 public:
  // `callers` says which workers may call; it must outlive the server.
  explicit RendezvousServer(const rpc::CallerTable* callers);
  ~RendezvousServer();
  grpc::Service* service();

  // Adds a group of these workers of the job. This process meets them at what is returned.
  std::shared_ptr<LocalRendezvous> AddGroup(const std::string& job, const std::string& group,
                                            std::set<std::string> workers);
  void RemoveGroup(const std::string& group);

 private:
  class Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace sluice
