#pragma once

#include "absl/strings/string_view.h"

namespace sluice {

// The weight matrices of a decoder layer, by the last part of their Hugging Face names. In a
// mixture of experts each expert has the last three. These are what LoRA can change.
inline constexpr absl::string_view kLayerMatrices[] = {"q_proj",    "k_proj",  "v_proj",   "o_proj",
                                                       "gate_proj", "up_proj", "down_proj"};

}  // namespace sluice
