#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "common/base/failpoint.h"
#include "common/base/file.h"
#include "common/base/status.h"
#include "tests/fault/fleet.h"
#include "tests/fault/tally.h"
#include "tests/fault/toy_matrix.h"

// Kills the queue, rollouts, rewards and trainers over and over, at every failpoint of the log and
// of the queue's calls and at random moments. Then checks what every process was told against what
// the job came to. Needs a build with failpoints.
//
// Three of four kills hit jobs of toy workers on a real queue. These do a step in milliseconds and
// know every byte that they wrote and read, so the judge can follow each trajectory. The other
// kills hit jobs of the real daemons with the model of the example, which are judged by the lineage
// of their checkpoint and by the ledger (replay_test.cc compares the weights).
namespace sluice::fault {
namespace {

constexpr Regime kRegimes[] = {
    // Without a bound on staleness nothing may be dropped, so each acknowledged seal must be found.
    {"full-unbounded", "full", kUnbounded},
    // With a tight bound the staleness of every token is tested too.
    {"full-staleness-2", "full", 2},
    {"metadata-unbounded", "metadata", kUnbounded},
};
constexpr char kReal[] = "real-daemons";
constexpr int kRealShare = 4;  // One kill of so many hits the real daemons, if both are chosen.

std::vector<std::string> RegimeNames() {
  std::vector<std::string> names;
  for (const Regime& regime : kRegimes) names.push_back(regime.name);
  names.push_back(kReal);
  return names;
}

int RunAll(const MatrixOptions& options, int kills, const std::vector<std::string>& chosen,
           bool every_point, bool as_json) {
  Tally tally(kills, as_json);

  const auto wanted = [&](const std::string& name) {
    return std::find(chosen.begin(), chosen.end(), name) != chosen.end();
  };

  int parts =
      static_cast<int>(std::count_if(std::begin(kRegimes), std::end(kRegimes),
                                     [&](const Regime& regime) { return wanted(regime.name); }));
  const int real = !wanted(kReal) ? 0 : parts == 0 ? kills : kills / kRealShare;

  std::vector<std::pair<std::string, std::string>> points;
  if (parts > 0) points = ToyPoints();

  const auto judged = [&](const std::string& regime, const absl::StatusOr<Verdict>& verdict) {
    Verdict broken;
    if (!verdict.ok()) broken.wrong.push_back(verdict.status().ToString());
    tally.SetVerdict(regime, verdict.ok() ? *verdict : broken);
  };

  for (const Regime& regime : kRegimes) {
    if (wanted(regime.name))
      judged(regime.name,
             RunToyMatrix(options, regime, (kills - real - tally.kills()) / parts--, &tally));
  }

  if (real > 0) {
    judged(kReal, RunFleet(options, kills - tally.kills(), &tally));
    for (const auto& point : FleetPoints()) points.push_back(point);
  }

  return tally.Report(points, every_point);
}

// Runs one toy worker. The matrix starts this program again for each of them.
int RunRole(RoleOptions role) {
  role.worker = role.role + "-0";
  role.checkpoint_every = 5;
  const absl::Status status = role.role == "trainer"   ? RunTrainer(role)
                              : role.role == "rollout" ? RunRollout(role)
                                                       : RunReward(role);

  if (status.ok()) return 0;

  std::fprintf(stderr, "%s.%ld: %s\n", role.worker.c_str(), role.incarnation,
               status.ToString().c_str());
  if (role.role == "trainer" && role.durability != "full" && ReasonOf(status) == "GONE")
    return kRestoreMe;

  // FENCED is how a worker learns that it was replaced; everything else is wrong.
  if (ReasonOf(status) != "FENCED")
    History(role.dir, role.worker, role.incarnation).Log(absl::StrCat("wrong ", status.ToString()));
  return 1;
}

}  // namespace
}  // namespace sluice::fault

int main(int argc, char** argv) {
  using namespace sluice::fault;

  CLI::App app{
      "Kills queue, rollout, reward and trainer with SIGKILL at every failpoint and at random, and "
      "checks that no accepted\n"
      "trajectory is lost or trained twice, that the ledger balances and that its hash chain is "
      "what was trained.",
      "queue_crash_matrix"};

  app.footer(
      "Exit code 0: all promises kept, 1: broken, 2: misused. The seed gives the order of "
      "failpoints; those not reached yet come before the others.");

  MatrixOptions options;
  RoleOptions role;
  int kills = 60;
  bool as_json = false, keep = false, every_point = false;
  std::vector<std::string> regimes = RegimeNames();

  app.add_option("--kills", kills, "number of kills")
      ->capture_default_str()
      ->check(CLI::Range(4, 1000000));
  app.add_option("--seed", options.seed, "seed of the order of kills")->capture_default_str();
  app.add_option("--dir", options.dir,
                 "directory of the run's files; default: a new one in the temporary directory");
  app.add_option("--regime", regimes, "kind of job whose processes are killed; may be repeated")
      ->capture_default_str()
      ->check(CLI::IsMember(RegimeNames()));
  app.add_flag("--every-point", every_point, "fail unless a process was killed at each failpoint");
  app.add_flag("--keep", keep, "keep the files even if no promise was broken");
  app.add_flag("--json", as_json,
               "print progress and report as one JSON object per line; the last one is the report");

  app.add_option("--role", role.role)->group("");
  app.add_option("--queue", role.queue)->group("");
  app.add_option("--incarnation", role.incarnation)->group("");
  app.add_option("--max-staleness", role.max_staleness)->group("");
  app.add_option("--durability", role.durability)->group("");
  CLI11_PARSE(app, argc, argv);

  signal(SIGPIPE, SIG_IGN);
  if (!role.role.empty()) {
    role.dir = options.dir;
    return RunRole(role);
  }

  if (!sluice::kHasFailpoints) {
    std::fprintf(stderr,
                 "error: this build has no failpoints\nhint: cmake --preset test, build, and run "
                 "build/test/bin/queue_crash_matrix\n");
    return 2;
  }

  options.self = std::filesystem::read_symlink("/proc/self/exe").string();
  if (options.dir.empty())
    options.dir = absl::StrCat(std::filesystem::temp_directory_path().string(),
                               "/queue-crash-matrix-", getpid());

  const int code = RunAll(options, kills, regimes, every_point, as_json);
  if (code == 0 && !keep) (void)sluice::RemoveTree(options.dir);
  if (code != 0) std::fprintf(stderr, "logs and histories: %s\n", options.dir.c_str());
  return code;
}
