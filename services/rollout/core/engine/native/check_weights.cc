#include <numeric>
#include <utility>

#include "services/rollout/core/engine/native/native_engine.h"

namespace sluice {

WeightsCheck NativeEngine::CheckWeights(std::optional<WeightDamage>* damage) {
  const bool known = damaged_;
  std::vector<int64_t> all(tensors_.size());
  std::iota(all.begin(), all.end(), 0);
  const std::vector<Fingerprint> found = ReadAll();
  std::optional<WeightDamage> wrong = Compare(all, found);
  WeightsCheck check{.version = held_version_, .found = Sum(found), .expected = held_};
  if (wrong.has_value()) check.tensors = wrong->tensors;
  if (!damaged_) rotation_.PassAll(stats_.tokens_generated);
  *damage = known ? std::nullopt : std::move(wrong);
  return check;
}

}  // namespace sluice
