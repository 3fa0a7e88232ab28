#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json_fwd.hpp"

namespace sluice::ifeval {

// Says whether an answer, in UTF-8, follows an instruction.
struct Check {
  std::function<bool(absl::string_view answer)> follows;
  uint64_t passes = 1;  // About how often it reads the answer.
};

struct InstructionRow {
  absl::string_view id;  // As in IFEval: keywords:existence.
  absl::string_view doc;
  // `kwargs` is an object. INVALID_ARGUMENT: an argument is absent or has a wrong value; the
  // message names it.
  absl::StatusOr<Check> (*make)(const nlohmann::json& kwargs);
};

// The instructions that can be checked, by id.
const std::vector<InstructionRow>& Instructions();

// INVALID_ARGUMENT: there is no such instruction, or as InstructionRow::make.
absl::StatusOr<Check> MakeCheck(absl::string_view id, const nlohmann::json& kwargs);

}  // namespace sluice::ifeval
