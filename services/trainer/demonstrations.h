#pragma once

#include "absl/status/statusor.h"
#include "services/trainer/batch_payload.h"
#include "services/trainer/config.h"

namespace sluice {
struct ModelDir;
}

namespace sluice::trainer {

// Encodes rows of supervised data: the prompt exactly as a rollout would render it, then the row's
// `answer` (a text, or a number as its text) and the model's end token, which alone are trained.
// Rows above `config.max_context` tokens, or the model's context, train nothing. NOT_FOUND,
// INVALID_ARGUMENT, UNIMPLEMENTED: the model's tokenizer or template cannot be used.
// FAILED_PRECONDITION: the model names no end token.
absl::StatusOr<RowEncoder> MakeRowEncoder(const ModelDir& model, const JobConfig& config);

}  // namespace sluice::trainer
