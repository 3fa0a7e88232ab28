#include "services/reward/sandboxes.h"

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/log/log.h"
#include "common/plugins/sandboxed.h"
#include "common/rpc/convert.h"
#include "common/scoring/job_scorer.h"
#include "sluice/job/v1/job.pb.h"

namespace sluice::reward {
namespace {

// Of all jobs. A machine has room for 256 sandboxes, those of programs included.
constexpr uint32_t kMostPluginProcesses = 128;

// Without the block, all has its default.
sandbox::CodeRunner::Options OptionsOf(const job::v1::Reward& reward, uint32_t runs) {
  sandbox::CodeRunner::Options options{.ready = runs};
  if (!reward.has_sandbox()) return options;
  const job::v1::RewardSandbox& block = reward.sandbox();
  options.cores = block.cpu();
  options.memory_bytes = block.memory();
  options.pids = block.pids();
  options.wall = rpc::FromProto(block.wall());
  options.output_bytes = block.output();
  return options;
}

// FAILED_PRECONDITION NO_SANDBOX: the job wants another tier than that of the launcher.
absl::Status CheckTier(const job::v1::Reward& reward, const sandbox::Launcher& launcher) {
  const absl::string_view tier = NameOf(launcher.tier());
  const std::string& wanted = reward.sandbox().tier();
  if (wanted.empty() || wanted == "auto" || wanted == tier) return absl::OkStatus();
  return ErrorWith(
      absl::StatusCode::kFailedPrecondition,
      {.reason = "NO_SANDBOX",
       .hint = "set reward.sandbox.tier: auto, or run sluice-reward where that tier works"},
      absl::StrCat("reward.sandbox.tier is ", wanted, ", but the sandboxes of this machine are ",
                   "of tier ", tier, ". ", launcher.why_not_stronger()));
}

}  // namespace

Sandboxes::Sandboxes(bool allow_unsafe) : allow_unsafe_(allow_unsafe) { sandbox::EndLeftovers(); }

absl::StatusOr<sandbox::CodeSandboxes*> Sandboxes::Shared() {
  MutexLock lock(&mu_);
  if (shared_ == nullptr) {
    SLUICE_ASSIGN_OR_RETURN(shared_, sandbox::CodeSandboxes::Make({.allow_unsafe = allow_unsafe_}));
    log::Info("sandboxes_ready", {{"identity", shared_->identity()},
                                  {"runs", shared_->runs()},
                                  {"why_not_stronger", shared_->launcher()->why_not_stronger()}});
  }
  return shared_.get();
}

absl::StatusOr<Sandboxes::OfJob> Sandboxes::Make(const job::v1::Reward& reward) {
  if (!RunsCode(reward)) return OfJob{};
  SLUICE_ASSIGN_OR_RETURN(sandbox::CodeSandboxes* const shared, Shared());
  SLUICE_RETURN_IF_ERROR(CheckTier(reward, *shared->launcher()));
  OfJob job{.runs = shared->runs()};
  job.runner = std::make_shared<sandbox::CodeRunner>(shared, OptionsOf(reward, job.runs));
  job.toolchains = shared->identity();
  job.run = [runner = job.runner](const CodeTask& task, const auto& take) {
    return runner->Run(task, take);
  };
  return job;
}

absl::StatusOr<LaunchPlugin> Sandboxes::MakePluginLaunch(const job::v1::Reward& reward) {
  sandbox::Launcher* launcher;
  {
    MutexLock lock(&mu_);
    if (plugins_ == nullptr) {
      SLUICE_ASSIGN_OR_RETURN(plugins_, sandbox::Launcher::Make({.slots = kMostPluginProcesses}));
    }
    launcher = plugins_.get();
  }
  SLUICE_RETURN_IF_ERROR(CheckTier(reward, *launcher));
  sandbox::Limits limits;
  limits.address_space_bytes = 0;  // Interpreters reserve more than they use.
  if (reward.has_sandbox()) {
    limits.cores = reward.sandbox().cpu();
    limits.memory_bytes = reward.sandbox().memory();
    limits.pids = reward.sandbox().pids();
  }
  return LaunchInSandbox(launcher, limits);
}

}  // namespace sluice::reward
