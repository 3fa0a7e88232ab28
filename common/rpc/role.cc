#include "common/rpc/role.h"

#include "sluice/rpc/v1/options.pb.h"

namespace sluice::rpc {

static_assert(static_cast<int>(Role::kViewer) == v1::ROLE_VIEWER);
static_assert(static_cast<int>(Role::kSubmitter) == v1::ROLE_SUBMITTER);
static_assert(static_cast<int>(Role::kOperator) == v1::ROLE_OPERATOR);
static_assert(static_cast<int>(Role::kController) == v1::ROLE_CONTROLLER);
static_assert(static_cast<int>(Role::kQueue) == v1::ROLE_QUEUE);
static_assert(static_cast<int>(Role::kRollout) == v1::ROLE_ROLLOUT);
static_assert(static_cast<int>(Role::kReward) == v1::ROLE_REWARD);
static_assert(static_cast<int>(Role::kTrainer) == v1::ROLE_TRAINER);

absl::string_view RoleName(Role role) {
  switch (role) {
    case Role::kUnspecified: break;
    case Role::kViewer: return "viewer";
    case Role::kSubmitter: return "submitter";
    case Role::kOperator: return "operator";
    case Role::kController: return "controller";
    case Role::kQueue: return "queue";
    case Role::kRollout: return "rollout";
    case Role::kReward: return "reward";
    case Role::kTrainer: return "trainer";
  }
  return "unknown";
}

Role ParseRole(absl::string_view name) {
  for (int i = v1::ROLE_VIEWER; i <= v1::ROLE_TRAINER; ++i) {
    if (RoleName(static_cast<Role>(i)) == name) return static_cast<Role>(i);
  }
  return Role::kUnspecified;
}

}  // namespace sluice::rpc
