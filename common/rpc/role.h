#pragma once

#include "absl/strings/string_view.h"

namespace sluice::rpc {

// Who a caller is: sluice.rpc.v1.Role by value, without its generated header.
enum class Role {
  kUnspecified = 0,
  kViewer = 1,
  kSubmitter = 2,
  kOperator = 3,
  kController = 4,
  kQueue = 5,
  kRollout = 6,
  kReward = 7,
  kTrainer = 8,
};

// "rollout", ..; "unknown" for a value that has no name.
absl::string_view RoleName(Role role);

}  // namespace sluice::rpc
