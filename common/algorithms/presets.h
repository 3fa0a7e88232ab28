#pragma once

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/algorithms/registry.h"
#include "common/algorithms/spec.h"

namespace sluice {

// Named settings of the whole `algorithm` block (`algorithm.preset`), between the defaults and the
// job file.
absl::Span<const Row<AlgorithmSpec>> PresetRows();

}  // namespace sluice
