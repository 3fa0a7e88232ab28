#pragma once

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "common/checkpoint/tensor_set.h"
#include "common/rl/version.h"
#include "common/weights/fingerprint.h"

namespace sluice {
struct WeightDelta;  // common/weights/weight_delta.h

// What an engine has made of a staged version before its activation; see Engine::PrepareWeights().
class PreparedWeights {
 public:
  virtual ~PreparedWeights() = default;
};

// A downloaded version that is ready to be activated: whole, or as the way to it from the weights
// that the engine holds. Every byte was checked on the way (CRC per message, SHA-256 per object).
// The engine still has to find the fingerprint in the weights that it computes with.
struct StagedWeights {
  PolicyVersion version;
  Fingerprint state;  // Fingerprint that the engine must find after loading.
  // At most one of the two is set. If both are null, the engine already holds `state`, so that only
  // the version number changes.
  std::shared_ptr<const TensorSet> tensors;
  std::shared_ptr<const WeightDelta> delta;
  std::shared_ptr<PreparedWeights> prepared;  // Null: nothing was prepared.
  std::string manifest;                       // Id of the manifest: 32 bytes.
  bool candidate = false;                     // The version is on trial at this engine.
  absl::Duration fetch;  // Time from the announcement to the end of the download.
  // How long it then waited until the engine had room for it.
  absl::Duration waited;
  // Bytes downloaded for it, and for those that it replaced while they waited.
  uint64_t bytes = 0;
};

}  // namespace sluice
