#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/plugins/launch.h"
#include "common/sandbox/code_runner.h"
#include "common/scoring/scorer.h"

namespace sluice::job::v1 {
class Reward;
}

namespace sluice::reward {

inline constexpr char kUnsafeFlag[] = "--unsafe-no-sandbox";

// The sandboxes of this daemon, which are set up when the first job needs them. Thread-safe.
class Sandboxes {
 public:
  // With `allow_unsafe`, programs run without a sandbox if none works here. Ends what the programs
  // of a killed daemon have left.
  explicit Sandboxes(bool allow_unsafe);

  // The sandboxes of one job, as its block reward.sandbox says. They end with the object.
  struct OfJob {
    std::shared_ptr<sandbox::CodeRunner> runner;  // Null: the job runs no programs.
    RunCode run;                                  // Uses `runner`; null without it.
    std::string toolchains;                       // Those of the sandboxes, for the generation.
    uint32_t runs = 0;                            // Programs that run at a time.
    void Stop() const {
      if (runner != nullptr) runner->Stop();
    }
  };
  // FAILED_PRECONDITION NO_SANDBOX: this machine has none, or not of the tier that the job wants.
  absl::StatusOr<OfJob> Make(const job::v1::Reward& reward);

  // How to start the job's plug-ins in sandboxes, with the limits of its block reward.sandbox on
  // cores, memory and processes. This object must outlive them. Errors as Make().
  absl::StatusOr<LaunchPlugin> MakePluginLaunch(const job::v1::Reward& reward);

 private:
  absl::StatusOr<sandbox::CodeSandboxes*> Shared();

  const bool allow_unsafe_;
  Mutex mu_;
  std::unique_ptr<sandbox::CodeSandboxes> shared_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<sandbox::Launcher> plugins_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice::reward
