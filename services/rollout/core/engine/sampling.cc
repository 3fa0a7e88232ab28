#include <cmath>

#include "absl/strings/str_cat.h"
#include "services/rollout/core/engine/engine.h"

namespace sluice {

absl::Status CheckSampling(const SamplingParams& sampling, bool trainable) {
  if (!std::isfinite(sampling.temperature) || sampling.temperature < 0) {
    return absl::InvalidArgumentError(absl::StrCat("sampling.temperature is ", sampling.temperature, "; wanted: a number >= 0"));
  }
  if (sampling.max_tokens == 0) return absl::InvalidArgumentError("sampling.max_tokens is 0; wanted: at least 1");
  if (sampling.min_tokens > sampling.max_tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("sampling.min_tokens ", sampling.min_tokens, " is above max_tokens ", sampling.max_tokens));
  }
  const auto not_built = [](const std::string& what) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": this build does not cut the distribution; leave it at its default"));
  };
  if (sampling.top_p != 0 && sampling.top_p != 1) return not_built(absl::StrCat("sampling.top_p ", sampling.top_p));
  if (sampling.top_k != 0) return not_built(absl::StrCat("sampling.top_k ", sampling.top_k));
  if (sampling.min_p != 0) return not_built(absl::StrCat("sampling.min_p ", sampling.min_p));
  if (!sampling.stop.empty()) {
    return absl::InvalidArgumentError("sampling.stop: this build does not stop at texts; use stop_ids");
  }
  if (trainable && sampling.temperature == 0) {
    return absl::InvalidArgumentError("sampling.temperature 0 cannot be trained on: its tokens have no log-prob; use a value above 0");
  }
  if (trainable && sampling.min_tokens > 0) {
    return absl::InvalidArgumentError(absl::StrCat("sampling.min_tokens ", sampling.min_tokens,
                                                   " cannot be trained on: the trainer could not replay the masked stop tokens"));
  }
  return absl::OkStatus();
}

}  // namespace sluice
