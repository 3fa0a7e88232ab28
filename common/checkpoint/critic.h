#pragma once

#include "absl/status/status.h"
#include "common/checkpoint/model_dir.h"

namespace sluice {

// Checks that a critic can begin with the weights of `critic`: that its config.json says what that
// of the policy says about the computation, but for the output head, and that its tokenizer.json is
// the policy's (if both have one). The directory must not be a checkpoint with a critic of its own,
// because what would be read is the policy beside it.
// FAILED_PRECONDITION: it cannot; the message names both directories.
absl::Status CheckCritic(const ModelDir& policy, const ModelDir& critic);

}  // namespace sluice
