#include "common/optim/bf16.h"

namespace sluice {

void CastToBf16(const float* __restrict master, int64_t n, uint16_t* __restrict working) {
  for (int64_t i = 0; i < n; ++i) working[i] = Bf16FromFloat(master[i]);
}

}  // namespace sluice
