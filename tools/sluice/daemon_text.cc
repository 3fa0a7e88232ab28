#include "tools/sluice/daemon_text.h"

#include "absl/strings/ascii.h"
#include "absl/strings/strip.h"
#include "sluice/admin/v1/admin.pb.h"

namespace sluice::cli {

std::string RoleText(rpc::v1::Role role) {
  return absl::AsciiStrToLower(absl::StripPrefix(rpc::v1::Role_Name(role), "ROLE_"));
}

std::string DaemonStateText(const admin::v1::Daemon& daemon) {
  if (daemon.lost()) return daemon.left() ? "left" : "lost";
  if (daemon.draining()) return daemon.jobs().empty() ? "drained" : "draining";
  return daemon.jobs().empty() ? "idle" : "working";
}

}  // namespace sluice::cli
