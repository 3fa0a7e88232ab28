#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "services/trainer/core/experience.h"

namespace sluice::trainer {

// Groups as bytes, for the other ranks of a trainer. Both ends must be of the same build.
std::string EncodeGroups(absl::Span<const Group> groups);
// INVALID_ARGUMENT: the bytes are not those of EncodeGroups().
absl::StatusOr<std::vector<Group>> DecodeGroups(absl::string_view bytes);

}  // namespace sluice::trainer
