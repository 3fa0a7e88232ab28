#pragma once

#include <string>

#include "tools/sluice/exit_code.h"

namespace sluice::cli {

// A fleet of daemons on this machine that outlives the command. A supervisor process with its own
// session keeps it running.
struct DevOptions {
  std::string data_dir;
  int rollouts = 2;
  int rewards = 1;
  int trainers = 1;
  std::string threads;         // In the form of ParseThreads(); empty: the daemons share the cores.
  bool http = false;           // The rollouts serve the OpenAI-compatible API.
  bool free_ports = false;     // Use any free ports instead of 7400 and up.
  std::string judges;          // File of the judges that jobs may ask; empty: there are none.
  std::string plugin_servers;  // File of the servers of plug-ins; empty: there are none.
  bool insecure = false;       // The daemons work without certificates.
  std::string output = "table";  // The format of the list of daemons; see output.h.
};

ExitCode DevUp(const DevOptions& options);
// The supervisor process that DevUp() starts: runs the fleet until SIGTERM. Its first line on
// stdout is a JSON object with the controller's address, or {"error": ..}.
ExitCode DevSupervise(const DevOptions& options);
ExitCode DevDown(const DevOptions& options);
ExitCode DevStatus(const DevOptions& options);
// `role` is a daemon's name, or a role, which means its first daemon. `signal` is KILL, TERM, STOP,
// CONT, ..
ExitCode DevKill(const DevOptions& options, const std::string& role, const std::string& signal);

}  // namespace sluice::cli
