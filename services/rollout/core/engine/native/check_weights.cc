#include "services/rollout/core/engine/native/native_engine.h"

namespace sluice {

WeightsCheck NativeEngine::CheckWeights() {
  const std::vector<Fingerprint> found = model_->Fingerprints();
  WeightsCheck check{.version = version_, .found = Sum(found), .expected = held_};
  for (size_t i = 0; i < found.size(); ++i) {
    if (!(found[i] == tensors_[i])) check.tensors.push_back(model_->weights().specs()[i].name);
  }
  return check;
}

}  // namespace sluice
