#pragma once

#include <functional>
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

// Gets published versions from a trainer, whole and checked: the CRC of each message, the SHA-256
// of each object, the manifest against what was announced. Thread-safe.
class WeightFetcher {
 public:
  struct Caller {
    std::string job;  // 32 hex digits.
    std::string worker;
    int64_t incarnation = 0;  // 0: a person's tool, which is in no list of workers.
  };
  // `layout`: names, types and shapes that every version must have.
  WeightFetcher(Caller caller, const TensorSet& layout);

  // One version. Where its state is `held`, nothing is fetched. CANCELLED: `cancel`.
  // DEADLINE_EXCEEDED: 64 MiB took over a minute. NOT_FOUND: the trainer no longer has it.
  // DATA_LOSS: bytes that are not what they were announced as. INVALID_ARGUMENT: another layout.
  absl::StatusOr<StagedWeights> Fetch(const rpc::Channel& channel, const LatestVersion& version,
                                      const Fingerprint& held, rpc::Cancel* cancel) const;

  // What the trainer keeps, the newest last.
  absl::StatusOr<std::vector<LatestVersion>> List(const rpc::Channel& channel) const;
  // Keeps one version from being freed until then.
  absl::Status Lease(const rpc::Channel& channel, const LatestVersion& version,
                     absl::Duration ttl) const;

  common::v1::Call MakeCall() const;

 private:
  using Take = std::function<absl::Status(std::string object)>;
  absl::Status FetchObjects(const rpc::Channel& channel, absl::Span<const std::string> ids,
                            rpc::Cancel* cancel, const Take& take) const;

  const Caller caller_;
  const std::vector<TensorSpec> specs_;
  const std::string layout_id_;
};

}  // namespace sluice
