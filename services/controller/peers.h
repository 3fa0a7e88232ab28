#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/rpc/cancel.h"
#include "common/rpc/channel_cache.h"
#include "common/rpc/role.h"
#include "services/controller/core/controller.h"
#include "services/controller/core/why.h"
#include "services/controller/pool.h"

namespace google::protobuf {
class Message;
}  // namespace google::protobuf
namespace sluice::admin::v1 {
class LogsRequest;
class LogsResponse;
}  // namespace sluice::admin::v1
namespace sluice::common::v1 {
class Call;
}  // namespace sluice::common::v1
namespace sluice::metrics {
class Registry;
}  // namespace sluice::metrics

namespace sluice::controller {

// Makes the controller's calls to queues and other daemons. The calls run on threads of this class,
// and so do the callbacks. Two cases run on the caller's thread: Explain() without targets, and
// every call after Stop().
//
// Thread-safe.
class Peers {
 public:
  // `id` is this controller's and goes into each call.
  explicit Peers(std::string id);
  // Calls Stop().
  ~Peers();

  // `spec` is the job's serialised job.v1.JobSpec.
  void SetJob(const SetJobCall& call, std::string spec,
              std::function<void(absl::StatusOr<SetJobAnswer>)> done);
  // Tries the call for 20 s. If it never arrives, the worker's leases end when they expire.
  void Release(const ReleaseCall& call);
  // Makes the unary call that takes messages of these types. The request's `call` field must have
  // been filled in by FillCall(). Calls that may take long have threads of their own, so that they
  // hold up no other.
  void CallDaemon(const std::string& address, std::shared_ptr<google::protobuf::Message> request,
                  std::shared_ptr<google::protobuf::Message> response,
                  std::function<void(absl::Status)> done);
  void FillCall(const std::string& job, common::v1::Call* call) const;

  struct Target {
    std::string daemon, address;
  };
  // Calls Explain of all targets at once, each for at most 2 s. `silent` are the ids of those that
  // did not answer.
  using Explained = std::function<void(std::vector<Edge> edges, std::vector<std::string> silent)>;
  void Explain(const std::string& job, std::vector<Target> targets, Explained done);

  // Reads the lines of a job that a daemon keeps (AdminService.Logs), for at most 2 s. The answers
  // are joined into one. These calls have threads of their own, so that they hold up no other.
  using LinesRead = std::function<void(absl::StatusOr<admin::v1::LogsResponse>)>;
  // The call is not made if `wanted` returns false when its turn has come; the answer is CANCELLED.
  void ReadLines(const std::string& address, const admin::v1::LogsRequest& request,
                 std::function<bool()> wanted, LinesRead done);

  // Ends all calls; their callbacks get an error. Idempotent.
  void Stop();

 private:
  const std::string id_;
  rpc::Cancel cancel_;
  rpc::ChannelCache channels_{rpc::kDaemonRoles};
  Pool pool_;
  Pool long_pool_;
  Pool lines_pool_;
};

}  // namespace sluice::controller
