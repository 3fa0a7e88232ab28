#include "common/daemon/cores.h"

#include "common/base/status.h"
#include "common/cores/usable_cores.h"

namespace sluice::daemon {

About::Flag CoresFlag() {
  return {.name = "--cores",
          .help =
              "file by which the daemons of a machine share its cores: while one waits, others "
              "compute on its "
              "cores. `sluice` writes it. Without it --threads holds"};
}

absl::StatusOr<std::unique_ptr<CoreShare>> OpenCores(const Flags& flags) {
  const std::string plan = flags.Own("--cores");
  if (!plan.empty()) return CoreShare::Open(plan, flags.id);
  return std::make_unique<CoreShare>(flags.threads > 0 ? flags.threads : UsableCores());
}

}  // namespace sluice::daemon
