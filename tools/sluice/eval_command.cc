// sluice eval: lets a model directory, or a version of a running job, answer a file of rows.

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/file.h"
#include "common/base/status.h"
#include "common/cores/usable_cores.h"
#include "common/scoring/job_scorer.h"
#include "common/verifiers/plugin_spec.h"
#include "services/rollout/core/eval/eval.h"
#include "services/rollout/core/eval/local_scorer.h"
#include "tools/sluice/column_flags.h"
#include "tools/sluice/commands.h"
#include "tools/sluice/eval_job.h"
#include "tools/sluice/local_rewards.h"
#include "tools/sluice/options.h"
#include "tools/sluice/output.h"
#include "tools/sluice/table.h"

namespace sluice::cli {
namespace {

constexpr char kInSandbox[] = "sandbox", kUnconfined[] = "unconfined";

struct EvalFlags {
  EvalOptions options;
  // An answer passes if its score is at least this. Unset: if all its rewards are full.
  std::optional<double> pass_score;
  std::string source;  // Name of the rows' data source, which rewards of a job may ask for.
  std::string model, server;
  ColumnFlags columns;
  RewardFlags reward;
  std::string plugins = kInSandbox;  // How plug-ins of a job run.
  std::string output;
  std::optional<uint64_t> init_seed;
};

nlohmann::ordered_json ToJson(const EvalResult& result) {
  nlohmann::ordered_json json = {{"rows", result.rows},
                                 {"too_long", result.too_long},
                                 {"answers", result.answers},
                                 {"unscorable", result.unscorable},
                                 {"truncated", result.truncated},
                                 {"tokens", result.tokens},
                                 {"score_mean", result.score_mean},
                                 {"score_interval", nullptr},
                                 {"generations", result.generations},
                                 {"seconds", result.seconds},
                                 {"first_unscorable", result.first_unscorable},
                                 {"version", result.version.str()},
                                 {"fingerprint", result.fingerprint.hex()},
                                 {"ignored", result.ignored}};
  const auto pair = [](const Interval& interval) {
    return nlohmann::ordered_json{interval.low, interval.high};
  };
  if (result.score_interval.has_value()) json["score_interval"] = pair(*result.score_interval);
  for (const auto& [k, pass] : result.pass) json["pass"][absl::StrCat(k)] = pass;
  for (const auto& [k, interval] : result.pass_interval)
    json["pass_interval"][absl::StrCat(k)] = pair(interval);
  json["kept"] = nlohmann::ordered_json::array();
  for (const EvalAnswer& answer : result.kept) {
    json["kept"].push_back({{"row", answer.row},
                            {"sample", answer.sample},
                            {"messages", answer.messages},
                            {"text", answer.text},
                            {"score", answer.score},
                            {"truncated", answer.truncated}});
  }
  return json;
}

// Parses JOB or JOB@VERSION, and sets the options for the job's model and weights. If no flag says
// how answers are scored, *reward gets the rewards of the job.
absl::Status UseModelOfJob(EvalFlags& flags, job::v1::Reward* reward) {
  const std::pair<std::string, std::string> halves =
      absl::StrSplit(flags.model, absl::MaxSplits('@', 1));
  std::optional<int64_t> version;
  int64_t number = 0;
  if (absl::StrContains(flags.model, '@')) {
    if (!absl::SimpleAtoi(halves.second, &number) || number < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(flags.model, ": '", halves.second,
                       "' is no version; versions count from 0, as in digits@1200"));
    }
    version = number;
  }

  absl::StatusOr<EvalJob> job = FindEvalJob(flags.server, halves.first);
  if (!job.ok())
    return Annotate(job.status(), absl::StrCat(flags.model, " is no directory, and as a job"));

  if (!flags.reward.given()) *reward = job->status.spec().reward();

  // The command line's template has precedence over the job's.
  const std::string chat_template = flags.options.chat_template;
  SLUICE_RETURN_IF_ERROR(CopyModelSettings(job->status.spec(), &flags.options));
  if (chat_template != "model") flags.options.chat_template = chat_template;
  flags.options.weights = [job = *std::move(job), version](absl::Span<const TensorSpec> layout) {
    return FetchJobWeights(job, version, layout);
  };
  return absl::OkStatus();
}

absl::StatusOr<EvalResult> EvaluateWith(const EvalFlags& flags, const Scorer& scorer) {
  const EvalScorer score = MakeLocalScorer(&scorer, flags.source);
  return Evaluate(flags.options, [&](absl::Span<const EvalText> answers, const std::string& row) {
    RowScores scores = score(answers, row);
    if (!flags.pass_score.has_value()) return scores;
    for (absl::StatusOr<EvalVerdict>& verdict : scores.verdicts) {
      if (verdict.ok()) verdict->passes = verdict->score >= *flags.pass_score;
    }
    return scores;
  });
}

// "0.5200  95 %: 0.4600 to 0.5800".
std::string WithInterval(double mean, const std::optional<Interval>& interval) {
  const std::string text = absl::StrFormat("%.4f", mean);
  if (!interval.has_value()) return text;
  return absl::StrCat(text,
                      absl::StrFormat("  95 %%: %.4f to %.4f", interval->low, interval->high));
}

// Who submits a job must not get the rights of whoever evaluates it, so that its plug-ins run in
// sandboxes. Says which ones run.
LocalRewards::PluginRights RightsOf(const EvalFlags& flags, const job::v1::Reward& reward) {
  if (flags.reward.given()) return LocalRewards::PluginRights::kOwn;
  const bool confined = flags.plugins == kInSandbox;
  const job::v1::Reward counted = WithoutShadows(reward);
  for (const job::v1::RewardEntry* const entry : PluginProgramsOf(counted)) {
    const absl::StatusOr<nlohmann::json> args = VerifierArgs(*entry);
    const absl::StatusOr<PluginSpec> spec =
        args.ok() ? ParsePluginSpec(*args) : absl::StatusOr<PluginSpec>(args.status());
    if (!spec.ok()) continue;  // LocalRewards::Make() says why.
    std::fprintf(stderr, "the job's plug-in %s (%s) runs here %s\n", entry->name().c_str(),
                 spec->file.c_str(), confined ? "in a sandbox" : "with your rights");
  }
  return confined ? LocalRewards::PluginRights::kSandbox : LocalRewards::PluginRights::kOwn;
}

ExitCode RunEval(EvalFlags& flags) {
  EvalOptions& options = flags.options;
  options.engine.model_path = flags.model;
  if (flags.init_seed.has_value()) {
    options.engine.random_init = true;
    options.engine.init_seed = *flags.init_seed;
  }

  if (options.samples > 1 && options.sampling.temperature == 0) {
    return Complain(absl::InvalidArgumentError(absl::StrCat(
        "--samples ", options.samples,
        " with --temperature 0: all answers to a row would be the same, and so would pass@k for "
        "every k; give --temperature, or leave out --samples")));
  }

  absl::StatusOr<std::map<std::string, std::string>> fields = FieldsOf(flags.columns);
  if (!fields.ok()) return Complain(fields.status());
  options.fields = *std::move(fields);

  // The model is a directory if one of that name exists, else a job.
  job::v1::Reward reward;
  if (!PathExists(flags.model)) {
    if (const absl::Status status = UseModelOfJob(flags, &reward); !status.ok())
      return Complain(status);
  }

  if (options.pass_k.empty())
    options.pass_k =
        options.samples == 1 ? std::vector<uint32_t>{1} : std::vector<uint32_t>{1, options.samples};

  if (reward.rewards().empty()) {
    absl::StatusOr<job::v1::Reward> given = RewardOf(flags.reward);
    if (!given.ok()) return Complain(given.status());
    reward = *std::move(given);
  }
  const auto rewards = LocalRewards::Make(reward, flags.reward, RightsOf(flags, reward));
  if (!rewards.ok()) return Complain(rewards.status());
  options.scoring_threads = (*rewards)->waiting();
  options.whole_rows = (*rewards)->scorer().scores_groups();
  options.stop_scoring = [&] { (*rewards)->Stop(); };
  options.cancelled = [&] { return !(*rewards)->broken().ok(); };

  const absl::StatusOr<EvalResult> result = EvaluateWith(flags, (*rewards)->scorer());
  if (const absl::Status why = (*rewards)->broken(); !why.ok()) return Complain(why);
  if (!result.ok()) return Complain(result.status());

  if (!result->ignored.empty()) {
    std::fprintf(stderr,
                 "warning: %s/config.json: %s is ignored: Sluice does not run code that comes with "
                 "a model\n",
                 options.engine.model_path.c_str(), absl::StrJoin(result->ignored, ", ").c_str());
  }

  if (IsData(flags.output)) return PrintData(ToJson(*result), flags.output), kDone;

  std::vector<std::vector<std::string>> rows = {
      {options.samples == 1 ? "score" : absl::StrCat("mean@", options.samples),
       WithInterval(result->score_mean, result->score_interval)}};
  for (const auto& [k, pass] : result->pass)
    rows.push_back({absl::StrCat("pass@", k), WithInterval(pass, result->pass_interval.at(k))});
  if (options.weights)
    rows.push_back(
        {"version", absl::StrCat(result->version.str(), "  ", result->fingerprint.hex())});
  rows.push_back({"rows", absl::StrCat(result->rows, "  too long ", result->too_long)});
  rows.push_back({"answers", absl::StrCat(result->answers, "  unscorable ", result->unscorable,
                                          "  truncated ", result->truncated)});
  rows.push_back({"tokens", absl::StrFormat("%d in %.1f s", result->tokens, result->seconds)});
  std::fputs(Table(rows).c_str(), stdout);
  if (result->unscorable > 0)
    std::fprintf(stderr, "first unscorable: %s\n", result->first_unscorable.c_str());
  return kDone;
}

}  // namespace

std::vector<Command> EvalCommands() {
  return {
      {"", "eval", "Let a model answer a file of rows, and score the answers.",
       "  sluice eval configs/examples/digits --init-seed 1 --data "
       "configs/examples/digits/heldout.jsonl --prompt digits \\\n"
       "      --answer digits --format '{digits}=' --verifier text --args '{\"property\": "
       "\"reversed\"}'    # random weights\n"
       "  sluice eval out --data test.jsonl --verifier gsm8k --prompt question --samples 4 "
       "--temperature 1    # what `sluice job export` wrote\n"
       "  sluice eval digits --data test.jsonl --samples 8 --temperature 1    # the newest version "
       "of a running job with its own rewards, while training goes on\n"
       "  sluice eval digits@1200 --data test.jsonl --verifier exact    # version 1200 of it, "
       "while the job has it",
       [](CLI::App* app) {
         auto f = std::make_shared<EvalFlags>();
         EvalOptions& o = f->options;
         o.engine.threads = UsableCores();
         o.pass_k.clear();
         app->add_option("MODEL", f->model,
                         "a Hugging Face directory, or JOB[@VERSION] of a running job")
             ->required();
         AddServer(app, &f->server);
         app->add_option("--data", o.data_path,
                         "a file of JSON lines, Parquet or Arrow, or a folder of datasets")
             ->required();
         AddRewardFlags(app, &f->reward);
         app->add_option("--plugins", f->plugins,
                         "how the plug-ins of a job run here: sandbox, or unconfined with your "
                         "rights; those of --verl, --trl and --native have your rights anyway")
             ->check(CLI::IsMember({kInSandbox, kUnconfined}))
             ->capture_default_str();
         app->add_option("--source", f->source,
                         "the rows' data source, for rewards of a job that are only for some");
         AddColumnFlags(app, &f->columns);
         app->add_option("--format", o.format,
                         "the prompt's text where there is no chat template, as in '{prompt}='");
         app->add_option("--chat-template", o.chat_template, "model, none or a file")
             ->capture_default_str();
         app->add_option("--first-row", o.first_row,
                         "number of the first row to use; the first row of the file is 0")
             ->check(NumberIn<uint64_t>(0))
             ->capture_default_str();
         app->add_option("--rows", o.rows, "number of rows to use; 0: all")
             ->check(NumberIn<uint64_t>(0))
             ->capture_default_str();
         app->add_option("--samples", o.samples,
                         "answers per row; more than 1 needs a --temperature above 0")
             ->check(NumberIn<uint32_t>(1, 1024))
             ->capture_default_str();
         app->add_option("--pass-k", o.pass_k,
                         "values of k for pass@k, as in 1,4,16; default: 1 and --samples")
             ->delimiter(',')
             ->check(NumberIn<uint32_t>(1, 1024));
         app->add_option("--pass-score", f->pass_score,
                         "lowest score with which an answer passes; default: the full score of "
                         "each reward, 1")
             ->check(NumberIn<double>());
         app->add_option("--temperature", o.sampling.temperature, "sampling temperature; 0: greedy")
             ->check(NumberIn<float>(0))
             ->capture_default_str();
         app->add_option("--max-tokens", o.sampling.max_tokens, "most tokens of an answer")
             ->check(NumberIn<uint32_t>(1))
             ->capture_default_str();
         app->add_option(
                "--max-prompt", o.max_prompt,
                "most tokens of a prompt; rows with longer ones are left out; 0: as many as the "
                "context has room for")
             ->check(NumberIn<uint32_t>(0))
             ->capture_default_str();
         app->add_option("--seed", o.seed, "seed of the sampling")
             ->check(NumberIn<uint64_t>(0))
             ->capture_default_str();
         app->add_option("--init-seed", f->init_seed,
                         "use random weights of this seed instead of the directory's weights")
             ->check(NumberIn<uint64_t>(0));
         app->add_option("--threads", o.engine.threads, "number of compute threads")
             ->check(NumberIn<int>(1, 4096))
             ->capture_default_str();
         app->add_option("--keep", o.keep, "number of rows whose answers are in the JSON result")
             ->check(NumberIn<uint32_t>(0))
             ->capture_default_str();
         AddFormats(app, &f->output);
         return [f] { return RunEval(*f); };
       }}};
}

}  // namespace sluice::cli
