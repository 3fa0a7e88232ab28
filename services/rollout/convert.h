#pragma once

#include "services/rollout/core/engine/engine.h"
#include "sluice/common/v1/common.pb.h"

// Converts types of the engine from and to protobuf messages.
namespace sluice::rollout {

SamplingParams FromProto(const common::v1::Sampling& sampling);
// `reason` must not be kNone.
common::v1::Finish ToProto(FinishReason reason);

}  // namespace sluice::rollout
