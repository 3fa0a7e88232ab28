#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/cores/core_share.h"
#include "tools/sluice/supervisor.h"

namespace sluice::cli {

// Number of compute threads for each daemon of a role, from --threads; 0: its share of the cores.
// The other roles have no such setting, because they compute on one thread.
struct ThreadChoice {
  int rollout = 0, trainer = 0;
};

// Parses "2", which is for both roles, or "rollout=2,trainer=4", which sets the named roles.
// INVALID_ARGUMENT: any other text.
absl::StatusOr<ThreadChoice> ParseThreads(const std::string& text);

// The daemons of one machine: controller, queue, rollouts, rewards and trainers, on the loopback
// interface.
struct FleetOptions {
  std::string data_dir;  // Holds DIR/<daemon>, DIR/logs/<daemon>.log, DIR/state.json, DIR/cores.
  int rollouts = 1;
  int rewards = 1;
  int trainers = 1;
  ThreadChoice threads;
  // Rollouts serve the OpenAI-compatible API, on the port after that of their metrics.
  bool http = false;
  bool fixed_ports = false;    // Ports from 7400 up, instead of any free ones.
  bool insecure = false;       // Without certificates.
  std::string judges;          // File of the judges that jobs may ask; empty: there are none.
  std::string plugin_servers;  // File of the servers of plug-ins; empty: there are none.
  int cores = 0;  // Cores to share among the daemons; 0: all that this process may use.
};

// Plans the threads of each daemon. Half of the cores go to the trainers, half to the rollouts,
// with at least one thread per daemon. If a role has no daemons, or a chosen number of threads, the
// other role gets the rest.
CorePlan PlanCores(const FleetOptions& options);

// For example "threads: 2 rollouts x 1, trainer 1, on 2 cores; while one waits, others compute on
// its cores".
std::string PlanText(const CorePlan& plan);

// Returns the daemons to start. The controller is the first; the others still lack --controller.
// `plan` is the result of PlanCores().
std::vector<DaemonSpec> FleetSpecs(const FleetOptions& options, const CorePlan& plan);

// Starts all daemons on `supervisor` and returns the controller's address.
absl::StatusOr<std::string> StartFleet(const FleetOptions& options, Supervisor* supervisor);

// What `dev` and fault tests know of a running fleet. It is stored in DIR/state.json, which is
// rewritten at each change.
struct FleetState {
  pid_t supervisor = -1;
  uint64_t supervisor_start = 0;
  std::string controller;  // HOST:PORT.
  std::vector<DaemonState> daemons;
};
absl::Status WriteFleetState(const std::string& data_dir, const FleetState& state);
// NOT_FOUND: no fleet has written a state there.
absl::StatusOr<FleetState> ReadFleetState(const std::string& data_dir);
void RemoveFleetState(const std::string& data_dir);
std::string FleetStateJson(const FleetState& state);

// Whether the fleet's supervisor runs. Its daemons die with it.
bool IsAlive(const FleetState& state);

// Returns $SLUICE_DATA_DIR, else StateHome().
std::string DefaultDataDir();

// Returns $XDG_STATE_HOME/sluice, else ~/.local/state/sluice. The file `fleet` in it names the data
// directory of this user's last fleet, so that commands find a fleet with another data directory.
std::string StateHome();
// Writes that file.
void RememberFleet(const std::string& data_dir);
// Removes that file, unless it names another fleet by now.
void ForgetFleet(const std::string& data_dir);

// Returns the data directory of the fleet that a command is about: `given` (--data-dir), else
// $SLUICE_DATA_DIR, else StateHome() if a fleet runs there, else the remembered one if it runs,
// else StateHome().
std::string FindFleetDir(const std::string& given);

// Returns the fleet that runs on `data_dir`. NOT_FOUND: none runs there; the hint names a fleet
// that runs elsewhere.
absl::StatusOr<FleetState> FindRunningFleet(const std::string& data_dir);

// Returns the folder of this program, which also holds the daemons.
std::string ProgramDir();

}  // namespace sluice::cli
