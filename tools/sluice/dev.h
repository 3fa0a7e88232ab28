#pragma once

#include <string>

#include "tools/sluice/exit_code.h"

namespace sluice::cli {

// A fleet on this machine that outlives the command: a supervisor process of its own session keeps
// it running.
struct DevOptions {
  std::string data_dir;
  int rollouts = 2;
  int rewards = 1;
  int trainers = 1;
  std::string threads;      // As ParseThreads() takes it, or empty: the cores are shared.
  bool http = false;        // The rollouts serve the OpenAI-compatible API.
  bool free_ports = false;  // Any free ones; else 7400 on.
  bool json = false;
};

ExitCode DevUp(const DevOptions& options);
// What `dev up` starts: runs the fleet until SIGTERM. Its first line on stdout is the fleet's
// state, or {"error": ..}.
ExitCode DevSupervise(const DevOptions& options);
ExitCode DevDown(const DevOptions& options);
ExitCode DevStatus(const DevOptions& options);
// `role`: a daemon's name, or a role, whose first daemon is meant. `signal`: KILL, TERM, STOP,
// CONT, ..
ExitCode DevKill(const DevOptions& options, const std::string& role, const std::string& signal);

}  // namespace sluice::cli
