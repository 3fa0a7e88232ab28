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
// Programs of one job that wait for a server at a time.
constexpr uint32_t kMostRemote = 256;
constexpr char kServerTier[] = "T2";

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

// Whether the job's programs may run elsewhere.
bool WantsServer(const job::v1::Reward& reward) {
  const std::string& tier = reward.sandbox().tier();
  return tier.empty() || tier == "auto" || tier == kServerTier;
}

// INVALID_ARGUMENT: a limit is not one that a server keeps.
absl::Status CheckServerLimits(const job::v1::Reward& reward) {
  const sandbox::CodeRunner::Options given = OptionsOf(reward, 0), usual;
  const char* const key = given.cores != usual.cores                   ? "cpu"
                          : given.pids != usual.pids                   ? "pids"
                          : given.output_bytes > run_code::kMostOutput ? "output"
                                                                       : nullptr;
  if (key == nullptr) return absl::OkStatus();
  return ErrorWith(absl::StatusCode::kInvalidArgument,
                   {.reason = "BAD_SANDBOX",
                    .hint = "leave the key out, or set reward.sandbox.tier to one of this machine"},
                   absl::StrCat("reward.sandbox.", key, " differs from its default, but programs ",
                                "run in the sandboxes of a server (--code-server), whose calls ",
                                "have no such limit"));
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

Sandboxes::Sandboxes(bool allow_unsafe, std::unique_ptr<run_code::Client> server)
    : allow_unsafe_(allow_unsafe), server_(std::move(server)) {
  sandbox::EndLeftovers();
}

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

std::string Sandboxes::FindTier() {
  const absl::StatusOr<sandbox::CodeSandboxes*> shared = Shared();
  if (!shared.ok()) {
    const char* const what = server_ == nullptr
                                 ? "jobs with the verifier code or with plug-ins will fail here"
                                 : "jobs with plug-ins will fail here";
    log::Warning("sandbox_missing", {{"message", what}, {"error", shared.status()}});
  }
  if (server_ != nullptr) {
    log::Info("sandbox_server", {{"url", server_->url()}});
    return kServerTier;
  }
  return std::string(NameOf(shared.ok() ? (*shared)->launcher()->tier() : sandbox::Tier::kUnsafe));
}

absl::StatusOr<Sandboxes::OfJob> Sandboxes::Make(const job::v1::Reward& reward) {
  if (!RunsCode(reward)) return OfJob{};
  if (server_ != nullptr && WantsServer(reward)) {
    SLUICE_RETURN_IF_ERROR(CheckServerLimits(reward));
    OfJob job = MakeRemote(reward);
    // Training does not wait for candidates, nor for what only these use.
    if (!RunsCode(WithoutShadows(reward))) job.capacity = nullptr;
    return job;
  }
  if (reward.sandbox().tier() == kServerTier) {
    return ErrorWith(absl::StatusCode::kFailedPrecondition,
                     {.reason = "NO_SANDBOX",
                      .hint = "set reward.sandbox.tier: auto, or start sluice-reward with "
                              "--code-server"},
                     "reward.sandbox.tier is T2, but this daemon knows no server of sandboxes");
  }
  SLUICE_ASSIGN_OR_RETURN(sandbox::CodeSandboxes* const shared, Shared());
  SLUICE_RETURN_IF_ERROR(CheckTier(reward, *shared->launcher()));
  OfJob job{.toolchains = shared->identity(), .runs = shared->runs()};
  const auto runner = std::make_shared<sandbox::CodeRunner>(shared, OptionsOf(reward, job.runs));
  job.run = [runner](const CodeTask& task, const auto& take) { return runner->Run(task, take); };
  job.stop = [runner] { runner->Stop(); };
  return job;
}

Sandboxes::OfJob Sandboxes::MakeRemote(const job::v1::Reward& reward) const {
  const sandbox::CodeRunner::Options options = OptionsOf(reward, 0);
  const auto stop = std::make_shared<rpc::Cancel>();
  return {.run = run_code::MakeRunCode(server_.get(),
                                       {.memory_bytes = options.memory_bytes,
                                        .wall = options.wall,
                                        .output_bytes = options.output_bytes},
                                       stop),
          // Which interpreters it has is the operator's affair.
          .toolchains = absl::StrCat(kServerTier, " ", server_->url()),
          .runs = kMostRemote,
          .capacity = [server = server_.get()] { return server->Capacity(); },
          .stop = [stop] { stop->Trigger(); }};
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
  // A server runs no plug-ins, so that its tier says nothing about them.
  if (reward.sandbox().tier() != kServerTier) SLUICE_RETURN_IF_ERROR(CheckTier(reward, *launcher));
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
