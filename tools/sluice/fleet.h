#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/sluice/supervisor.h"

namespace sluice::cli {

// One machine's daemons: controller, queue, rollouts, rewards and a trainer, on loopback.
struct FleetOptions {
  std::string data_dir;    // DIR/<daemon>, DIR/logs/<daemon>.log, DIR/state.json.
  int rollouts = 1;
  int rewards = 1;
  bool http = false;         // Rollouts serve the OpenAI-compatible API, on the port behind that of their metrics.
  bool fixed_ports = false;  // 7400 on; else any free ones.
  int cores = 0;             // Shared among the daemons; 0: the machine's.
};

// How many threads compute in each daemon, by role, on a machine with `cores`.
struct ThreadShares {
  int trainer = 1, rollout = 1, reward = 1;
};
ThreadShares ShareThreads(int cores, int rollouts);

// The controller comes first; the others still lack --controller.
std::vector<DaemonSpec> FleetSpecs(const FleetOptions& options);

// Starts all of it on `supervisor` and returns the controller's address.
absl::StatusOr<std::string> StartFleet(const FleetOptions& options, Supervisor* supervisor);

// What `dev` and fault tests know of a running fleet: DIR/state.json, written at each change.
struct FleetState {
  pid_t supervisor = -1;
  uint64_t supervisor_start = 0;
  std::string controller;  // HOST:PORT.
  std::vector<DaemonState> daemons;
};
absl::Status WriteFleetState(const std::string& data_dir, const FleetState& state);
// NOT_FOUND: no fleet has written there.
absl::StatusOr<FleetState> ReadFleetState(const std::string& data_dir);
void RemoveFleetState(const std::string& data_dir);
std::string FleetStateJson(const FleetState& state);

// $SLUICE_DATA_DIR, else $XDG_STATE_HOME/sluice, else ~/.local/state/sluice.
std::string DefaultDataDir();

// The folder of this program, where the daemons lie too.
std::string ProgramDir();

}  // namespace sluice::cli
