#include "common/daemon/cores.h"

#include "common/base/status.h"
#include "common/cores/usable_cores.h"

namespace sluice::daemon {

About::Flag CoresFlag() {
  return {
      .name = "--cores",
      .help =
          "file through which the daemons of one machine share its cores: while a daemon waits, "
          "the others use its cores. `sluice` writes the file. Without it, the daemon uses "
          "--threads"};
}

absl::StatusOr<std::unique_ptr<CoreShare>> OpenCores(const Flags& flags) {
  const std::string plan = flags.OwnFlag("--cores");
  if (!plan.empty()) return CoreShare::Open(plan, flags.id);
  return std::make_unique<CoreShare>(flags.threads > 0 ? flags.threads : UsableCores());
}

}  // namespace sluice::daemon
