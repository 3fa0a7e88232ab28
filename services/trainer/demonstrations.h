#pragma once

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "services/trainer/batch_payload.h"
#include "services/trainer/config.h"

namespace sluice {
struct ModelDir;
}

namespace sluice::trainer {

// Makes an encoder for the rows of these sources, of kinds sft and dpo. The tokens of an answer
// (AnswersOf()) are the prompt, exactly as a rollout renders it, then the answer and the model's
// end token. Only answer and end token are trained. A row of which an answer has more tokens than
// `config.max_context` or than the model's context is not trained on.
// NOT_FOUND, INVALID_ARGUMENT, UNIMPLEMENTED: the model's tokenizer or template cannot be used.
// FAILED_PRECONDITION: the model names no end token.
absl::StatusOr<RowEncoder> MakeRowEncoder(const ModelDir& model, const JobConfig& config,
                                          absl::Span<const JobConfig::Source> sources);

}  // namespace sluice::trainer
