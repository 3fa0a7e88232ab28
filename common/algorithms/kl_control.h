#pragma once

#include <cstdint>

namespace sluice {

// Holds the KL to the reference at a target by adapting its coefficient in the reward (Ziegler et
// al., arXiv 1909.08593, section 2.2). All fields but `target` are positive.
struct KlControl {
  double target = 0;       // In nats per token. 0: the coefficient stays as it is.
  double horizon = 10000;  // In sequences.
};

// The coefficient after a step of `sequences` sequences whose mean KL was `kl`:
//   beta (1 + clip(kl / target - 1, -0.2, 0.2) sequences / horizon)
// It stays positive if `sequences` is below 5 times the horizon.
double AdaptKl(const KlControl& control, double beta, double kl, int64_t sequences);

}  // namespace sluice
