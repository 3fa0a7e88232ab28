#include "tools/sluice/local_rewards.h"

#include <google/protobuf/util/json_util.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <utility>
#include <vector>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/judges/judge_file.h"
#include "common/plugins/sandboxed.h"
#include "common/rpc/convert.h"
#include "common/scoring/job_scorer.h"
#include "common/verifiers/plugin_spec.h"
#include "nlohmann/json.hpp"
#include "tools/sluice/options.h"

namespace sluice::cli {
namespace {
constexpr uint32_t kMostWaiting = 32;    // Scores that wait for judges and plug-ins at a time.
constexpr uint32_t kMostProcesses = 64;  // Of plug-ins in sandboxes.
}  // namespace

void AddRewardFlags(CLI::App* app, RewardFlags* flags) {
  app->add_option("--verifier", flags->verifier,
                  "such as exact or gsm8k; `sluice config explain reward.rewards.verifier` lists "
                  "all");
  app->add_option("--verl", flags->verl, "FILE.py:FUNCTION, a function in verl's convention");
  app->add_option("--trl", flags->trl, "FILE.py:FUNCTION, a function in TRL's convention");
  app->add_option("--native", flags->native,
                  "FILE.py, with a function that has the decorator of sluice_reward.py");
  app->add_option("--grpc", flags->grpc, "the name of a server of --plugin-servers");
  app->add_option("--args", flags->args, "the verifier's settings, a JSON object")
      ->capture_default_str();
  app->add_option("--judges", flags->judges,
                  "the file that names the judges, as for sluice-reward; for --verifier judge");
  app->add_option("--plugin-servers", flags->plugin_servers,
                  "the file that names the servers of plug-ins, as for sluice-reward; for --grpc");
  AddDuration(app, "--timeout", &flags->timeout, "most time of one call of a judge or plug-in");
}

absl::StatusOr<job::v1::Reward> RewardOf(const RewardFlags& flags) {
  nlohmann::json args = nlohmann::json::parse(flags.args, nullptr, /*allow_exceptions=*/false);
  if (!args.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--args must be a JSON object, but is ", flags.args));
  }
  std::string verifier = flags.verifier;
  for (const auto& [name, place] : {std::pair{"verl", &flags.verl},
                                    {"trl", &flags.trl},
                                    {"native", &flags.native},
                                    {"grpc", &flags.grpc}}) {
    if (place->empty()) continue;
    args[name] = *place;
    verifier = verifier.empty() ? "plugin" : verifier;
  }
  if (verifier.empty())
    return absl::InvalidArgumentError(
        "what scores? give --verifier, --verl, --trl, --native or --grpc");
  VisitPluginPaths(&args, [](const std::string&, std::string* path) {
    *path = std::filesystem::absolute(*path).lexically_normal().string();
  });

  job::v1::Reward reward;
  job::v1::RewardEntry& entry = *reward.add_rewards();
  entry.set_name(verifier);
  entry.set_verifier(verifier);
  entry.set_weight(1);
  *entry.mutable_timeout() = rpc::ToProto(flags.timeout);
  // Only a plug-in may look at all answers of a group.
  entry.set_granularity(verifier == "plugin" ? "group" : "trajectory");
  if (!google::protobuf::util::JsonStringToMessage(args.dump(), entry.mutable_args()).ok())
    return absl::InvalidArgumentError(absl::StrCat("--args cannot be read: ", flags.args));
  return reward;
}

LocalRewards::~LocalRewards() { Stop(); }

void LocalRewards::Stop() {
  stop_.Trigger();
  for (const auto& [args, plugin] : plugins_) plugin->Stop();
  if (runner_ != nullptr) runner_->Stop();
}

absl::StatusOr<std::unique_ptr<LocalRewards>> LocalRewards::Make(const job::v1::Reward& given,
                                                                 const RewardFlags& flags,
                                                                 PluginRights rights) {
  const job::v1::Reward reward = WithoutShadows(given);
  // Made first without services: what is wrong with the arguments needs no plug-in to be found.
  SLUICE_RETURN_IF_ERROR(MakeScorer(reward).status());
  auto rewards = absl::WrapUnique(new LocalRewards);
  SLUICE_RETURN_IF_ERROR(rewards->ReadJudgesFile(reward, flags.judges));
  SLUICE_RETURN_IF_ERROR(rewards->StartPlugins(reward, flags.plugin_servers, rights));
  if (RunsCode(reward)) SLUICE_RETURN_IF_ERROR(rewards->StartSandboxes());

  ScorerServices services;
  LocalRewards* const self = rewards.get();
  services.ask_judge = [self](const std::string& judge, const std::string& system,
                              const std::string& user, absl::Duration timeout) {
    return self->judges_.at(judge)->Ask(system, user, timeout, self->stop_);
  };
  services.run_plugin = [self](const std::string& args, const std::vector<nlohmann::json>& items,
                               absl::Duration timeout) {
    return self->plugins_.at(args)->Score(items, timeout);
  };
  if (self->runner_ != nullptr) {
    services.run_code = [self](const CodeTask& task, const auto& take) {
      return self->runner_->Run(task, take);
    };
    services.toolchains = self->sandboxes_->identity();
  }
  for (const auto& [name, judge] : self->judges_)
    absl::StrAppend(&services.judges, judge->Identity(), "\n");
  for (const auto& [args, plugin] : self->plugins_) services.plugins[args] = plugin->version();
  SLUICE_ASSIGN_OR_RETURN(Scorer scorer, MakeScorer(reward, services));
  rewards->scorer_ = std::make_unique<Scorer>(std::move(scorer));
  return rewards;
}

absl::Status LocalRewards::ReadJudgesFile(const job::v1::Reward& reward, const std::string& path) {
  std::map<std::string, JudgeConfig> known;
  if (!path.empty()) {
    SLUICE_ASSIGN_OR_RETURN(std::vector<JudgeConfig> configs, ReadJudges(path));
    for (JudgeConfig& config : configs) {
      const std::string name = config.name;
      known.emplace(name, std::move(config));
    }
  }
  for (const std::string& name : JudgesOf(reward)) {
    const auto found = known.find(name);
    if (found == known.end()) {
      std::vector<std::string> names;
      for (const auto& [other, unused] : known) names.push_back(other);
      return NoJudge("this command", name, names,
                     "give a file that names it: --judges FILE, as for sluice-reward");
    }
    judges_[name] = std::make_unique<JudgeClient>(std::move(found->second));
    waiting_ = kMostWaiting;
  }
  return absl::OkStatus();
}

absl::Status LocalRewards::StartPlugins(const job::v1::Reward& reward, const std::string& servers,
                                        PluginRights rights) {
  if (!servers.empty()) {
    SLUICE_ASSIGN_OR_RETURN(plugin_servers_, ReadPluginServers(servers));
  }
  if (rights == PluginRights::kSandbox && !PluginProgramsOf(reward).empty()) {
    absl::StatusOr<std::unique_ptr<sandbox::Launcher>> made =
        sandbox::Launcher::Make({.slots = kMostProcesses});
    if (!made.ok()) {
      return ErrorWith(made.status().code(),
                       {.reason = "NO_SANDBOX",
                        .hint = "--plugins unconfined runs the job's plug-ins with your rights"},
                       made.status().message());
    }
    launcher_ = *std::move(made);
  }
  for (const job::v1::RewardEntry* const entry : PluginsOf(reward)) {
    signal(SIGPIPE, SIG_IGN);  // A plug-in may end while it is written to.
    SLUICE_ASSIGN_OR_RETURN(const nlohmann::json args, VerifierArgs(*entry));
    std::unique_ptr<PluginHost>& plugin = plugins_[args.dump()];
    if (plugin != nullptr) continue;
    SLUICE_ASSIGN_OR_RETURN(PluginSpec spec, ParsePluginSpec(args));
    const bool program = spec.kind != PluginSpec::Kind::kGrpc;
    waiting_ = std::max(
        waiting_,
        program ? std::min(kMostWaiting, static_cast<uint32_t>(spec.processes * spec.in_flight))
                : kMostWaiting);
    PluginHost::Options options{.job = "sluice",
                                .name = entry->name(),
                                .spec = std::move(spec),
                                .scores_groups = entry->granularity() == "group",
                                .servers = &plugin_servers_,
                                // A person may have started it just before.
                                .connect_timeout = absl::Seconds(10)};
    if (launcher_ != nullptr) {
      sandbox::Limits limits;
      limits.address_space_bytes = 0;  // Interpreters reserve more than they use.
      options.launch = LaunchInSandbox(launcher_.get(), limits);
      options.folders = kSandboxProgramFolders;
    }
    SLUICE_ASSIGN_OR_RETURN(plugin, PluginHost::Make(std::move(options)));
  }
  return absl::OkStatus();
}

absl::Status LocalRewards::broken() const {
  for (const auto& [args, plugin] : plugins_) SLUICE_RETURN_IF_ERROR(plugin->broken());
  return absl::OkStatus();
}

absl::Status LocalRewards::StartSandboxes() {
  SLUICE_ASSIGN_OR_RETURN(sandboxes_, sandbox::CodeSandboxes::Make({}));
  runner_ = std::make_unique<sandbox::CodeRunner>(
      sandboxes_.get(), sandbox::CodeRunner::Options{.ready = sandboxes_->runs()});
  waiting_ = std::max(waiting_, sandboxes_->runs());
  return absl::OkStatus();
}

}  // namespace sluice::cli
