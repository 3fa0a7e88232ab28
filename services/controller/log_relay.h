#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "common/base/mutex.h"
#include "services/controller/callers.h"
#include "services/controller/loop.h"
#include "services/controller/peers.h"
#include "sluice/job/v1/job.grpc.pb.h"

namespace sluice::controller {

// Serves JobService.Logs. It asks the daemons for the lines that they keep of a job, merges them by
// time and sends them; with `follow` it asks again once a second. It asks rather than lets the
// daemons send, so that a daemon which is started anew, comes or leaves needs no special care.
//
// The first time all daemons of the fleet are asked, as they may still have lines of a job that
// they worked for; later only those that work for it or had lines. A daemon that is gone is named
// if it works for the job, or has since this controller was started. Daemons find the lines by the
// job's id, so nobody sees those of another job that has had the same name.
//
// Thread-safe.
class LogRelay {
 public:
  // `id` is this controller's, whose own lines on the job belong to it too. `loop` and `peers`
  // outlive the relay.
  LogRelay(std::string id, Loop* loop, Peers* peers)
      : id_(std::move(id)), loop_(loop), peers_(peers) {}

  // Begins to serve a call. The reactor deletes itself.
  grpc::ServerWriteReactor<job::v1::LogsResponse>* Start(const Person& person,
                                                         const job::v1::LogsRequest& request)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Asks the daemons again where that is due, and notes who works for which job. Call it on the
  // loop's thread.
  void Tick(Controller& core, Instant now) ABSL_LOCKS_EXCLUDED(mu_);
  // Ends all calls with UNAVAILABLE. Idempotent.
  void Shutdown() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  class Call;
  void NoteWorkers(const Job& job);

  const std::string id_;
  Loop* const loop_;
  Peers* const peers_;

  // By job id: the daemons that have worked for it. Only the loop's thread uses it.
  std::map<std::string, std::set<std::string>> worked_;

  // Calls that exist, those included that are closed and wait for the answers of a round: else a
  // caller that opens calls and cancels them would fill the memory with questions.
  const std::shared_ptr<std::atomic<int>> alive_ = std::make_shared<std::atomic<int>>(0);

  Mutex mu_;
  std::map<Call*, std::shared_ptr<Call>> calls_ ABSL_GUARDED_BY(mu_);
  bool shutting_down_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace sluice::controller
