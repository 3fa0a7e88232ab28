#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/cores/core_share.h"
#include "tools/sluice/supervisor.h"

namespace sluice::cli {

// Threads that each daemon of a role computes with, as --threads says; 0: its share of the cores.
// Rewards, queue and controller have no such choice: they compute on one.
struct ThreadChoice {
  int rollout = 0, trainer = 0;
};

// "2" for each role, or "rollout=2,trainer=4" for those named. INVALID_ARGUMENT: else.
absl::StatusOr<ThreadChoice> ParseThreads(const std::string& text);

// One machine's daemons: controller, queue, rollouts, rewards and trainers, on loopback.
struct FleetOptions {
  std::string data_dir;  // DIR/<daemon>, DIR/logs/<daemon>.log, DIR/state.json, DIR/cores.
  int rollouts = 1;
  int rewards = 1;
  int trainers = 1;
  ThreadChoice threads;
  // Rollouts serve the OpenAI-compatible API, on the port behind that of their metrics.
  bool http = false;
  bool fixed_ports = false;  // 7400 on; else any free ones.
  int cores = 0;             // Shared among the daemons; 0: those that this process may use.
};

// Half of the cores is the trainers', half the rollouts', at least one each. A role without daemons
// leaves its half to the other, and so does one whose threads were chosen leave what it does not
// use.
CorePlan PlanCores(const FleetOptions& options);

// "threads: 2 rollouts x 1, trainer 1, on 2 cores; while one waits, others compute on its cores".
std::string PlanText(const CorePlan& plan);

// The controller comes first; the others still lack --controller. `plan` is PlanCores()'s.
std::vector<DaemonSpec> FleetSpecs(const FleetOptions& options, const CorePlan& plan);

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

// Whether the supervisor of a fleet runs; its daemons die with it.
bool IsAlive(const FleetState& state);

// $SLUICE_DATA_DIR, else StateHome().
std::string DefaultDataDir();

// $XDG_STATE_HOME/sluice, else ~/.local/state/sluice. STATE_HOME/fleet names the data directory of
// this user's last fleet, so that it is found wherever that is.
std::string StateHome();
void RememberFleet(const std::string& data_dir);
// Unless another fleet has been remembered since.
void ForgetFleet(const std::string& data_dir);

// The data directory of the fleet that a command means: `given` by --data-dir, else
// $SLUICE_DATA_DIR, else StateHome() if one runs there, else the remembered one if it runs, else
// StateHome().
std::string FindFleetDir(const std::string& given);

// The fleet that runs on `data_dir`. NOT_FOUND: none does; names the one that runs elsewhere.
absl::StatusOr<FleetState> RunningFleet(const std::string& data_dir);

// The folder of this program, where the daemons lie too.
std::string ProgramDir();

}  // namespace sluice::cli
