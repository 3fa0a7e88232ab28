#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/plugins/launch.h"
#include "common/run_code/client.h"
#include "common/sandbox/code_runner.h"
#include "common/scoring/scorer.h"

namespace sluice::job::v1 {
class Reward;
}

namespace sluice::reward {

// The sandboxes of this daemon. Thread-safe.
class Sandboxes {
 public:
  // With `allow_unsafe`, programs run without a sandbox if none works here. Ends what the programs
  // of a killed daemon have left.
  // The programs of jobs run in the sandboxes of `server`, unless the job wants a tier of this
  // machine; null: there is none.
  Sandboxes(bool allow_unsafe, std::unique_ptr<run_code::Client> server);

  // Finds the tier of this machine by running programs, and logs it, with what stronger ones lack.
  // Returns its name for the daemon's labels: T1, T1b or none; T2 if a server's are used.
  std::string FindTier();

  // Those of this machine. FAILED_PRECONDITION NO_SANDBOX: no tier works here.
  absl::StatusOr<sandbox::CodeSandboxes*> Shared();

  // The sandboxes of one job, as its block reward.sandbox says.
  struct OfJob {
    RunCode run;             // Null: the job runs no programs.
    std::string toolchains;  // Those of the sandboxes, for the generation.
    uint32_t runs = 0;       // Most programs that run at a time.
    // How many programs are worth waiting for the sandboxes now. Null: as many as run.
    // RESOURCE_EXHAUSTED: the server is down.
    std::function<absl::StatusOr<uint32_t>()> capacity;
    std::function<void()> stop;  // Ends all programs; null without `run`. Idempotent.
    void Stop() const {
      if (stop != nullptr) stop();
    }
  };
  // FAILED_PRECONDITION NO_SANDBOX: this machine has none, or not of the tier that the job wants.
  // INVALID_ARGUMENT: the job wants limits that a server's sandboxes do not have.
  absl::StatusOr<OfJob> Make(const job::v1::Reward& reward);

  // How to start the job's plug-ins in sandboxes of this machine, with the limits of its block
  // reward.sandbox on cores, memory and processes. Its tier T2 is that of programs alone. This
  // object must outlive them. Errors as Make().
  absl::StatusOr<LaunchPlugin> MakePluginLaunch(const job::v1::Reward& reward);

 private:
  OfJob MakeRemote(const job::v1::Reward& reward) const;

  const bool allow_unsafe_;
  const std::unique_ptr<run_code::Client> server_;
  Mutex mu_;
  std::unique_ptr<sandbox::CodeSandboxes> shared_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<sandbox::Launcher> plugins_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice::reward
