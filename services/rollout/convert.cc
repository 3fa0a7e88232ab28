#include "services/rollout/convert.h"

namespace sluice::rollout {

SamplingParams FromProto(const common::v1::Sampling& sampling) {
  SamplingParams params{.temperature = static_cast<float>(sampling.temperature()),
                        .top_p = sampling.top_p(),
                        .top_k = sampling.top_k(),
                        .min_p = sampling.min_p(),
                        .max_tokens = sampling.max_tokens(),
                        .min_tokens = sampling.min_tokens(),
                        .ignore_eos = sampling.ignore_eos()};
  params.stop.assign(sampling.stop().begin(), sampling.stop().end());
  params.stop_ids.assign(sampling.stop_ids().begin(), sampling.stop_ids().end());
  return params;
}

common::v1::Finish ToProto(FinishReason reason) {
  return reason == FinishReason::kStop ? common::v1::FINISH_STOP : common::v1::FINISH_LENGTH;
}

}  // namespace sluice::rollout
