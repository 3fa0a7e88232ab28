#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/weights/weights_check.h"

namespace grpc {
class Service;
}

namespace sluice {
class BroadcastServer;
class WeightPublisher;
class WeightSource;
namespace rpc {
class CallerTable;
}

// The gRPC service WeightsService over a publisher or a relay per job. It only translates. Register
// service() with a server before that starts. Call Shutdown() before the server drains, to end the
// open streams.
//
// Thread-safe. Owns one thread, which sends empty messages (beats), unless a write is under way: on
// each open Watch stream every 10 s, on each Fetch stream that waits every 250 ms. After
// ShareMemory() it owns one more, `share`, and after OfferUcx() perhaps that of UcxStage.
class WeightsServer {
 public:
  // `callers` says which workers may call; it must outlive the server.
  explicit WeightsServer(const rpc::CallerTable* callers);
  ~WeightsServer();
  grpc::Service* service();

  // Sets what is served of a job. While it is null, calls for the job get UNAVAILABLE. Open streams
  // of the job end, so that subscribers come back to the new one.
  // `rollback` answers the call Rollback. It must not block, and may still be running when the
  // job's publisher is set anew. Empty: the call is refused.
  using Rollback = std::function<absl::Status(int64_t version)>;
  void SetPublisher(const std::string& job, std::shared_ptr<WeightPublisher> publisher,
                    Rollback rollback = nullptr);
  // The same of a daemon that only passes weights on: it refuses leases and reports. `check` reads
  // the weights of its engine again, for the call Verify.
  using Check = std::function<void(WeightsCheckDone done)>;
  void SetRelay(const std::string& job, std::shared_ptr<WeightSource> relay, Check check);
  // Also shares the memory of objects with processes of this host that know the gRPC server at
  // `address` (shm_server.h). Without it they get all by calls. Call it at most once.
  // ALREADY_EXISTS: another process listens for them.
  absl::Status ShareMemory(const std::string& address);
  // Answers the call JoinBroadcast of jobs that have a publisher; without it the call is refused.
  // Set it before the first job.
  void SetBroadcasts(std::unique_ptr<BroadcastServer> broadcasts);
  // Also lets those who ask for it read objects over UCX (ucx_stage.h), which is started when the
  // first one asks. An error says why nobody can. Call it at most once, before there are calls.
  void OfferUcx(absl::StatusOr<std::string> devices);
  void Shutdown();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice
