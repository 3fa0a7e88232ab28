#include "tools/sluice/fleet.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/child.h"
#include "common/base/file.h"
#include "common/base/status.h"
#include "common/cores/usable_cores.h"
#include "tools/sluice/fleet_tls.h"

namespace sluice::cli {
namespace {

constexpr int kMaxThreads = 1024;

std::string LoopbackAddress(const FleetOptions& options, int port) {
  return absl::StrCat("127.0.0.1:", options.fixed_ports ? port : 0);
}

std::string StatePath(const std::string& data_dir) { return data_dir + "/state.json"; }
std::string CoresPath(const std::string& data_dir) { return data_dir + "/cores"; }

// Returns $SLUICE_DATA_DIR, or "".
std::string ChosenDataDir() {
  const char* dir = std::getenv("SLUICE_DATA_DIR");
  return dir != nullptr && *dir != '\0' ? std::filesystem::absolute(dir).lexically_normal().string()
                                        : "";
}

std::string RememberedPath() { return StateHome() + "/fleet"; }
std::string RememberedDir() { return ReadFile(RememberedPath()).value_or(""); }

bool IsFleetRunning(const std::string& data_dir) {
  const absl::StatusOr<FleetState> state = ReadFleetState(data_dir);
  return state.ok() && IsAlive(*state);
}

}  // namespace

absl::StatusOr<ThreadChoice> ParseThreads(const std::string& text) {
  const auto error = [&](absl::string_view part) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", part, "' is no choice of threads; wanted: a number from 1 to ",
                     kMaxThreads, ", or rollout=N,trainer=N"));
  };
  ThreadChoice choice;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    const std::vector<absl::string_view> sides = absl::StrSplit(part, '=');
    int threads = 0;
    if (!absl::SimpleAtoi(sides.back(), &threads) || threads < 1 || threads > kMaxThreads)
      return error(part);

    const bool both = sides.size() == 1;
    if (both && text != part) return error(text);
    if (!both && (sides.size() > 2 || (sides[0] != "rollout" && sides[0] != "trainer")))
      return error(part);
    if (both || sides[0] == "rollout") choice.rollout = threads;
    if (both || sides[0] == "trainer") choice.trainer = threads;
  }
  return choice;
}

CorePlan PlanCores(const FleetOptions& options) {
  CorePlan plan;
  plan.cores = options.cores > 0 ? options.cores : UsableCores();
  const int rollouts = options.rollouts, trainers = options.trainers;
  int rollout = options.threads.rollout, trainer = options.threads.trainer;
  if (trainer == 0) {
    // Trainers get half of the cores, rounded down, or what the chosen rollout threads leave.
    const int others = rollouts == 0 ? 0
                       : rollout > 0 ? rollouts * rollout
                                     : plan.cores - plan.cores / 2;
    trainer = std::max(1, (plan.cores - others) / std::max(1, trainers));
  }

  if (rollout == 0)
    rollout = std::max(1, (plan.cores - trainers * trainer) / std::max(1, rollouts));

  for (int i = 0; i < rollouts; ++i) {
    plan.members.push_back({absl::StrCat("rollout-", i), rollout, options.threads.rollout > 0});
  }
  for (int i = 0; i < trainers; ++i) {
    plan.members.push_back({absl::StrCat("trainer-", i), trainer, options.threads.trainer > 0});
  }
  return plan;
}

std::string PlanText(const CorePlan& plan) {
  std::vector<std::string> roles;
  bool lends = false;
  for (const absl::string_view role : {"rollout", "trainer"}) {
    const CorePlan::Member* first = nullptr;
    int count = 0;
    for (const CorePlan::Member& member : plan.members) {
      if (!absl::StartsWith(member.name, role)) continue;
      if (first == nullptr) first = &member;
      ++count;
    }
    if (first == nullptr) continue;
    roles.push_back(count == 1 ? absl::StrCat(role, " ", first->threads)
                               : absl::StrCat(count, " ", role, "s x ", first->threads));
    lends = lends || (!first->fixed && plan.members.size() > 1);
  }

  return absl::StrCat(
      "threads: ", absl::StrJoin(roles, ", "), ", on ", plan.cores,
      plan.cores == 1 ? " core" : " cores",
      lends && plan.cores > 1 ? "; while one waits, others compute on its cores" : "");
}

std::vector<DaemonSpec> FleetSpecs(const FleetOptions& options, const CorePlan& plan) {
  std::vector<DaemonSpec> specs;
  const auto add = [&](const std::string& role, int index, int port) {
    DaemonSpec spec;
    spec.name = absl::StrCat(role, "-", index);
    spec.role = role;
    spec.program = absl::StrCat(ProgramDir(), "/sluice-", role);
    spec.args = {"--id", spec.name, "--data-dir", absl::StrCat(options.data_dir, "/", spec.name)};
    if (options.insecure) {
      spec.args.push_back("--insecure-loopback");
    } else {
      spec.args.insert(spec.args.end(), {"--tls", FleetTlsDir(options.data_dir, spec.name)});
    }
    spec.listen = LoopbackAddress(options, port);
    spec.ops = LoopbackAddress(options, port + 1);
    for (const CorePlan::Member& member : plan.members) {
      if (member.name != spec.name) continue;
      spec.args.insert(spec.args.end(), {"--threads", absl::StrCat(member.threads), "--cores",
                                         CoresPath(options.data_dir)});
    }
    if (options.http && role == "rollout")
      spec.args.insert(spec.args.end(), {"--http", LoopbackAddress(options, port + 2)});
    // The fleet is its user's own, who may run programs here anyway.
    if (role == "reward") spec.args.insert(spec.args.end(), {"--plugins", "unconfined"});
    if (role == "reward" && !options.judges.empty())
      spec.args.insert(spec.args.end(), {"--judges", options.judges});
    if (role == "reward" && !options.plugin_servers.empty())
      spec.args.insert(spec.args.end(), {"--plugin-servers", options.plugin_servers});
    specs.push_back(std::move(spec));
  };
  // Each role gets a block of ten ports, and each daemon three of them. A role with more than three
  // daemons gets a larger block, which moves the following roles up.
  const auto block = [](int daemons) { return std::max(10, (3 * daemons + 9) / 10 * 10); };
  int port = 7420;
  add("controller", 0, 7400);
  add("queue", 0, 7410);
  for (int i = 0; i < options.rollouts; ++i) add("rollout", i, port + 3 * i);
  port += block(options.rollouts);
  for (int i = 0; i < options.rewards; ++i) add("reward", i, port + 3 * i);
  port += block(options.rewards);
  for (int i = 0; i < options.trainers; ++i) add("trainer", i, port + 3 * i);
  return specs;
}

absl::StatusOr<std::string> StartFleet(const FleetOptions& options, Supervisor* supervisor) {
  const CorePlan plan = PlanCores(options);
  std::vector<DaemonSpec> specs = FleetSpecs(options, plan);
  SLUICE_RETURN_IF_ERROR(MakeDirs(options.data_dir));
  // Those of an earlier fleet on this folder go, so that commands do not use them.
  SLUICE_RETURN_IF_ERROR(RemoveTree(absl::StrCat(options.data_dir, "/tls")));
  if (!options.insecure) SLUICE_RETURN_IF_ERROR(IssueFleetCertificates(options.data_dir, specs));
  SLUICE_RETURN_IF_ERROR(WriteCorePlan(CoresPath(options.data_dir), plan));
  for (const DaemonSpec& spec : specs)
    SLUICE_RETURN_IF_ERROR(MakeDirs(absl::StrCat(options.data_dir, "/", spec.name)));
  // The controller first: the other daemons need its address.
  SLUICE_CHECK(specs[0].role == "controller");
  SLUICE_RETURN_IF_ERROR(supervisor->Start({specs[0]}));
  const std::string controller = supervisor->states()[0].listening;
  specs.erase(specs.begin());
  for (DaemonSpec& spec : specs) spec.args.insert(spec.args.end(), {"--controller", controller});
  SLUICE_RETURN_IF_ERROR(supervisor->Start(specs));
  return controller;
}

std::string FleetStateJson(const FleetState& state) {
  nlohmann::ordered_json json = {{"supervisor", state.supervisor},
                                 {"supervisor_start", state.supervisor_start},
                                 {"controller", state.controller}};
  json["daemons"] = nlohmann::ordered_json::array();
  for (const DaemonState& daemon : state.daemons) {
    json["daemons"].push_back({{"name", daemon.name},
                               {"role", daemon.role},
                               {"pid", daemon.pid},
                               {"start", daemon.start},
                               {"listening", daemon.listening},
                               {"ops", daemon.ops},
                               {"ready", daemon.ready},
                               {"restarts", daemon.restarts},
                               {"last_end", daemon.last_end},
                               {"log", daemon.log}});
  }
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

absl::Status WriteFleetState(const std::string& data_dir, const FleetState& state) {
  return WriteFileAtomic(StatePath(data_dir), FleetStateJson(state));
}

absl::StatusOr<FleetState> ReadFleetState(const std::string& data_dir) {
  SLUICE_ASSIGN_OR_RETURN(const std::string text, ReadFile(StatePath(data_dir)));
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object())
    return absl::DataLossError(absl::StrCat(StatePath(data_dir), " is no JSON object"));
  FleetState state;
  // Older or damaged files may lack keys.
  try {
    state.supervisor = json.at("supervisor");
    state.supervisor_start = json.at("supervisor_start");
    state.controller = json.at("controller");
    for (const nlohmann::json& daemon : json.at("daemons")) {
      state.daemons.push_back({.name = daemon.at("name"),
                               .role = daemon.at("role"),
                               .listening = daemon.at("listening"),
                               .ops = daemon.at("ops"),
                               .log = daemon.at("log"),
                               .pid = daemon.at("pid"),
                               .start = daemon.at("start"),
                               .ready = daemon.at("ready"),
                               .restarts = daemon.at("restarts"),
                               .last_end = daemon.at("last_end")});
    }
  } catch (const nlohmann::json::exception& error) {
    return absl::DataLossError(absl::StrCat(StatePath(data_dir), ": ", error.what()));
  }
  return state;
}

void RemoveFleetState(const std::string& data_dir) { unlink(StatePath(data_dir).c_str()); }

bool IsAlive(const FleetState& state) {
  return state.supervisor_start != 0 && ProcessStart(state.supervisor) == state.supervisor_start;
}

std::string DefaultDataDir() {
  const std::string chosen = ChosenDataDir();
  return chosen.empty() ? StateHome() : chosen;
}

std::string StateHome() {
  if (const char* state = std::getenv("XDG_STATE_HOME"); state != nullptr && *state != '\0')
    return absl::StrCat(state, "/sluice");
  const char* home = std::getenv("HOME");
  return absl::StrCat(home == nullptr ? "/tmp" : home, "/.local/state/sluice");
}

void RememberFleet(const std::string& data_dir) {
  // If this file cannot be written, commands need --data-dir; their errors say so.
  if (MakeDirs(StateHome()).ok()) (void)WriteFileAtomic(RememberedPath(), data_dir);
}

void ForgetFleet(const std::string& data_dir) {
  if (RememberedDir() == data_dir) unlink(RememberedPath().c_str());
}

std::string FindFleetDir(const std::string& given) {
  if (!given.empty()) return std::filesystem::absolute(given).lexically_normal().string();
  if (const std::string chosen = ChosenDataDir(); !chosen.empty()) return chosen;
  const std::string remembered = RememberedDir();
  return !IsFleetRunning(StateHome()) && !remembered.empty() && IsFleetRunning(remembered)
             ? remembered
             : StateHome();
}

absl::StatusOr<FleetState> FindRunningFleet(const std::string& data_dir) {
  absl::StatusOr<FleetState> state = ReadFleetState(data_dir);
  if (state.ok() && IsAlive(*state)) return state;

  const std::string remembered = RememberedDir();
  const bool elsewhere =
      !remembered.empty() && remembered != data_dir && IsFleetRunning(remembered);
  const std::string hint =
      elsewhere ? absl::StrCat("one runs on ", remembered, ": pass --data-dir ", remembered)
                : "`sluice dev up` starts one";
  return ErrorWith(absl::StatusCode::kNotFound, {.hint = hint},
                   absl::StrCat("no fleet runs on ", data_dir));
}

std::string ProgramDir() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).parent_path().string();
}

}  // namespace sluice::cli
