#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "common/checkpoint/model_dir.h"

namespace sluice {

// Checks that a teacher can say what it thinks of each token of a student's answers: that its
// vocabulary has as many tokens, that its tokenizer.json is the student's (if both have one), and
// that it was made for `longest` tokens.
// FAILED_PRECONDITION: it cannot; the message names both directories.
absl::Status CheckTeacher(const ModelDir& student, const ModelDir& teacher, int64_t longest);

}  // namespace sluice
