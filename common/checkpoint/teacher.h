#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/checkpoint/model_dir.h"

namespace sluice {

// Checks that a teacher can say what it thinks of each token of a student's answers: that its
// vocabulary has as many tokens, that its tokenizer.json is the student's (if both have one), and
// that it was made for `longest` tokens.
// FAILED_PRECONDITION: it cannot; the message names both directories.
absl::Status CheckTeacher(const ModelDir& student, const ModelDir& teacher, int64_t longest);

// Checks that the tokenizer.json of `other`, which is the job's `role`, is that of the model, if
// both have one.
// FAILED_PRECONDITION: it is another one; the message names both.
absl::Status CheckSameTokenizer(absl::string_view role, const ModelDir& model,
                                const ModelDir& other);

}  // namespace sluice
