#pragma once

#include <map>
#include <memory>
#include <string>

#include "common/base/mutex.h"
#include "common/meta/store.h"
#include "services/controller/loop.h"
#include "services/controller/peers.h"
#include "sluice/job/v1/job.grpc.pb.h"

namespace sluice {
struct Policy;
}

namespace sluice::controller {
class LogRelay;

// The calls of people and of the CLI: submit, cancel, describe, watch and explain jobs. A submitter
// sees and controls its own jobs only (callers.h).
class JobService : public job::v1::JobService::CallbackService {
 public:
  // All arguments outlive the service. `store` is only read, and only on the loop's thread.
  JobService(Loop* loop, Peers* peers, LogRelay* logs, meta::Store* store, const Policy* policy)
      : loop_(loop), peers_(peers), logs_(logs), store_(store), policy_(policy) {}

  grpc::ServerUnaryReactor* Submit(grpc::CallbackServerContext* context,
                                   const job::v1::SubmitRequest* request,
                                   job::v1::SubmitResponse* response) override;
  // Serves the verbs of control.h. Others give UNIMPLEMENTED, and the message names the verb.
  grpc::ServerUnaryReactor* Control(grpc::CallbackServerContext* context,
                                    const job::v1::ControlRequest* request,
                                    job::v1::ControlResponse* response) override;
  grpc::ServerUnaryReactor* Get(grpc::CallbackServerContext* context,
                                const job::v1::GetRequest* request,
                                job::v1::JobStatus* response) override;
  grpc::ServerUnaryReactor* List(grpc::CallbackServerContext* context,
                                 const job::v1::ListRequest* request,
                                 job::v1::ListResponse* response) override;
  grpc::ServerUnaryReactor* Why(grpc::CallbackServerContext* context,
                                const job::v1::WhyRequest* request,
                                job::v1::WhyResponse* response) override;
  grpc::ServerUnaryReactor* Inspect(grpc::CallbackServerContext* context,
                                    const job::v1::InspectRequest* request,
                                    job::v1::InspectResponse* response) override;
  grpc::ServerUnaryReactor* PinWeights(grpc::CallbackServerContext* context,
                                       const job::v1::PinWeightsRequest* request,
                                       job::v1::PinWeightsResponse* response) override;
  grpc::ServerUnaryReactor* ReloadRewards(grpc::CallbackServerContext* context,
                                          const job::v1::ReloadRewardsRequest* request,
                                          job::v1::ReloadRewardsResponse* response) override;
  grpc::ServerWriteReactor<job::v1::WatchResponse>* Watch(
      grpc::CallbackServerContext* context, const job::v1::WatchRequest* request) override;
  grpc::ServerWriteReactor<job::v1::LogsResponse>* Logs(
      grpc::CallbackServerContext* context, const job::v1::LogsRequest* request) override;

  // Tells the watchers that something about the job is new. Call it on the loop's thread.
  void OnJobChanged(Controller& core, const std::string& job) ABSL_LOCKS_EXCLUDED(mu_);
  // Sends the empty messages that are due to quiet watchers. Call it on the loop's thread.
  void SendKeepalives(absl::Duration now) ABSL_LOCKS_EXCLUDED(mu_);
  // Ends all watches with UNAVAILABLE. Idempotent.
  void Shutdown() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  class Watcher;
  // Answers a checked Control whose verb a daemon carries out: ROLLBACK the trainer, RESCORE and
  // READMIT the queue.
  grpc::ServerUnaryReactor* ControlByDaemon(grpc::CallbackServerContext* context,
                                            const job::v1::ControlRequest* request,
                                            job::v1::ControlResponse* response);
  // Fills in the whole status, with the spec and, for an ended job, the result. Call it on
  // the loop's thread.
  void Describe(const Job& job, job::v1::JobStatus* out) const;

  Loop* const loop_;
  Peers* const peers_;
  LogRelay* const logs_;
  meta::Store* const store_;
  const Policy* const policy_;

  Mutex mu_;
  std::map<Watcher*, std::shared_ptr<Watcher>> watchers_ ABSL_GUARDED_BY(mu_);
  bool shutting_down_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace sluice::controller
