#pragma once

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/algorithms/registry.h"
#include "common/algorithms/spec.h"

namespace sluice {

// Presets: named settings of the whole `algorithm` block, chosen by `algorithm.preset`. A preset
// replaces the defaults, and the job file replaces values of the preset.
absl::Span<const Row<AlgorithmSpec>> PresetRows();

}  // namespace sluice
