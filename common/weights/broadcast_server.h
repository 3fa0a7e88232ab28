#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/collective/collective.h"

namespace sluice {

class RendezvousServer;
class WeightSource;
namespace weights::v1 {
class JoinBroadcastResponse;
class Manifest;
}  // namespace weights::v1

// Sends whole versions to several rollouts at once, over LibTorch's c10d. Rollouts that want the
// same version form a group, with this process as rank 0. The bytes of its chunks flow from it
// through all of them, so its link carries them once.
//
// A group is closed when all that are expected have come, or when the first of them has waited for
// long enough; who comes later gets into another group. A rollout that dies, or moves nothing for
// `timeout`, ends the broadcast. The others then fetch what they lack by calls.
//
// Thread-safe. Owns a thread for each group, `sluice-bcast`.
class BroadcastServer {
 public:
  struct Options {
    JoinCollective join;
    // See Collective::Options.
    std::string host;
    PortRange ports;
    size_t least = 2;  // Rollouts that a version is broadcast to. One alone is told to call.
    uint64_t bucket_bytes = 4 << 20;
    absl::Duration timeout = absl::Seconds(5);
  };
  // `rendezvous` serves the ranks and outlives this.
  BroadcastServer(Options options, RendezvousServer* rendezvous);
  ~BroadcastServer();  // Calls Stop().

  // A rollout that wants the chunks of a whole version.
  struct Joiner {
    std::string job, worker;
    std::string manifest;                  // Id of the manifest.
    absl::Duration wait;                   // How long it waits for others.
    std::shared_ptr<WeightSource> source;  // Of manifest and chunks.
    // The rollouts that may come too; the group is closed once they have.
    std::set<std::string> expected;
    // Says whether it has given up. Not called after `answer`.
    std::function<bool()> has_left;
    // Called once, on any thread. Must not block.
    std::function<void(absl::StatusOr<weights::v1::JoinBroadcastResponse>)> answer;
  };
  void Join(Joiner joiner) ABSL_LOCKS_EXCLUDED(mu_);
  // Answers all and ends all broadcasts. Idempotent.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Group;
  // Returns the former call of the same worker. Moves groups that have ended to *ended.
  std::optional<Joiner> Enter(Joiner joiner, weights::v1::Manifest version, std::list<Group>* ended)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Run(Group* group) ABSL_LOCKS_EXCLUDED(mu_);
  // Waits for the threads of groups that end.
  void End(std::list<Group> groups) ABSL_LOCKS_EXCLUDED(mu_);
  // Waits until the group is to be closed, and closes it. Returns those that are in it.
  std::vector<Joiner> Close(Group* group) ABSL_LOCKS_EXCLUDED(mu_);
  void Broadcast(Group* group, const std::vector<Joiner>& members) ABSL_LOCKS_EXCLUDED(mu_);
  // Is rank 0 of the group. Null chunks are not sent.
  absl::Status Send(Group* group, int world, LocalRendezvous* meeting,
                    const std::vector<std::shared_ptr<const std::string>>& chunks)
      ABSL_LOCKS_EXCLUDED(mu_);

  const Options options_;
  RendezvousServer* const rendezvous_;

  Mutex mu_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::list<Group> groups_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice
