#include "common/models/decode_weights.h"

#include <numeric>

namespace sluice {

std::vector<Fingerprint> DecodeWeights::Fingerprints(Team* team) const {
  std::vector<int64_t> all(specs().size());
  std::iota(all.begin(), all.end(), 0);
  return Fingerprints(all, team);
}

}  // namespace sluice
