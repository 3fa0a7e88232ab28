#pragma once

#include "common/verifiers/verifier.h"

namespace sluice {

// 1 if the answer has the given tags: each exactly once, opened and closed, in this order, none
// within another, and with a text that is not blank. `strict` allows no text outside of them.
//
//   tags    names such as [think, answer]; needed, at most 16
//   strict  false
//
// Reads the whole answer, the thinking too, because think is often one of the tags.
absl::StatusOr<std::unique_ptr<Verifier>> MakeFormat(const nlohmann::json& args);

}  // namespace sluice
