#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/daemon/daemon.h"
#include "common/meta/redis.h"
#include "common/meta/store.h"
#include "common/metrics/metrics.h"
#include "common/rpc/cancel.h"

namespace sluice::controller {

// A controller that waits until it may lead: until it gets the lease of the store. It refuses every
// call with UNAVAILABLE STANDBY, and names the leader. Once it has the lease, the program that
// `lead` makes takes its place (daemon::Host::replace). Meanwhile it reads along in the store, so
// that it has almost all of it in memory when its turn comes.
//
// Owns one thread, `lease`, which tries to take the lease.
class Standby : public daemon::Program {
 public:
  using Lead = std::function<absl::StatusOr<std::unique_ptr<daemon::Program>>(
      const daemon::Host& host, std::unique_ptr<meta::Store> store)>;

  // `target.holder` is set here, to the address at which others reach this process. `host` outlives
  // the program.
  Standby(meta::Target target, const daemon::Host& host, Lead lead);
  ~Standby() override { Drain(); }

  std::vector<grpc::Service*> services() override { return {}; }
  absl::Status Refusal() override ABSL_LOCKS_EXCLUDED(mu_);
  // INVALID_ARGUMENT NO_ADVERTISED_ADDRESS: the address means all interfaces, so that nobody could
  // be sent there.
  absl::Status Start(const std::string& address, const std::string& ops) override;
  // A standby is ready to lead, so a rolling update and a disruption budget count it.
  std::string ready_text() override;
  void Drain() override;

 private:
  void TakeLease();
  // Reads what has changed in the store. A failure only makes the take-over slower, so it is logged
  // and nothing else.
  void ReadAlong();
  // Keeps what others are told of the leader. Returns whether it has changed.
  bool NoteLeader(const std::string& leader, const std::string& trouble) ABSL_LOCKS_EXCLUDED(mu_);

  meta::Target target_;
  const daemon::Host& host_;
  const Lead lead_;
  rpc::Cancel stop_;

  Mutex mu_;
  std::string leader_ ABSL_GUARDED_BY(mu_);   // Its address; empty if it is not known.
  std::string trouble_ ABSL_GUARDED_BY(mu_);  // Why the store cannot be asked; empty if it can.
  // Used by the lease's thread alone. Null until the store was first asked with success.
  std::unique_ptr<meta::RedisFollower> follower_;
  bool read_along_ = true;  // Whether the last ReadAlong() has worked.
  std::thread thread_;
};

}  // namespace sluice::controller
