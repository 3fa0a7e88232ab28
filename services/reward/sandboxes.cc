#include "services/reward/sandboxes.h"

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/log/log.h"
#include "common/rpc/convert.h"
#include "common/scoring/job_scorer.h"
#include "sluice/job/v1/job.pb.h"

namespace sluice::reward {
namespace {

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
  const std::string tier(NameOf(shared->launcher()->tier()));
  const std::string& wanted = reward.sandbox().tier();
  if (!wanted.empty() && wanted != "auto" && wanted != tier) {
    return ErrorWith(
        absl::StatusCode::kFailedPrecondition,
        {.reason = "NO_SANDBOX",
         .hint = "set reward.sandbox.tier: auto, or run sluice-reward where that tier works"},
        absl::StrCat("reward.sandbox.tier is ", wanted, ", but the sandboxes of this machine are ",
                     "of tier ", tier, ". ", shared->launcher()->why_not_stronger()));
  }
  OfJob job{.runs = shared->runs()};
  job.runner = std::make_shared<sandbox::CodeRunner>(shared, OptionsOf(reward, job.runs));
  job.toolchains = shared->identity();
  job.run = [runner = job.runner](const CodeTask& task, const auto& take) {
    return runner->Run(task, take);
  };
  return job;
}

}  // namespace sluice::reward
