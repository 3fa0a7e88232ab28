#pragma once

#include "absl/strings/string_view.h"

namespace sluice::rpc {

// The role of a caller. The values are those of sluice.rpc.v1.Role, so that users need not include
// its generated header.
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

// The name of a role, such as "rollout"; "unknown" for a value that has no name.
absl::string_view RoleName(Role role);
// The role of that name; kUnspecified if there is none.
Role ParseRole(absl::string_view name);
// The roles of daemons; the others are roles of people.
inline constexpr Role kDaemonRoles[] = {Role::kController, Role::kQueue, Role::kRollout,
                                        Role::kReward, Role::kTrainer};

}  // namespace sluice::rpc
