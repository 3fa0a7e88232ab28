#pragma once

#include <string>
#include <vector>

#include "tools/sluice/exit_code.h"

namespace sluice::cli {

struct RunOptions {
  std::string file;
  std::vector<std::string> sets;
  int rollouts = 0;  // 0: the number that the job needs to start.
  int rewards = 0;
  std::string threads;  // In the form of ParseThreads(); empty: the daemons share the cores.
  // Empty: a temporary directory; if the job fails, its logs are kept.
  std::string data_dir;
  std::string judges;            // File of the judges that the job may ask; empty: there are none.
  std::string plugin_servers;    // File of the servers of plug-ins; empty: there are none.
  bool insecure = false;         // The daemons work without certificates.
  std::string output = "table";  // The format of the result; see output.h.
  bool quiet = false;
};

// Runs one job on daemons of its own: starts them, submits the job, shows progress, stops the
// daemons and prints the result. The first Ctrl-C cancels the job, the second one kills everything.
// If the job fails, the daemons' logs are kept, and their directory is printed.
ExitCode RunJob(const RunOptions& options);

}  // namespace sluice::cli
