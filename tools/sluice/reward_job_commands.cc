// Commands about the rewards of a job that runs: answers without a score, which rewards scored
// what, and new versions of plug-ins. The controller passes the requests on to the job's queue and
// reward daemons.

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/base/id.h"
#include "common/base/status.h"
#include "common/rpc/client.h"
#include "tools/sluice/client.h"
#include "tools/sluice/commands.h"
#include "tools/sluice/job_command.h"
#include "tools/sluice/options.h"
#include "tools/sluice/output.h"
#include "tools/sluice/reward_text.h"

namespace sluice::cli {
namespace {

struct RewardOptions {
  std::string server, output, job, generation, cause, reward;
  std::vector<std::string> ids;
};
using RewardHandler = ExitCode (*)(const RewardOptions&, const rpc::Channel&);

absl::StatusOr<nlohmann::ordered_json> ReadDead(const rpc::Channel& channel,
                                                const std::string& job) {
  queue::v1::PeekRequest peek;
  peek.set_what(queue::v1::PEEK_WHAT_TASKS);
  peek.set_state("dead_letter");
  SLUICE_ASSIGN_OR_RETURN(const std::vector<queue::v1::PeekRow> letters,
                          PeekRows(channel, job, std::move(peek)));
  return DeadJson(letters);
}

ExitCode ListDead(const RewardOptions& o, const rpc::Channel& channel) {
  const auto dead = ReadDead(channel, o.job);
  if (!dead.ok()) return Complain(dead.status());
  if (IsData(o.output)) PrintRows({{"dead", *dead}}, {"dead"}, o.output);
  else std::fputs(DeadText(*dead).c_str(), stdout);
  return kDone;
}

// Prints how many things a Control has moved, with `done` after the number.
ExitCode PrintCount(const RewardOptions& o, const absl::StatusOr<job::v1::ControlResponse>& answer,
                    const std::string& thing, const std::string& done) {
  if (!answer.ok()) return Complain(answer.status());
  const uint32_t count = answer->count();
  if (IsData(o.output))
    PrintData({{"job", answer->status().job()}, {thing + "s", count}}, o.output);
  else
    std::printf("%u %s%s %s %s\n", count, thing.c_str(), count == 1 ? "" : "s",
                count == 1 ? "is" : "are", done.c_str());
  return kDone;
}

ExitCode RetryDead(const RewardOptions& o, const rpc::Channel& channel) {
  job::v1::ControlRequest request;
  request.set_job(o.job);
  request.set_verb(job::v1::VERB_READMIT);
  if (!o.ids.empty() || !o.cause.empty()) {
    const auto dead = ReadDead(channel, o.job);
    if (!dead.ok()) return Complain(dead.status());
    const auto chosen = ChooseDead(*dead, o.ids, o.cause);
    if (!chosen.ok()) return Complain(chosen.status());
    for (const auto& letter : *chosen)
      request.add_groups(FromHex(letter.at("group").get<std::string>()).value_or(""));
  }
  return PrintCount(o, ControlJob(channel, request), "prompt",
                    "drawn again; `sluice reward dead` shows what becomes of them");
}

ExitCode ShowLineage(const RewardOptions& o, const rpc::Channel& channel) {
  queue::v1::PeekRequest peek;
  peek.set_what(queue::v1::PEEK_WHAT_LINEAGE);
  if (!o.generation.empty()) {
    const auto generation = ParseGeneration(o.generation);
    if (!generation.ok()) return Complain(generation.status());
    peek.set_generation(*generation);
  }
  const auto rows = PeekRows(channel, o.job, std::move(peek));
  if (!rows.ok()) return Complain(rows.status());
  if (rows->empty() && !o.generation.empty()) {
    return Complain(absl::NotFoundError(
        absl::StrCat("no group of job ", o.job, " was scored by generation ", o.generation,
                     "; `sluice reward lineage ", o.job, "` lists those that scored some")));
  }
  const nlohmann::ordered_json lineage = LineageJson(*rows);
  if (IsData(o.output)) PrintRows(lineage, {"generations", "rewards"}, o.output);
  else std::fputs(LineageText(lineage, o.output).c_str(), stdout);
  return kDone;
}

ExitCode Rescore(const RewardOptions& o, const rpc::Channel& channel) {
  job::v1::ControlRequest request;
  request.set_job(o.job);
  request.set_verb(job::v1::VERB_RESCORE);
  if (!o.generation.empty()) {
    const auto generation = ParseGeneration(o.generation);
    if (!generation.ok()) return Complain(generation.status());
    request.set_generation(*generation);
  }
  return PrintCount(o, ControlJob(channel, request), "group",
                    "scored again; groups that are in a batch keep their scores");
}

ExitCode ShowRewards(const RewardOptions& o, const rpc::Channel& channel) {
  const auto described = DescribeRewards(channel, o.job);
  if (!described.ok()) return Complain(described.status());
  const nlohmann::ordered_json rewards = RewardsJson(*described);
  if (IsData(o.output)) PrintRows(rewards, {"daemons", "shadows"}, o.output);
  else std::fputs(RewardsText(rewards).c_str(), stdout);
  return kDone;
}

ExitCode Reload(const RewardOptions& o, const rpc::Channel& channel) {
  job::v1::ReloadRewardsRequest request;
  request.set_job(o.job);
  request.set_reward(o.reward);
  job::v1::ReloadRewardsResponse response;
  if (const absl::Status done = rpc::Call(channel, request, &response); !done.ok())
    return Complain(done);
  const nlohmann::ordered_json reloaded = ReloadJson(response);
  if (IsData(o.output)) PrintRows({{"rewards", reloaded}}, {"rewards"}, o.output);
  else std::fputs(ReloadText(reloaded).c_str(), stdout);
  return AllLoaded(reloaded) ? kDone : kFailed;
}

Command RewardCommand(const char* name, const char* summary, const char* example,
                      RewardHandler handler,
                      std::function<void(CLI::App*, RewardOptions*)> extra = {},
                      std::vector<const char*> formats = {}) {
  return MakeJobCommand<RewardOptions>(
      {"reward", name, summary, example, handler, std::move(extra), formats});
}

void AddGeneration(CLI::App* app, RewardOptions* o) {
  app->add_option("--gen", o->generation,
                  "a generation of the rewards, eight hex digits; default: all");
}

}  // namespace

std::vector<Command> RewardJobCommands() {
  return {
      RewardCommand("show",
                    "Show which version of each reward the daemons of a job have, and how "
                    "candidates compare with the rewards that they may replace.",
                    "  sluice reward show digits\n  sluice reward show digits -o json",
                    ShowRewards),
      RewardCommand(
          "dead",
          "List the answers that got no score, with the cause, and what becomes of their prompts. "
          "The newest 1000 are kept.",
          "  sluice reward dead digits\n  sluice reward dead digits -o jsonl", ListDead),
      RewardCommand(
          "retry",
          "Let prompts be drawn again whose answers got no score. Without IDs and --cause all of "
          "them, and every prompt in quarantine. What was dropped stays dropped.",
          "  sluice reward retry digits    # all\n"
          "  sluice reward retry digits --cause plugin_error    # those of which a plug-in was the "
          "cause\n"
          "  sluice reward retry digits 1:2f 1:30/0/1/reward    # those of these groups",
          RetryDead,
          [](CLI::App* app, RewardOptions* o) {
            app->add_option("ID", o->ids, "ids, as `sluice reward dead` lists them, or groups");
            app->add_option("--cause", o->cause, "only those with this text in their cause");
          }),
      RewardCommand(
          "lineage",
          "Show which steps were trained on which generation of the rewards, and on "
          "which version of each reward.",
          "  sluice reward lineage digits\n"
          "  sluice reward lineage digits --gen 7c1f09aa    # the steps of one generation",
          ShowLineage, AddGeneration, {"name"}),
      RewardCommand(
          "rescore",
          "Score all groups that are in no batch yet once more, or those that one generation of "
          "the rewards has scored, by the rewards that the daemons have now.",
          "  sluice reward rescore digits --gen 7c1f09aa", Rescore, AddGeneration),
      RewardCommand(
          "reload",
          "Load plug-ins whose files have changed anew, on each reward daemon of the job. Groups "
          "that are being scored end by the old version. Exit code 1: a new version failed its "
          "self-test or a daemon did not answer, and the old version goes on.",
          "  sluice reward reload digits\n  sluice reward reload digits correct    # one reward",
          Reload,
          [](CLI::App* app, RewardOptions* o) {
            app->add_option("REWARD", o->reward, "name of the reward; default: all plug-ins");
          }),
  };
}

}  // namespace sluice::cli
