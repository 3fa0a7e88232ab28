#pragma once

#include "common/verifiers/verifier.h"

namespace sluice {

// 1 if the number behind the answer's last `####` equals the gold's, as rationals (18.0 is 18),
// else 0. The gold is the number behind its own `####`, or the whole field (a text or a number)
// where it has none. The strict rule: an answer without `####` scores 0.
absl::StatusOr<std::unique_ptr<Verifier>> MakeGsm8k(const nlohmann::json& args);

}  // namespace sluice
