#include "services/rollout/core/engine/native/native_engine.h"

namespace sluice {

WeightsCheck NativeEngine::CheckWeights() {
  const std::vector<Fingerprint> found = model_->Fingerprints();
  WeightsCheck check{.version = version_, .found = Sum(found), .expected = held_};
  if (check.found == check.expected) return check;

  const std::vector<Fingerprint> wanted = TensorFingerprints(*weights_);
  for (size_t i = 0; i < found.size(); ++i) {
    if (!(found[i] == wanted[i])) check.tensors.push_back(weights_->spec(i).name);
  }
  return check;
}

}  // namespace sluice
