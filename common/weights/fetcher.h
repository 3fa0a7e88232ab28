#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/checkpoint/tensor_set.h"
#include "common/rpc/cancel.h"
#include "common/rpc/channel.h"
#include "common/weights/fingerprint.h"
#include "common/weights/publisher.h"
#include "common/weights/staged.h"

namespace sluice {
namespace common::v1 {
class Call;
}
namespace weights::v1 {
class Manifest;
}

// Downloads published versions from a trainer and checks them: the CRC of each message, the SHA-256
// of each object, each manifest against the trainer's list, and the fingerprint at the end.
//
// Thread-safe.
class WeightFetcher {
 public:
  struct Caller {
    std::string job;          // 32 hex digits.
    std::string worker;       // This daemon's id.
    int64_t incarnation = 0;  // 0 for a command-line tool, which is not a registered worker.
  };
  // `layout` gives the names, types and shapes that every version must have, in the order of the
  // names.
  WeightFetcher(Caller caller, absl::Span<const TensorSpec> layout);

  // Downloads one version: the manifests with the fewest bytes that lead to it from weights with
  // the fingerprint `held` (nullopt: the caller has none), or from nothing. It leases them, in
  // place of what this worker has leased before. The result is a delta in the first case and
  // tensors in the second. If `held` is the version's state, nothing is downloaded and both stay
  // null.
  // CANCELLED: `cancel` was triggered.
  // DEADLINE_EXCEEDED: 64 objects (about 64 MiB) took over a minute.
  // NOT_FOUND: the trainer no longer has the version.
  // DATA_LOSS: the bytes differ from what was announced.
  // INVALID_ARGUMENT: the version has another layout.
  // UNIMPLEMENTED: the manifest or a chunk is of a kind that this build cannot apply.
  absl::StatusOr<StagedWeights> Fetch(const rpc::Channel& channel, const PublishedVersion& version,
                                      const std::optional<Fingerprint>& held,
                                      rpc::Cancel* cancel) const;

  // Returns the versions that the trainer keeps, the newest last.
  absl::StatusOr<std::vector<PublishedVersion>> List(const rpc::Channel& channel) const;
  // Asks the trainer to keep one version for `ttl`, even if it would otherwise be freed.
  absl::Status Lease(const rpc::Channel& channel, const PublishedVersion& version,
                     absl::Duration ttl) const;

  // Returns the part of a request that names job, worker and incarnation.
  common::v1::Call MakeCall() const;

 private:
  // A manifest that is kept by the trainer: an edge from the state `base`, or from nothing.
  struct Edge {
    PolicyVersion version;
    std::string manifest;
    std::optional<Fingerprint> base;
    Fingerprint state;
    uint64_t bytes = 0;
  };
  // A step of a path. A delta is applied backward to get from its state to its base.
  struct Step {
    Edge edge;
    bool backward = false;
  };
  absl::StatusOr<std::vector<Edge>> ListEdges(const rpc::Channel& channel,
                                              rpc::Cancel* cancel) const;
  static std::vector<Step> FindPath(absl::Span<const Edge> edges,
                                    const std::optional<Fingerprint>& held,
                                    const Fingerprint& target);
  absl::Status LeaseManifests(const rpc::Channel& channel, std::vector<std::string> manifests,
                              absl::Duration ttl, rpc::Cancel* cancel) const;
  absl::Status CheckManifest(const weights::v1::Manifest& manifest, const Edge& edge) const;
  // What the steps of a path lead to. One of the pointers is null.
  struct Result {
    TensorSet* tensors;
    WeightDelta* delta;
    Fingerprint state;  // After the last step.
    uint64_t bytes = 0;
  };
  // `renew` is called again and again while it takes long.
  absl::Status TakeStep(const rpc::Channel& channel, const Step& step,
                        const std::function<absl::Status()>& renew, rpc::Cancel* cancel,
                        Result* result) const;

  using ObjectHandler = std::function<absl::Status(std::string object)>;
  absl::Status FetchObjects(const rpc::Channel& channel, absl::Span<const std::string> ids,
                            rpc::Cancel* cancel, const ObjectHandler& on_object) const;

  const Caller caller_;
  const std::vector<TensorSpec> specs_;
  const std::string layout_id_;
};

}  // namespace sluice
