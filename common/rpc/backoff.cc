#include "common/rpc/backoff.h"

#include <algorithm>
#include <random>

namespace sluice::rpc {

absl::Duration Backoff::Next(absl::Duration at_least) {
  // The jitter only spreads callers out in time, so it need not be reproducible.
  thread_local std::minstd_rand generator{std::random_device{}()};
  const double jitter =
      std::uniform_real_distribution<double>(1 - options_.jitter, 1 + options_.jitter)(generator);
  const absl::Duration wait = next_ * jitter;
  next_ = std::min(next_ * options_.factor, options_.longest);
  return std::max(wait, at_least);
}

}  // namespace sluice::rpc
