#pragma once

#include <string>
#include <vector>

#include "tools/sluice/exit_code.h"

namespace sluice::cli {

struct RunOptions {
  std::string file;
  std::vector<std::string> sets;
  int rollouts = 0;  // 0: as many as the job needs to start.
  int rewards = 0;
  std::string threads;  // As ParseThreads() takes it, or empty: the cores are shared.
  // Empty: a temporary one, of which the logs alone stay where the job fails.
  std::string data_dir;
  bool json = false;
  bool quiet = false;
};

// One job on daemons of its own: starts them, submits, shows progress, ends them, prints the
// result. The first Ctrl-C cancels the job cleanly, the second kills. Where the job fails, the
// daemons' logs stay, and their directory is named.
ExitCode RunJob(const RunOptions& options);

}  // namespace sluice::cli
