#pragma once

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "common/checkpoint/tensor_set.h"
#include "common/rl/version.h"
#include "common/weights/fingerprint.h"

namespace sluice {

// A version that is ready to be activated: every byte checked on the way (CRC per chunk, SHA-256
// per object), its fingerprint not yet recomputed over what the engine computes with.
struct StagedWeights {
  PolicyVersion version;
  Fingerprint state;  // What the engine must find once it has taken them.
  // Null: `state` is what the engine holds already, only the version changes.
  std::shared_ptr<const TensorSet> tensors;
  std::string manifest;  // Id, 32 bytes.
  absl::Duration fetch;  // From the announcement to here.
  uint64_t bytes = 0;    // Fetched for it.
};

}  // namespace sluice
