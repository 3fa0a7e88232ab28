#include "tools/sluice/fleet.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/base/status.h"

namespace sluice::cli {
namespace {

int Cores() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

std::string Loopback(const FleetOptions& options, int port) { return absl::StrCat("127.0.0.1:", options.fixed_ports ? port : 0); }

std::string StatePath(const std::string& data_dir) { return data_dir + "/state.json"; }

}  // namespace

ThreadShares ShareThreads(int cores, int rollouts) {
  ThreadShares shares;
  shares.trainer = std::max(1, cores / 2);
  shares.rollout = std::max(1, (cores - shares.trainer) / std::max(1, rollouts));
  shares.reward = std::max(1, cores / 4);
  return shares;
}

std::vector<DaemonSpec> FleetSpecs(const FleetOptions& options) {
  const ThreadShares shares = ShareThreads(options.cores > 0 ? options.cores : Cores(), options.rollouts);
  std::vector<DaemonSpec> specs;
  const auto add = [&](const std::string& role, int index, int port, int threads) {
    DaemonSpec spec;
    spec.name = absl::StrCat(role, "-", index);
    spec.role = role;
    spec.program = absl::StrCat(ProgramDir(), "/sluice-", role);
    spec.args = {"--id", spec.name, "--data-dir", absl::StrCat(options.data_dir, "/", spec.name), "--threads", absl::StrCat(threads)};
    spec.listen = Loopback(options, port);
    spec.ops = Loopback(options, port + 1);
    if (options.http && role == "rollout") spec.args.insert(spec.args.end(), {"--http", Loopback(options, port + 2)});
    specs.push_back(std::move(spec));
  };
  // Blocks of ten ports a role, three for each daemon; a role of more than three moves those behind it up.
  const auto block = [](int daemons) { return std::max(10, (3 * daemons + 9) / 10 * 10); };
  int port = 7420;
  add("controller", 0, 7400, 1);
  add("queue", 0, 7410, 1);
  for (int i = 0; i < options.rollouts; ++i) add("rollout", i, port + 3 * i, shares.rollout);
  port += block(options.rollouts);
  for (int i = 0; i < options.rewards; ++i) add("reward", i, port + 3 * i, shares.reward);
  add("trainer", 0, port + block(options.rewards), shares.trainer);
  return specs;
}

absl::StatusOr<std::string> StartFleet(const FleetOptions& options, Supervisor* supervisor) {
  std::vector<DaemonSpec> specs = FleetSpecs(options);
  for (const DaemonSpec& spec : specs) SLUICE_RETURN_IF_ERROR(MakeDirs(absl::StrCat(options.data_dir, "/", spec.name)));
  SLUICE_RETURN_IF_ERROR(supervisor->Start({specs[0]}));
  const std::string controller = supervisor->states()[0].listening;
  specs.erase(specs.begin());
  for (DaemonSpec& spec : specs) spec.args.insert(spec.args.end(), {"--controller", controller});
  SLUICE_RETURN_IF_ERROR(supervisor->Start(specs));
  return controller;
}

std::string FleetStateJson(const FleetState& state) {
  nlohmann::ordered_json json = {{"supervisor", state.supervisor}, {"supervisor_start", state.supervisor_start}, {"controller", state.controller}};
  json["daemons"] = nlohmann::ordered_json::array();
  for (const DaemonState& daemon : state.daemons) {
    json["daemons"].push_back({{"name", daemon.name}, {"role", daemon.role}, {"pid", daemon.pid}, {"start", daemon.start},
                               {"listening", daemon.listening}, {"ops", daemon.ops}, {"ready", daemon.ready}, {"restarts", daemon.restarts},
                               {"last_end", daemon.last_end}, {"log", daemon.log}});
  }
  return json.dump(2) + "\n";
}

absl::Status WriteFleetState(const std::string& data_dir, const FleetState& state) {
  return WriteFileAtomic(StatePath(data_dir), FleetStateJson(state));
}

absl::StatusOr<FleetState> ReadFleetState(const std::string& data_dir) {
  SLUICE_ASSIGN_OR_RETURN(const std::string text, ReadFile(StatePath(data_dir)));
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object()) return absl::DataLossError(absl::StrCat(StatePath(data_dir), " is no JSON object"));
  FleetState state;
  try {
    state.supervisor = json.at("supervisor");
    state.supervisor_start = json.at("supervisor_start");
    state.controller = json.at("controller");
    for (const nlohmann::json& daemon : json.at("daemons")) {
      state.daemons.push_back({.name = daemon.at("name"), .role = daemon.at("role"), .listening = daemon.at("listening"), .ops = daemon.at("ops"),
                               .log = daemon.at("log"), .pid = daemon.at("pid"), .start = daemon.at("start"), .ready = daemon.at("ready"),
                               .restarts = daemon.at("restarts"), .last_end = daemon.at("last_end")});
    }
  } catch (const nlohmann::json::exception& error) {
    return absl::DataLossError(absl::StrCat(StatePath(data_dir), ": ", error.what()));
  }
  return state;
}

void RemoveFleetState(const std::string& data_dir) { unlink(StatePath(data_dir).c_str()); }

std::string DefaultDataDir() {
  if (const char* dir = std::getenv("SLUICE_DATA_DIR"); dir != nullptr && *dir != '\0') return std::filesystem::absolute(dir).string();
  if (const char* state = std::getenv("XDG_STATE_HOME"); state != nullptr && *state != '\0') return absl::StrCat(state, "/sluice");
  const char* home = std::getenv("HOME");
  return absl::StrCat(home == nullptr ? "/tmp" : home, "/.local/state/sluice");
}

std::string ProgramDir() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).parent_path().string();
}

}  // namespace sluice::cli
