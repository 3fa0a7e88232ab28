// sluice data check: looks for faults in the rows of files, before a job trains on them.

#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/checkpoint/model_dir.h"
#include "common/config/columns.h"
#include "common/config/job_file.h"
#include "common/prompt/answers.h"
#include "common/prompt/prompt.h"
#include "common/scoring/job_scorer.h"
#include "sluice/job/v1/spec.pb.h"
#include "tools/sluice/column_flags.h"
#include "tools/sluice/commands.h"
#include "tools/sluice/curve.h"
#include "tools/sluice/data/data_check.h"
#include "tools/sluice/options.h"
#include "tools/sluice/output.h"

namespace sluice::cli {
namespace {

struct DataCheckFlags {
  std::vector<std::string> files, held_out, sets;
  ColumnFlags columns;
  std::string verifier, args = "{}", format, model, chat_template = "model", output;
  uint64_t max_prompt = 2048;
  uint32_t show = 10;
};

// What CheckDataFiles() needs, with the objects that it refers to.
struct DataCheckInputs {
  DataCheckOptions options;
  std::optional<Scorer> scorer;
  std::unique_ptr<PromptRenderer> renderer;
};

bool IsJobFile(const std::string& path) {
  return absl::EndsWith(path, ".yaml") || absl::EndsWith(path, ".yml");
}

// Loads the tokenizer and chat template of a model, with which `options` counts tokens.
absl::Status LoadRenderer(const std::string& model, const std::string& chat_template,
                          DataCheckInputs* inputs, int64_t* max_context) {
  SLUICE_ASSIGN_OR_RETURN(const ModelDir dir, ReadModelDir(model));
  *max_context = dir.config.max_context;
  std::vector<PromptRenderer::Source> sources;
  for (const DataToCheck& source : inputs->options.sources) {
    PromptRenderer::Source& to = sources.emplace_back();
    to.name = source.rendered_as;
    to.format = source.format;
    to.columns = source.data.fields;
  }
  SLUICE_ASSIGN_OR_RETURN(inputs->renderer,
                          PromptRenderer::Load(dir, chat_template, std::move(sources)));
  inputs->options.renderer = inputs->renderer.get();
  return absl::OkStatus();
}

void CheckAnswersWith(std::optional<Scorer> scorer, DataCheckInputs* inputs) {
  inputs->scorer = std::move(scorer);
  inputs->options.check_answer = [inputs](const nlohmann::json& row, const std::string& source) {
    return inputs->scorer->CheckRow(row, source);
  };
}

void AddSource(const job::v1::DataSource& source, bool held_out, DataCheckOptions* options) {
  DataToCheck& to = options->sources.emplace_back();
  to.name = source.name();
  to.held_out = held_out;
  to.data = {.name = source.name(), .path = PathOf(source), .fields = ColumnsOf(source)};
  to.format = source.format();
  to.rendered_as = absl::StrCat(options->sources.size());
}

// The sources of a job, which are checked as its daemons read them.
absl::Status UseJob(const DataCheckFlags& flags, DataCheckInputs* inputs) {
  const JobFile file = ReadJobFile(flags.files[0], {.sets = flags.sets, .check_paths = false});
  SLUICE_RETURN_IF_ERROR(ProblemStatus(file.problems));
  const job::v1::JobSpec& spec = *file.spec;
  DataCheckOptions& options = inputs->options;
  for (const auto& source : spec.data().train()) AddSource(source, false, &options);
  for (const auto& source : spec.eval().datasets()) AddSource(source, true, &options);
  options.skip_bad_rows = spec.data().order().on_bad_row() == "skip";

  if (spec.kind() != "rl") {
    options.check_answer = [kind = spec.kind()](const nlohmann::json& row, const std::string&) {
      return AnswersOf(kind, row).status();
    };
  } else if (!spec.reward().rewards().empty()) {
    SLUICE_ASSIGN_OR_RETURN(Scorer scorer, MakeScorer(spec.reward()));
    CheckAnswersWith(std::move(scorer), inputs);
  }

  const job::v1::Model& model = spec.model();
  int64_t context = 0;
  SLUICE_RETURN_IF_ERROR(LoadRenderer(model.has_init() ? model.init().config() : model.path(),
                                      model.has_chat_template() ? model.chat_template() : "none",
                                      inputs, &context));
  // The longest prompt that leaves room for a token of the answer.
  const int64_t room = std::min<int64_t>(model.max_context(), context) - 1;
  options.max_prompt =
      static_cast<uint64_t>(std::min<int64_t>(spec.data().order().max_prompt(), room));
  return absl::OkStatus();
}

absl::Status UseFiles(const DataCheckFlags& flags, DataCheckInputs* inputs) {
  SLUICE_ASSIGN_OR_RETURN(const auto fields, FieldsOf(flags.columns));
  DataCheckOptions& options = inputs->options;
  for (const bool held_out : {false, true}) {
    for (const std::string& path : held_out ? flags.held_out : flags.files) {
      DataToCheck& to = options.sources.emplace_back();
      to.name = path;
      to.held_out = held_out;
      to.data = {.name = path, .path = path, .fields = fields};
      to.format = flags.format;
      to.rendered_as = absl::StrCat(options.sources.size());
    }
  }
  options.max_prompt = flags.max_prompt;

  if (!flags.verifier.empty()) {
    nlohmann::json args = nlohmann::json::parse(flags.args, nullptr, /*allow_exceptions=*/false);
    if (!args.is_object()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--args must be a JSON object, but is ", flags.args));
    }
    SLUICE_ASSIGN_OR_RETURN(
        Scorer scorer,
        Scorer::Make(
            {{.name = flags.verifier, .verifier = flags.verifier, .args = std::move(args)}},
            Combine::kSum));
    CheckAnswersWith(std::move(scorer), inputs);
  }
  int64_t context = 0;
  return flags.model.empty() ? absl::OkStatus()
                             : LoadRenderer(flags.model, flags.chat_template, inputs, &context);
}

// The options that a job file contradicts, because it says the same itself, and those that only a
// job file has a use for.
absl::Status CheckFlags(const CLI::App& app, const DataCheckFlags& flags) {
  const bool job = IsJobFile(flags.files[0]);
  for (const std::string& file : flags.files) {
    if (flags.files.size() == 1 || !IsJobFile(file)) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        file, " is a job file, which names its data itself; check it alone, without other files"));
  }
  if (!job && !flags.sets.empty())
    return absl::InvalidArgumentError("--set changes a job file, but FILE is none");
  for (const char* name : {"--eval", "--verifier", "--args", "--prompt", "--answer", "--field",
                           "--format", "--model", "--chat-template", "--max-prompt"}) {
    if (!job || app.count(name) == 0) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        name, " is for files of data; ", flags.files[0],
        " is a job file, which says so itself, and --set KEY=VALUE replaces what it says"));
  }
  if (app.count("--args") > 0 && flags.verifier.empty())
    return absl::InvalidArgumentError("--args needs --verifier");
  for (const char* name : {"--chat-template", "--max-prompt"}) {
    if (app.count(name) > 0 && flags.model.empty() && !job)
      return absl::InvalidArgumentError(
          absl::StrCat(name, " needs --model, whose tokenizer counts the tokens"));
  }
  return absl::OkStatus();
}

ExitCode RunDataCheck(const CLI::App& app, const DataCheckFlags& flags) {
  if (const absl::Status status = CheckFlags(app, flags); !status.ok()) return Complain(status);
  DataCheckInputs inputs;
  inputs.options.show = flags.show;
  const absl::Status ready =
      IsJobFile(flags.files[0]) ? UseJob(flags, &inputs) : UseFiles(flags, &inputs);
  if (!ready.ok()) return Complain(ready);
  const absl::StatusOr<DataReport> report = CheckDataFiles(inputs.options);
  if (!report.ok()) return Complain(report.status());

  if (IsData(flags.output)) PrintData(DataReportJson(*report), flags.output);
  else std::fputs(DataReportText(*report, Utf8Terminal()).c_str(), stdout);
  return report->HasFailure() ? kFailed : kDone;
}

}  // namespace

std::vector<Command> DataCommands() {
  return {
      {"data", "check",
       "Look for faults in the rows of files, or of the data that a job file names: rows that "
       "cannot be read, answers that cannot be scored, prompts that are there twice or are too "
       "long, and evaluation rows that are also trained on. Exit code 1: a row cannot be read or "
       "scored, or an evaluation row is trained on.",
       "  sluice data check configs/examples/digits.yaml    # with its model, rewards and eval\n"
       "  sluice data check configs/examples/digits/train.jsonl --prompt digits --answer digits "
       "\\\n"
       "      --eval configs/examples/digits/heldout.jsonl --format '{digits}=' --model "
       "configs/examples/digits -o json\n"
       "  sluice data check configs/examples/code/train.jsonl --verifier code    # can the "
       "verifier "
       "use the rows?\n"
       "An eval row overlaps with a training row if their prompts share 13 words in a row, in "
       "upper or lower case, or are equal.\n"
       "What more than 10 eval rows share is an instruction, and does not count, nor do messages "
       "of the system.",
       [](CLI::App* app) {
         auto f = std::make_shared<DataCheckFlags>();
         app->add_option("FILE", f->files,
                         "files of JSON lines, Parquet or Arrow, folders of datasets, or "
                         "generator:KIND; or a job file (.yaml)")
             ->required();
         app->add_option("--eval", f->held_out, "a file of held-out rows; may be repeated")
             ->allow_extra_args(false);
         app->add_option("--verifier", f->verifier,
                         "what will score the answers, such as exact or gsm8k; `sluice config "
                         "explain reward.rewards.verifier` lists all; without it, answers are not "
                         "checked");
         app->add_option("--args", f->args, "the verifier's settings, a JSON object")
             ->capture_default_str();
         AddColumnFlags(app, &f->columns);
         app->add_option("--format", f->format,
                         "the prompt's text where there is no chat template, as in '{prompt}='");
         app->add_option("--model", f->model,
                         "a Hugging Face directory, whose tokenizer counts the tokens of the "
                         "prompts");
         app->add_option("--chat-template", f->chat_template, "model, none or a file")
             ->capture_default_str();
         app->add_option("--max-prompt", f->max_prompt,
                         "most tokens of a prompt, as in data.order.max_prompt")
             ->check(NumberIn<uint64_t>(1))
             ->capture_default_str();
         app->add_option("--show", f->show, "how many rows of each kind are named")
             ->check(NumberIn<uint32_t>(0))
             ->capture_default_str();
         AddSets(app, &f->sets);
         AddFormats(app, &f->output);
         return [app, f] { return RunDataCheck(*app, *f); };
       }}};
}

}  // namespace sluice::cli
