#include <cmath>

#include "absl/strings/str_cat.h"
#include "services/rollout/core/engine/engine.h"

namespace sluice {
namespace {

// Logits divided by a very low temperature overflow to infinity, and the sampler refuses such a
// row. This limit leaves a wide margin.
constexpr float kMinTemperature = 1e-6f;

}  // namespace

absl::Status CheckSampling(const SamplingParams& sampling, bool trainable) {
  if (!std::isfinite(sampling.temperature) || sampling.temperature < 0 ||
      (sampling.temperature > 0 && sampling.temperature < kMinTemperature)) {
    return absl::InvalidArgumentError(
        absl::StrCat("sampling.temperature is ", sampling.temperature,
                     "; wanted: 0, or a number >= ", kMinTemperature));
  }
  if (sampling.max_tokens == 0)
    return absl::InvalidArgumentError("sampling.max_tokens is 0; wanted: at least 1");
  if (sampling.min_tokens > sampling.max_tokens) {
    return absl::InvalidArgumentError(absl::StrCat("sampling.min_tokens ", sampling.min_tokens,
                                                   " is above max_tokens ", sampling.max_tokens));
  }
  if (!(sampling.top_p >= 0 && sampling.top_p <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("sampling.top_p is ", sampling.top_p, "; wanted: 0 to 1"));
  }
  if (!(sampling.min_p >= 0 && sampling.min_p <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("sampling.min_p is ", sampling.min_p, "; wanted: 0 to 1"));
  }
  if (!sampling.stop.empty() && sampling.min_tokens > 0) {
    return absl::InvalidArgumentError(
        "sampling.stop and min_tokens are both given, but min_tokens bans stop tokens only, not "
        "stop texts; leave one of them out");
  }

  // The trainer computes log-probs over the whole vocabulary, so it can train only on tokens that
  // were drawn from all of it.
  const auto not_replayed = [](const std::string& what) {
    return absl::InvalidArgumentError(
        absl::StrCat(what,
                     " cannot be trained on: the trainer does not replay kept sets yet; leave it "
                     "at its default"));
  };
  if (trainable && sampling.top_p != 0 && sampling.top_p != 1)
    return not_replayed(absl::StrCat("sampling.top_p ", sampling.top_p));
  if (trainable && sampling.top_k != 0)
    return not_replayed(absl::StrCat("sampling.top_k ", sampling.top_k));
  if (trainable && sampling.min_p != 0)
    return not_replayed(absl::StrCat("sampling.min_p ", sampling.min_p));
  if (trainable && sampling.temperature == 0) {
    return absl::InvalidArgumentError(
        "sampling.temperature 0 cannot be trained on: every token then has the log-prob 0; use a "
        "value above 0");
  }
  if (trainable && !sampling.stop.empty()) {
    return absl::InvalidArgumentError(
        "sampling.stop cannot be trained on: answers are scored by the text of all their tokens; "
        "use stop_ids");
  }
  if (trainable && sampling.min_tokens > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("sampling.min_tokens ", sampling.min_tokens,
                     " cannot be trained on: the trainer could not replay the masked stop tokens"));
  }
  return absl::OkStatus();
}

}  // namespace sluice
