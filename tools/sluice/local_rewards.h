#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/judges/judge_client.h"
#include "common/plugins/plugin_host.h"
#include "common/rpc/cancel.h"
#include "common/sandbox/code_runner.h"
#include "common/scoring/scorer.h"
#include "sluice/job/v1/spec.pb.h"

namespace sluice::cli {

// What the user says about how answers are scored.
struct RewardFlags {
  std::string verifier, args = "{}";
  std::string verl, trl, native;  // A plug-in's file and function, in one of three conventions.
  std::string grpc;               // The name of a plug-in's server.
  std::string judges;             // The file of the judges; empty: there are none.
  std::string plugin_servers;     // The file of the servers; empty: there are none.
  absl::Duration timeout = absl::Seconds(10);

  bool given() const {
    return !verifier.empty() || !verl.empty() || !trl.empty() || !native.empty() || !grpc.empty();
  }
};

// Adds --verifier, --verl, --trl, --native, --grpc, --args, --judges, --plugin-servers and
// --timeout.
void AddRewardFlags(CLI::App* app, RewardFlags* flags);

// The `reward` block of a job that scores as the flags say.
// INVALID_ARGUMENT: they do not say who scores, or --args is no JSON object.
absl::StatusOr<job::v1::Reward> RewardOf(const RewardFlags& flags);

// Scores answers in this process as a reward daemon would: with plug-ins, with judges of a file of
// the user's, and with programs in sandboxes. Candidates (`shadow`) are left out.
class LocalRewards {
 public:
  // Whose rights plug-ins have: the user's own, who names them, or those of a sandbox, for what
  // others have written.
  enum class PluginRights { kOwn, kSandbox };

  // Of the flags it uses those that name the operator's files.
  // INVALID_ARGUMENT: the rewards or one of these files are malformed.
  // NOT_FOUND: a judge or a plug-in server is not in its file.
  // FAILED_PRECONDITION NO_SANDBOX: programs, or plug-ins in a sandbox, cannot be run here.
  // Others as PluginHost::Make().
  static absl::StatusOr<std::unique_ptr<LocalRewards>> Make(
      const job::v1::Reward& reward, const RewardFlags& flags,
      PluginRights rights = PluginRights::kOwn);
  ~LocalRewards();

  const Scorer& scorer() const { return *scorer_; }
  // How many answers are worth scoring at a time, because scores wait for others. 0: they wait for
  // nobody.
  uint32_t waiting() const { return waiting_; }
  // Why a plug-in cannot run at all, so that no answer will get a score. OK: none is broken.
  absl::Status broken() const;
  // Ends what scores wait for: they get no number. Idempotent.
  void Stop();

 private:
  LocalRewards() = default;
  absl::Status StartPlugins(const job::v1::Reward& reward, const std::string& servers,
                            PluginRights rights);
  absl::Status ReadJudgesFile(const job::v1::Reward& reward, const std::string& path);
  absl::Status StartSandboxes();

  rpc::Cancel stop_;
  std::map<std::string, std::unique_ptr<JudgeClient>> judges_;  // By name.
  PluginServers plugin_servers_;                                // Outlives plugins_.
  std::unique_ptr<sandbox::Launcher> launcher_;                 // Of plug-ins in sandboxes.
  std::map<std::string, std::unique_ptr<PluginHost>> plugins_;  // By their args.
  std::unique_ptr<sandbox::CodeSandboxes> sandboxes_;           // Null: no programs are run.
  std::unique_ptr<sandbox::CodeRunner> runner_;
  uint32_t waiting_ = 0;
  std::unique_ptr<Scorer> scorer_;
};

}  // namespace sluice::cli
