#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json_fwd.hpp"

namespace sluice {

// Returns the answers of a row that a job of this kind trains on: of kind sft the one in `answer`,
// of kind dpo that in `chosen` and that in `rejected`. An answer is a text, a number, or a list of
// messages whose last one is the assistant's: its `content` is the answer, as in the preference
// data of Hugging Face.
// INVALID_ARGUMENT: an answer is absent, empty, or of another form; or chosen and rejected are the
// same.
absl::StatusOr<std::vector<std::string>> AnswersOf(absl::string_view kind,
                                                   const nlohmann::json& row);

}  // namespace sluice
