#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/daemon/controller_link.h"
#include "common/daemon/daemon.h"
#include "common/daemon/waits.h"
#include "common/rpc/caller.h"
#include "services/rollout/http/guests.h"
#include "services/rollout/service.h"
#include "services/rollout/session.h"
#include "sluice/common/v1/common.pb.h"

namespace sluice::rollout::http {
class Keys;
class Server;
}  // namespace sluice::rollout::http
namespace sluice::registry::v1 {
class Assignment;
}  // namespace sluice::registry::v1

namespace sluice::rollout {

// The rollout daemon: a session for each job that the controller assigns.
class RolloutProgram : public daemon::Program {
 public:
  struct Options {
    absl::Duration grace;   // That running answers get to end when the daemon is to.
    std::string http;       // HOST:PORT of the OpenAI-compatible API; empty: none.
    std::string http_keys;  // Files; empty: none.
    std::string http_cert, http_cert_key;
    std::map<std::string, std::string> adapters;  // Of the API: directories by name.
    std::shared_ptr<CoreShare> cores;             // What the sessions compute on.
  };
  RolloutProgram(const daemon::Host& host, Options options);
  ~RolloutProgram() override;

  std::vector<grpc::Service*> services() override;
  absl::Status Start(const std::string& address, const std::string& ops) override;
  absl::Status Ready() override ABSL_LOCKS_EXCLUDED(mu_);
  void Drain() override ABSL_LOCKS_EXCLUDED(mu_);

  // Of this daemon alone.
  static std::vector<daemon::About::Flag> Flags();
  // INVALID_ARGUMENT: a flag.
  static absl::StatusOr<std::unique_ptr<daemon::Program>> Make(const daemon::Host& host);

 private:
  struct Job {
    std::string queue;
    std::string name;
    std::shared_ptr<Session> session;  // Null: it could not be started, or has failed.
    std::vector<std::string> models;   // Of the API.
  };

  absl::Status StartHttp();
  // Lets outsiders at the job's session: callers of EngineService, and as a model of the API, with
  // each adapter that fits too.
  void ShowModels(const std::string& id, Job* job);
  // Ends the job's session, and what outsiders asked of it.
  void EndJob(const std::string& id, const Job& job, absl::Duration grace, absl::string_view why);

  // The link's `deliver` thread.
  void Assigned(const registry::v1::HeartbeatResponse& level) ABSL_LOCKS_EXCLUDED(mu_);
  void StartJob(const registry::v1::Assignment& assignment) ABSL_LOCKS_EXCLUDED(mu_);

  void Tell(const std::string& job, bool ready, PolicyVersion version, const std::string& phase,
            const std::string& cause);
  std::vector<common::v1::WaitEdge> Explain(const std::string& job) const ABSL_LOCKS_EXCLUDED(mu_);

  const daemon::Host host_;
  const Options options_;
  daemon::Waits waits_;  // Of the job that is being loaded.
  const std::unique_ptr<grpc::Service> admin_;
  rpc::CallerTable callers_;  // Who may call the engines.
  http::Guests guests_;
  EngineServer engine_;
  std::unique_ptr<http::Keys> keys_;
  std::unique_ptr<http::Server> http_;  // Null: no API.
  std::unique_ptr<daemon::ControllerLink> link_;

  mutable Mutex mu_;
  std::map<std::string, Job> jobs_ ABSL_GUARDED_BY(mu_);
  std::string loading_ ABSL_GUARDED_BY(mu_);  // The job loaded last.
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace sluice::rollout
