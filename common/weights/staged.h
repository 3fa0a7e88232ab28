#pragma once

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "common/checkpoint/tensor_set.h"
#include "common/rl/version.h"
#include "common/weights/fingerprint.h"

namespace sluice {

// A downloaded version that is ready to be activated. Every byte was checked on the way (CRC per
// message, SHA-256 per object). The engine still has to recompute the fingerprint over the weights
// it computes with.
struct StagedWeights {
  PolicyVersion version;
  Fingerprint state;  // Fingerprint that the engine must find after loading.
  // Null if the engine already holds `state`, so that only the version number changes.
  std::shared_ptr<const TensorSet> tensors;
  std::string manifest;  // Id of the manifest: 32 bytes.
  absl::Duration fetch;  // Time from the announcement to the end of the download.
  uint64_t bytes = 0;    // Bytes downloaded for it.
};

}  // namespace sluice
