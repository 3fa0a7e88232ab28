#pragma once

#include <map>
#include <string>

#include "sluice/rpc/v1/options.pb.h"

namespace sluice::admin::v1 {
class Daemon;
class DaemonsResponse;
}  // namespace sluice::admin::v1

namespace sluice::cli {

// "rollout".
std::string RoleText(rpc::v1::Role role);
// What a daemon does: lost, left (it ended in an orderly way), draining (it still works for a job),
// drained, idle or working.
std::string DaemonStateText(const admin::v1::Daemon& daemon);
// The pool that the daemon was started with.
std::string PoolText(const admin::v1::Daemon& daemon);

// A line for each daemon. `names` are those of the jobs that the reader may see, by id.
std::string DaemonListText(const admin::v1::DaemonsResponse& response,
                           const std::map<std::string, std::string>& names, bool wide);

}  // namespace sluice::cli
