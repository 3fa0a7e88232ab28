#pragma once

#include <string>

#include "sluice/rpc/v1/options.pb.h"

namespace sluice::admin::v1 {
class Daemon;
}

namespace sluice::cli {

// "rollout".
std::string RoleText(rpc::v1::Role role);
// What a daemon does: lost, left (it ended in an orderly way), draining (it still works for a job), drained, idle or working.
std::string DaemonStateText(const admin::v1::Daemon& daemon);

}  // namespace sluice::cli
