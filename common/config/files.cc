// Checks what a job reads from disk: its model, its tokenizer and the first rows of its data. The
// daemons read the same files with the same functions when the job starts. This check reports a
// problem before that, with the line of the job file.

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/checkpoint/critic.h"
#include "common/checkpoint/model_dir.h"
#include "common/checkpoint/teacher.h"
#include "common/config/check.h"
#include "common/config/columns.h"
#include "common/config/rules.h"
#include "common/data/dataset.h"
#include "common/prompt/answers.h"
#include "common/prompt/prompt.h"
#include "common/scoring/job_scorer.h"
#include "common/verifiers/plugin_spec.h"
#include "common/verifiers/verifier.h"
#include "sluice/job/v1/job.pb.h"

namespace sluice::config {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kRowsLookedAt = 256;  // Rows read of each data source.
constexpr int kSourcesLookedAt = 64;

bool IsThere(const std::string& path) {
  std::error_code error;
  return fs::exists(path, error);
}
bool IsFile(const std::string& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}
bool IsDirectory(const std::string& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

class FileChecker {
 public:
  FileChecker(const job::v1::JobSpec& spec, bool must_exist, SpecProblems* problems)
      : spec_(spec), must_exist_(must_exist), check_(*problems) {}

  void Check() {
    CheckModel();
    CheckTeacherDir();
    CheckCriticDir();
    CheckTemplateFile();
    if (model_.has_value() && check_.errors().empty()) LoadRenderer();
    const int sources = std::min(spec_.data().train_size(), kSourcesLookedAt);
    for (int i = 0; i < sources; ++i) CheckSource(i);
    for (int i = 0; i < spec_.eval().datasets_size() && spec_.eval().every_steps() > 0; ++i) {
      CheckEvalDataset(i);
    }

    CheckPluginFiles();
    const std::string& checkpoints = spec_.checkpoint().dir();
    if (IsThere(checkpoints) && !IsDirectory(checkpoints))
      check_.Add(12, "checkpoint.dir", ": ", checkpoints, " is not a directory");
    const std::string& weights = spec_.weights().dir();
    if (IsThere(weights) && !IsDirectory(weights))
      check_.Add(12, "weights.dir", ": ", weights, " is not a directory");
  }

 private:
  // Whether the job samples answers, which only reinforcement learning does.
  bool sampled() const { return spec_.kind() == "rl"; }
  // The key that names the directory with the model's configuration.
  std::string model_key() const {
    return spec_.model().has_init() ? "model.init.config" : "model.path";
  }

  void CheckModel();
  void CheckTeacherDir();
  void CheckCriticDir();
  // Reads a second model of the job, and the headers of its weights. Without `head` its output head
  // need not be there. Returns nullopt if there is none on this host, or if it is bad, which is
  // reported.
  std::optional<ModelDir> ReadSecondModel(const std::string& key, const std::string& dir,
                                          bool head);
  void RefuseMissingFile(const std::string& key, const std::string& path);
  void CheckPluginFiles();
  void CheckTemplateFile();
  void LoadRenderer();
  void CheckSource(int index);
  void CheckEvalDataset(int index);
  // Reads the first rows of the data source whose keys are at `path`. Returns nullopt if the file
  // is missing (which is reported if it must exist), if the file is bad (which is reported), or if
  // its rows are too long for a quick look.
  std::optional<Dataset> ReadRows(const std::string& path, const job::v1::DataSource& source,
                                  bool skip_bad_rows);
  // The following functions check the rows that were read.
  void CheckPrompts(const std::string& path, const job::v1::DataSource& source,
                    const Dataset& rows);
  void CheckAnswers(const std::string& path, const job::v1::DataSource& source,
                    const Dataset& rows);
  void CheckDemonstrations(const std::string& path, const job::v1::DataSource& source,
                           const Dataset& rows);
  void CheckScores(const std::string& path, const job::v1::DataSource& source, const Dataset& rows,
                   const job::v1::RewardEntry& entry);

  const job::v1::JobSpec& spec_;
  const bool must_exist_;
  SpecProblems& check_;
  std::optional<ModelDir> model_;  // nullopt if the model is not visible on this host or is bad.
  // Null if model_ is nullopt, an earlier check found an error, or the tokenizer or chat template
  // cannot be loaded.
  std::unique_ptr<PromptRenderer> renderer_;
};

void FileChecker::CheckModel() {
  const std::string dir =
      spec_.model().has_init() ? spec_.model().init().config() : spec_.model().path();
  if (!IsDirectory(dir)) {
    if (must_exist_ || IsThere(dir)) check_.Add(12, model_key(), ": there is no directory ", dir);
    return;
  }

  if (!IsFile(dir + "/config.json")) {
    check_.Add(12, model_key(), ": there is no config.json in ", dir,
               "; a Hugging Face model directory is needed");
    return;
  }

  const bool weights =
      IsFile(dir + "/model.safetensors") || IsFile(dir + "/model.safetensors.index.json");
  if (!spec_.model().has_init() && !weights) {
    check_.Add(12, model_key(), ": there is neither model.safetensors nor ",
               "model.safetensors.index.json in ", dir,
               "; for random weights of that config write model.init: {config: DIR}");
    return;
  }

  absl::StatusOr<ModelDir> model = ReadModelDir(dir);
  if (!model.ok()) {
    check_.Add(15, model_key(), ": ", model.status().message());
    return;
  }

  // The model's own context may be shorter than the job's.
  const int64_t made_for = model->config.max_context;
  const uint64_t wanted =
      uint64_t{spec_.data().order().max_prompt()} + spec_.rollout().max_response();
  check_.WarnIf(spec_.model().max_context() > made_for, "model.max_context", "is ",
                spec_.model().max_context(), ", and this model was made for ", made_for,
                " tokens (max_position_embeddings), which is the limit");
  check_.WarnIf(
      sampled() && static_cast<int64_t>(wanted) > made_for && wanted <= spec_.model().max_context(),
      "rollout.max_response", "and data.order.max_prompt are ", wanted,
      " tokens together, and this model was made for ", made_for,
      " (max_position_embeddings): answers to long prompts are cut short");
  if (sampled() && model->config.num_experts > 0)
    CheckQuota(spec_, QueueTokenBytes(spec_, &model->config), &check_);
  if (spec_.algorithm().loss().router_balance() > 0 && model->config.num_experts == 0) {
    check_.Add(15, "algorithm.loss.router_balance", " is ",
               spec_.algorithm().loss().router_balance(), ", but the model in ", dir,
               " has no experts whose load could be balanced; use 0");
  }
  if (model->stop_ids.empty() && !sampled()) {
    check_.Add(15, model_key(), ": ", dir,
               " has no end token, neither in generation_config.json nor in config.json; set "
               "eos_token_id");
    return;
  }

  check_.WarnIf(model->stop_ids.empty(), model_key(),
                "has no end token (eos_token_id): every answer goes on to rollout.max_response");
  model_ = *std::move(model);
}

void FileChecker::CheckTeacherDir() {
  if (!spec_.model().has_teacher()) return;
  const std::string key = "model.teacher.path";
  const std::optional<ModelDir> teacher =
      ReadSecondModel(key, spec_.model().teacher().path(), /*head=*/true);
  if (!teacher.has_value() || !model_.has_value()) return;
  const int64_t longest =
      std::min({int64_t{spec_.model().max_context()}, model_->config.max_context,
                int64_t{spec_.data().order().max_prompt()} + spec_.rollout().max_response()});
  const absl::Status fits = CheckTeacher(*model_, *teacher, longest);
  if (!fits.ok()) check_.Add(15, key, ": ", fits.message());
}

void FileChecker::CheckCriticDir() {
  const std::string& dir = spec_.trainer().critic().path();
  if (dir.empty()) return;
  const std::string key = "trainer.critic.path";
  const std::optional<ModelDir> critic = ReadSecondModel(key, dir, /*head=*/false);
  if (!critic.has_value() || !model_.has_value()) return;
  const absl::Status fits = CheckCritic(*model_, *critic);
  if (!fits.ok()) check_.Add(15, key, ": ", fits.message());
}

std::optional<ModelDir> FileChecker::ReadSecondModel(const std::string& key, const std::string& dir,
                                                     bool head) {
  if (!IsDirectory(dir)) {
    if (must_exist_ || IsThere(dir)) check_.Add(12, key, ": there is no directory ", dir);
    return std::nullopt;
  }
  absl::StatusOr<ModelDir> model = ReadModelDir(dir);
  absl::Status status = model.status();
  if (status.ok()) {
    ModelDir read = *model;
    if (!head) read.config.tie_word_embeddings = true;
    status = ReadWeightSpecs(read).status();
  }
  if (!status.ok()) {
    check_.Add(15, key, ": ", status.message());
    return std::nullopt;
  }
  return *std::move(model);
}

// Reports `path`, which the caller has found not to be a file. If must_exist_ is false, a path that
// does not exist is accepted, because the file may be on another host.
void FileChecker::RefuseMissingFile(const std::string& key, const std::string& path) {
  if (IsThere(path)) {
    check_.Add(12, key, ": ", path, " is not a file");
  } else if (must_exist_) {
    check_.Add(12, key, ": there is no file ", path);
  }
}

void FileChecker::CheckPluginFiles() {
  for (int i = 0; i < spec_.reward().rewards_size(); ++i) {
    const job::v1::RewardEntry& entry = spec_.reward().rewards(i);
    if (entry.verifier() != "plugin") continue;
    const absl::StatusOr<nlohmann::json> args = VerifierArgs(entry);
    SLUICE_CHECK(args.ok());  // CheckRules() has made the verifier before.
    const absl::StatusOr<PluginSpec> plugin = ParsePluginSpec(*args);
    SLUICE_CHECK(plugin.ok());
    if (plugin->kind != PluginSpec::Kind::kGrpc && !IsFile(plugin->file))
      RefuseMissingFile(absl::StrCat("reward.rewards.", i, ".args"), plugin->file);
  }
}

void FileChecker::CheckTemplateFile() {
  const job::v1::Model& model = spec_.model();
  if (!model.has_chat_template() || model.chat_template() == "model" ||
      IsFile(model.chat_template()))
    return;
  RefuseMissingFile("model.chat_template", model.chat_template());
}

void FileChecker::LoadRenderer() {
  const std::string chat_template =
      spec_.model().has_chat_template() ? spec_.model().chat_template() : "none";
  if (chat_template != "model" && chat_template != "none" && !IsFile(chat_template)) return;
  std::vector<PromptRenderer::Source> sources;
  for (const job::v1::DataSource& from : spec_.data().train()) {
    PromptRenderer::Source& to = sources.emplace_back();
    to.name = from.name();
    to.format = from.format();
    to.columns = ColumnsOf(from);
  }

  absl::StatusOr<std::unique_ptr<PromptRenderer>> renderer =
      PromptRenderer::Load(*model_, chat_template, std::move(sources));
  if (!renderer.ok()) {
    // Errors of the renderer do not say which key is at fault, but their text does.
    const bool of_template = absl::StrContains(renderer.status().message(), "chat template");
    const std::string key = of_template ? "model.chat_template" : model_key();
    check_.Add(15, key, ": ", renderer.status().message());
    return;
  }
  renderer_ = *std::move(renderer);
}

std::optional<Dataset> FileChecker::ReadRows(const std::string& path,
                                             const job::v1::DataSource& source,
                                             bool skip_bad_rows) {
  // A folder may be one that Hugging Face datasets have written.
  if (!source.has_generator() && !IsThere(source.path())) {
    RefuseMissingFile(path + ".path", source.path());
    return std::nullopt;
  }

  const std::map<std::string, std::string> fields = ColumnsOf(source);
  absl::StatusOr<Dataset> rows = ReadDataset({.name = source.name(),
                                              .path = PathOf(source),
                                              .fields = fields,
                                              .skip_bad_rows = skip_bad_rows,
                                              .first_rows = kRowsLookedAt});
  if (absl::IsResourceExhausted(rows.status())) {
    return std::nullopt;  // The rows are too long to read for a check.
  }
  if (!rows.ok()) {
    // If a column is missing, report the key that names the column. Only the text of the error says
    // which column it is.
    std::string key = ".path";
    for (const auto& [name, column] : fields) {
      if (!absl::StrContains(rows.status().message(), absl::StrCat(" for field ", name, ";")))
        continue;
      key = name == "prompt" || name == "answer" ? absl::StrCat(".", name) : ".fields";
    }
    const std::string hint = DetailOf(rows.status()).hint;
    check_.Add(16, path + key, ": ", rows.status().message(), hint.empty() ? "" : ". ", hint);
    return std::nullopt;
  }
  return *std::move(rows);
}

void FileChecker::CheckEvalDataset(int index) {
  const job::v1::DataSource& dataset = spec_.eval().datasets(index);
  const std::string path = absl::StrCat("eval.datasets.", index);
  const bool skip = !sampled() && spec_.data().order().on_bad_row() == "skip";
  const std::optional<Dataset> rows = ReadRows(path, dataset, skip);
  if (rows.has_value()) CheckAnswers(path, dataset, *rows);
}

void FileChecker::CheckSource(int index) {
  const job::v1::DataSource& source = spec_.data().train(index);
  const std::string path = absl::StrCat("data.train.", index);
  const bool skip = spec_.data().order().on_bad_row() == "skip";
  const std::optional<Dataset> rows = ReadRows(path, source, skip);
  if (!rows.has_value()) return;

  check_.WarnIf(rows->skipped() > 0, path + ".path", "has rows that are skipped: ", rows->skipped(),
                " of the first ", rows->skipped() + rows->rows(), ", the first of them ",
                rows->first_skipped());
  if (renderer_ != nullptr) CheckPrompts(path, source, *rows);
  CheckAnswers(path, source, *rows);
}

void FileChecker::CheckPrompts(const std::string& path, const job::v1::DataSource& source,
                               const Dataset& rows) {
  const int64_t context =
      std::min<int64_t>(spec_.model().max_context(), model_->config.max_context);
  const auto most =
      static_cast<uint64_t>(std::min<int64_t>(spec_.data().order().max_prompt(), context - 1));
  uint64_t unusable = 0, too_long = 0, lists = 0;
  uint64_t shortest = 0;  // Tokens of the shortest prompt that is too long.
  std::string first_unusable;
  for (uint64_t i = 0; i < rows.rows(); ++i) {
    const absl::StatusOr<RenderedPrompt> prompt = renderer_->Render(source.name(), rows.json(i));
    if (!prompt.ok()) {
      if (unusable++ == 0)
        first_unusable =
            absl::StrCat(PathOf(source), ":", rows.line(i), ": ", prompt.status().message());
      continue;
    }
    const int32_t highest = *std::max_element(prompt->tokens.begin(), prompt->tokens.end());
    // A token beyond the vocabulary shows that tokenizer and model do not belong together.
    if (highest >= model_->config.vocab_size) {
      check_.Add(15, model_key(), ": the tokenizer gives the token ", highest, " for ",
                 PathOf(source), ":", rows.line(i), ", but the vocabulary of the model has ",
                 model_->config.vocab_size, " tokens; the two do not belong together");
      return;
    }
    if (prompt->tokens.size() > most && (too_long++ == 0 || prompt->tokens.size() < shortest))
      shortest = prompt->tokens.size();
    lists += nlohmann::json::parse(rows.json(i), nullptr, false)["prompt"].is_array() ? 1 : 0;
  }

  if (unusable == rows.rows()) {
    // An error about the format quotes it, and then `format` is the key at fault.
    const std::string key = absl::StrContains(first_unusable, "format \"") ? ".format" : ".path";
    check_.Add(16, path + key, ": none of the first ", unusable,
               " rows makes a prompt. The first problem: ", first_unusable);
    return;
  }
  if (sampled() && too_long == rows.rows()) {
    check_.Add(16, path + ".path", ": none of the first ", too_long,
               " prompts fits: the shortest has ", shortest, " tokens, but the maximum is ", most,
               ". Raise data.order.max_prompt and model.max_context");
    return;
  }
  check_.WarnIf(unusable > 0, path + ".path",
                "has rows that make no prompt and are dropped: ", unusable, " of the first ",
                rows.rows(), ". The first problem: ", first_unusable);
  check_.WarnIf(sampled() && 2 * too_long > rows.rows(), path + ".path",
                "has prompts that are too long and are dropped: ", too_long, " of the first ",
                rows.rows(), " have more than ", most,
                " tokens (data.order.max_prompt, and model.max_context)");
  check_.WarnIf(lists > 0 && !renderer_->has_template(), path + ".prompt",
                "is a list of messages, and there is no chat template: "
                "the model reads their JSON. Set model.chat_template to a file");
}

void FileChecker::CheckAnswers(const std::string& path, const job::v1::DataSource& source,
                               const Dataset& rows) {
  if (!sampled()) {
    CheckDemonstrations(path, source, rows);
    return;
  }
  for (const job::v1::RewardEntry& entry : spec_.reward().rewards()) {
    if (entry.has_shadow()) continue;  // Nothing depends on its scores.
    const auto& named = entry.when().data_source();
    if (named.empty() || std::find(named.begin(), named.end(), source.name()) != named.end())
      CheckScores(path, source, rows, entry);
  }
}

// Reports the first row without an answer to learn. The job would fail when the trainer reaches it.
void FileChecker::CheckDemonstrations(const std::string& path, const job::v1::DataSource& source,
                                      const Dataset& rows) {
  for (uint64_t i = 0; i < rows.rows(); ++i) {
    const nlohmann::json row = nlohmann::json::parse(rows.json(i), nullptr, false);
    const absl::Status answer = AnswersOf(spec_.kind(), row).status();
    if (answer.ok()) continue;

    const char* const key = spec_.kind() == "dpo" ? ".fields" : ".answer";
    if (spec_.data().order().on_bad_row() == "skip") {
      check_.WarnIf(true, path + key, ": ", PathOf(source), ":", rows.line(i), ": ",
                    answer.message(), "; such rows are left out (data.order.on_bad_row: skip)");
    } else {
      check_.Add(16, path + key, ": ", PathOf(source), ":", rows.line(i), ": ", answer.message(),
                 "; kind ", spec_.kind(),
                 absl::StartsWith(path, "eval.") ? " is evaluated on it" : " trains on it");
    }
    return;
  }
}

// Checks that the verifier finds in the rows what it compares answers with.
void FileChecker::CheckScores(const std::string& path, const job::v1::DataSource& source,
                              const Dataset& rows, const job::v1::RewardEntry& entry) {
  const auto verifier = MakeVerifierOf(entry);
  SLUICE_CHECK(verifier.ok());  // CheckRules() has created it before.

  uint64_t unscorable = 0;
  bool answered = false;
  std::string first;
  for (uint64_t i = 0; i < rows.rows(); ++i) {
    const nlohmann::json row = nlohmann::json::parse(rows.json(i), nullptr, false);
    answered = answered || row.contains("answer");
    const absl::Status scorable = (*verifier)->CheckRow(row);
    if (!scorable.ok() && unscorable++ == 0)
      first = absl::StrCat(PathOf(source), ":", rows.line(i), ": ", scorable.message());
  }

  if (unscorable == 0) return;
  if (!answered && unscorable == rows.rows()) {
    check_.Add(16, path + ".answer", ": there is no column \"", source.answer(),
               "\", which the verifier ", entry.verifier(), " needs; ", first);
    return;
  }
  check_.WarnIf(true, path + ".answer", "has values that ", entry.verifier(), " cannot score, in ",
                unscorable, " of the first ", rows.rows(),
                " rows: their answers are dropped. The first is ", first);
}

}  // namespace

void CheckFiles(const job::v1::JobSpec& spec, bool must_exist, SpecProblems* problems) {
  FileChecker(spec, must_exist, problems).Check();
}

}  // namespace sluice::config
