#include <numeric>
#include <utility>

#include "services/rollout/core/engine/native/native_engine.h"

namespace sluice {

WeightsCheck NativeEngine::CheckWeights(std::optional<WeightDamage>* damage) {
  const bool known = damaged_;
  std::vector<int64_t> all(held_.tensors.size());
  std::iota(all.begin(), all.end(), 0);
  std::vector<Fingerprint> found = ReadAll();
  std::optional<WeightDamage> wrong = Compare(held_, all, found);
  WeightsCheck check{.version = held_.version, .found = Sum(found), .expected = held_.state};
  if (!wrong.has_value()) held_.rotation.PassAll(stats_.tokens_generated);

  // Of the older versions that requests end with, the first that is wrong takes its place.
  for (auto older = older_.begin(); older != older_.end() && !wrong.has_value(); ++older) {
    found = model_->FingerprintsOf(*older->weights, all);
    wrong = Compare(*older, all, found);
    if (wrong.has_value())
      check = {.version = older->version, .found = Sum(found), .expected = older->state};
    else older->rotation.PassAll(stats_.tokens_generated);
  }

  if (wrong.has_value()) {
    check.tensors = wrong->tensors;
    DropOlder();
  }
  *damage = known ? std::nullopt : std::move(wrong);
  return check;
}

}  // namespace sluice
