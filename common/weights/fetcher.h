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
#include "common/weights/object_fetcher.h"
#include "common/weights/staged.h"
#include "common/weights/weight_path.h"
#include "common/weights/weight_source.h"

namespace sluice {
namespace weights::v1 {
class LeaseRequest;
class ListResponse;
class Manifest;
}  // namespace weights::v1

// Downloads published versions and checks them: each object (ObjectFetcher), each manifest against
// the list of the trainer, and the fingerprint at the end.
//
// Thread-safe.
class WeightFetcher {
 public:
  using Caller = WeightCaller;
  // `layout` gives the names, types and shapes that every version must have, in the order of the
  // names.
  WeightFetcher(Caller caller, absl::Span<const TensorSpec> layout);

  // Downloads one version: the manifests with the fewest bytes that lead to it from weights with
  // the fingerprint `held` (nullopt: the caller has none), or from nothing. It leases them, in
  // place of what this worker has leased before. The result is a delta in the first case and
  // tensors in the second. If `held` is the version's state, nothing is downloaded and both stay
  // null.
  // CANCELLED: `cancel` was triggered.
  // DEADLINE_EXCEEDED: 64 MiB took over a minute.
  // NOT_FOUND: the trainer no longer has the version.
  // DATA_LOSS: the bytes differ from what was announced.
  // INVALID_ARGUMENT: the version has another layout.
  // UNIMPLEMENTED: the manifest or a chunk is of a kind that this build cannot apply.
  absl::StatusOr<StagedWeights> Fetch(const rpc::Channel& channel, const PublishedVersion& version,
                                      const std::optional<Fingerprint>& held,
                                      rpc::Cancel* cancel) const;
  // The same with objects from anybody who has them. If the trainer is gone, a relay's list is
  // used instead, which may lie: the fingerprint of whole weights is computed then, but where a
  // delta leads only the engine finds out. What is fetched is passed on by the relay of `objects`,
  // if it has one.
  // DATA_LOSS, reason WRONG_PATH: the way from `held` that the trainer listed is wrong, and not
  // what a holder sent; the way from nothing may be right.
  absl::StatusOr<StagedWeights> Fetch(ObjectFetcher* objects, const PublishedVersion& version,
                                      const std::optional<Fingerprint>& held) const;

  // The edges of a list, without those of kinds that this build does not know.
  static absl::StatusOr<std::vector<WeightEdge>> ReadEdges(const weights::v1::ListResponse& list);
  // Returns the versions that the trainer keeps, the newest last.
  absl::StatusOr<std::vector<PublishedVersion>> List(const rpc::Channel& channel) const;
  // Asks the trainer to keep one version for `ttl`, even if it would otherwise be freed.
  absl::Status Lease(const rpc::Channel& channel, const PublishedVersion& version,
                     absl::Duration ttl) const;

  const Caller& caller() const { return caller_; }

 private:
  // How to get to a version.
  struct Route {
    std::vector<WeightStep> path;
    std::string lister;  // Who said so; kOriginId: the trainer.
    // The bytes of the version's manifest, if they were fetched.
    std::shared_ptr<const std::string> manifest;
  };
  absl::StatusOr<Route> FindRoute(ObjectFetcher* objects, const PublishedVersion& version,
                                  const std::optional<Fingerprint>& from) const;
  absl::StatusOr<StagedWeights> Walk(ObjectFetcher* objects, const PublishedVersion& version,
                                     const std::optional<Fingerprint>& held,
                                     const Route& route) const;
  weights::v1::LeaseRequest MakeLease(absl::Span<const std::string> manifests,
                                      absl::Duration ttl) const;
  absl::Status CheckManifest(const weights::v1::Manifest& manifest, const WeightEdge& edge) const;
  // What the steps of a path lead to. One of the pointers is null.
  struct Result {
    TensorSet* tensors;
    WeightDelta* delta;
    Fingerprint state;  // After the last step.
    uint64_t bytes = 0;
  };
  // `renew` is called again and again while it takes long. `known_manifest` is that of the step, if
  // it was fetched; else null.
  absl::Status TakeStep(ObjectFetcher* objects, const WeightStep& step,
                        std::shared_ptr<const std::string> known_manifest,
                        const std::function<absl::Status()>& renew, Result* result) const;

  const Caller caller_;
  const std::vector<TensorSpec> specs_;
  const std::string layout_id_;
};

}  // namespace sluice
