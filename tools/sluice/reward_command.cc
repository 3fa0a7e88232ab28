// sluice reward score: scores the answers of a file by hand, as a reward of a job would.

#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/json_depth.h"
#include "common/base/status.h"
#include "common/scoring/scorer.h"
#include "tools/sluice/commands.h"
#include "tools/sluice/local_rewards.h"
#include "tools/sluice/options.h"
#include "tools/sluice/output.h"

namespace sluice::cli {
namespace {

constexpr size_t kMaxRowDepth = 64;

struct ScoreFlags {
  std::string file;
  RewardFlags reward;
  std::string text = "completion", prompt = "prompt", answer = "answer";
};

struct ScoredRow {
  nlohmann::json row;           // With the fields that verifiers read.
  std::vector<Answer> answers;  // Several are those of a group.
};

absl::StatusOr<ScoredRow> ReadRow(absl::string_view line, const ScoreFlags& flags) {
  if (JsonDepth(line) > kMaxRowDepth) {
    return absl::InvalidArgumentError(
        absl::StrCat("the row nests more than ", kMaxRowDepth, " levels deep"));
  }
  ScoredRow read;
  read.row = nlohmann::json::parse(line.begin(), line.end(), nullptr, /*allow_exceptions=*/false);
  if (!read.row.is_object()) return absl::InvalidArgumentError("the row is no JSON object");
  const auto text = read.row.find(flags.text);
  const nlohmann::json texts = text == read.row.end() ? nlohmann::json::array()
                               : text->is_array()     ? *text
                                                      : nlohmann::json::array({*text});
  for (const nlohmann::json& one : texts) {
    if (one.is_string()) read.answers.push_back({.text = one.get<std::string>()});
  }
  if (read.answers.empty() || read.answers.size() != texts.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the column ", flags.text,
                     " has no text to score; name the column with the answers of the model by "
                     "--text, which are a text or a list of texts"));
  }
  read.row.erase(flags.text);
  for (const auto& [field, column] :
       {std::pair{"prompt", &flags.prompt}, {"answer", &flags.answer}}) {
    const auto value = read.row.find(*column);
    if (*column == field || value == read.row.end()) continue;
    const nlohmann::json moved = *value;
    read.row.erase(*column);
    read.row[field] = moved;
  }
  return read;
}

// What has been scored so far.
struct ScoreTally {
  uint64_t rows = 0, scored = 0;
  double sum = 0;
  std::map<std::string, uint64_t> unscorable;  // By status.
};

void PrintScore(uint64_t line, std::optional<size_t> member, const Score& score,
                ScoreTally* tally) {
  nlohmann::ordered_json out = {{"line", line}};
  if (member) out["member"] = *member;
  out["score"] = nullptr;
  const nlohmann::json info = nlohmann::json::parse(score.info, nullptr, false);
  if (score.status == "ok") {
    out["score"] = score.task_reward;
    tally->sum += score.task_reward;
    ++tally->scored;
  } else {
    ++tally->unscorable[score.status];
  }
  out["status"] = score.status;
  if (info.is_object() && !info.empty()) out["reason"] = info.front();
  PrintData(out, "jsonl");
}

absl::Status ScoreFile(const ScoreFlags& flags, const Scorer& scorer, ScoreTally* tally) {
  SLUICE_ASSIGN_OR_RETURN(const std::string text, ReadFile(flags.file));
  uint64_t line = 0;
  for (const absl::string_view one : absl::StrSplit(text, '\n')) {
    ++line;
    if (one.find_first_not_of(" \t\r") == absl::string_view::npos) continue;
    const absl::StatusOr<ScoredRow> row = ReadRow(one, flags);
    if (!row.ok()) return Annotate(row.status(), absl::StrCat(flags.file, ":", line));
    ++tally->rows;
    const std::vector<Score> scores = scorer.RunGroup(row->answers, row->row, "");
    for (size_t i = 0; i < scores.size(); ++i) {
      // A plug-in that does not run scores nothing of the file.
      if (ReasonOf(scores[i].fault) == "PLUGIN_DOWN") return scores[i].fault;
      PrintScore(line, scores.size() == 1 ? std::nullopt : std::optional<size_t>(i), scores[i],
                 tally);
    }
  }
  return absl::OkStatus();
}

ExitCode RunScore(const ScoreFlags& flags) {
  const absl::StatusOr<job::v1::Reward> reward = RewardOf(flags.reward);
  if (!reward.ok()) return Complain(reward.status());
  const auto rewards = LocalRewards::Make(*reward, flags.reward);
  if (!rewards.ok()) return Complain(rewards.status());

  ScoreTally tally;
  const absl::Duration begin = Clock::Real()->Monotonic();
  const absl::Status done = ScoreFile(flags, (*rewards)->scorer(), &tally);
  std::string summary = absl::StrFormat("%d rows  %d scored", static_cast<int64_t>(tally.rows),
                                        static_cast<int64_t>(tally.scored));
  if (tally.scored > 0)
    absl::StrAppendFormat(&summary, "  mean %.4f", tally.sum / static_cast<double>(tally.scored));
  for (const auto& [status, count] : tally.unscorable)
    absl::StrAppend(&summary, "  ", status, " ", count);
  std::fprintf(stderr, "%s  in %.1f s\n", summary.c_str(),
               absl::ToDoubleSeconds(Clock::Real()->Monotonic() - begin));
  return done.ok() ? kDone : Complain(done);
}

}  // namespace

std::vector<Command> RewardCommands() {
  return {{"reward", "score",
           "Score the answers of a file, as a job would, and print a JSON object for each.",
           "  sluice reward score configs/examples/rewards/answers.jsonl --verifier text --args "
           "'{\"property\": \"reversed\"}'\n"
           "  sluice reward score configs/examples/rewards/answers.jsonl --verl "
           "configs/examples/rewards/reversed_verl.py:compute_score\n"
           "  sluice reward score configs/examples/rewards/answers.jsonl --trl "
           "configs/examples/rewards/reversed_trl.py:rare_reward    # a list of answers is a "
           "group\n"
           "  sluice reward score configs/examples/rewards/answers.jsonl --grpc reversed "
           "--plugin-servers configs/plugin-servers.yaml",
           [](CLI::App* app) {
             auto f = std::make_shared<ScoreFlags>();
             app->add_option("FILE", f->file, "a file of JSON lines")->required();
             AddRewardFlags(app, &f->reward);
             app->add_option("--text", f->text,
                             "the column with the answer of the model, a text or a list of texts")
                 ->capture_default_str();
             app->add_option("--prompt", f->prompt, "the column with the prompt")
                 ->capture_default_str();
             app->add_option("--answer", f->answer, "the column with the right answer")
                 ->capture_default_str();
             return [f] { return RunScore(*f); };
           }}};
}

}  // namespace sluice::cli
