#pragma once

#include "services/rollout/core/engine/engine.h"
#include "sluice/common/v1/common.pb.h"

// The engine's nouns to and from their messages.
namespace sluice::rollout {

SamplingParams FromProto(const common::v1::Sampling& sampling);
common::v1::Finish ToProto(FinishReason reason);  // Of an answer that has ended.

}  // namespace sluice::rollout
