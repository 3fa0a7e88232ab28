#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/verifiers/verifier.h"
#include "nlohmann/json.hpp"

namespace sluice {

// One entry of the job's `reward.rewards`.
struct RewardRule {
  std::string name;
  std::string verifier;
  double weight = 1;
  bool gate = false;  // If it scores below 1, the whole reward is gate_fail.
  double gate_fail = 0;
  absl::Duration timeout = absl::Seconds(10);  // Of one try, if the verifier asks others.
  bool scores_groups = false;                  // The verifier gets all answers of a group at once.
  // Name of the rule for which this one is a candidate: it is not part of the reward. Empty: it is.
  std::string shadow = "";
  std::vector<std::string> data_sources;  // The sources it applies to. Empty: all.
  nlohmann::json args = nlohmann::json::object();
};

// What rules may use that is outside of this process.
struct ScorerServices {
  AskJudge ask_judge;    // Null: this process has no judges.
  RunPlugin run_plugin;  // Null: this process runs no plug-ins.
  RunCode run_code;      // Null: this process has no sandboxes.
  // Say which models the judges are, and which compilers and interpreters the sandboxes have, for
  // the generation.
  std::string judges, toolchains;
  // The version of each plug-in's files, by the args of its rule as JSON, for the generation.
  std::map<std::string, std::string> plugins;
};

enum class Combine { kSum, kProduct, kMin };

// The result of scoring one answer. It is either a number, which says something about the policy,
// or, if the policy is not the cause, a reason without a number.
struct Score {
  // "ok", or why there is no number: no_part (no rule applies), bad_row (a verifier refuses the
  // row), bad_value (a score is out of range, or the reward is not finite), fault; and of plug-ins:
  // no_score (none of those that apply gave one), plugin_error (it failed on the answer), poison
  // (its processes ended on the answer), too_large.
  std::string status = "ok";
  // The error behind the status fault: a service that a verifier asks has failed, or is busy. A
  // later try may succeed.
  absl::Status fault = absl::OkStatus();
  double task_reward = 0;
  std::vector<double> parts;  // The score by each rule, in order; NaN if a rule does not apply.
  // The credits of each rule, without its weight, in the order of `parts`.
  std::vector<std::vector<Verdict::Credit>> part_credits = {};
  // What the answer has earned of task_reward up to bytes of its text, weighted as the rules say,
  // by ascending end. The rest of task_reward belongs to the whole answer.
  std::vector<Verdict::Credit> credits = {};
  // The field rew_tok that TokenRewards() makes of them; Run() leaves it empty, as it does not know
  // the tokens.
  std::vector<double> token_rewards = {};
  // Whether every rule that applies and has a weight above 0 gave its full score, 1.
  bool passes = false;
  std::string info;  // JSON: the explanation of each rule.
};

// What one rule says of an answer, without its weight.
struct RuleScore {
  double score = 0;
  std::vector<Verdict::Credit> credits = {};  // As in Verdict.
};

// Scores answers by the rules of a job. The reward is the sum (or product, or minimum) of weight *
// score over the rules that apply. If a gate fails, the reward is that gate's gate_fail alone; of
// several, the first counts. Candidates (RewardRule::shadow) have no influence on it.
//
// Immutable, so thread-safe.
class Scorer {
 public:
  // INVALID_ARGUMENT: there are no rules but candidates, a name is used twice, a weight or
  // gate_fail is not finite, a verifier is unknown, its arguments do not fit, it gives credits
  // (Verdict), which only a sum can take, or a candidate is a gate, or one for no rule of the
  // reward.
  static absl::StatusOr<Scorer> Make(std::vector<RewardRule> rules, Combine combine,
                                     const ScorerServices& services = {});

  // Scores one answer. `row` has the mapped fields, `data_source` is the name of the row's source.
  Score Run(const Answer& answer, const nlohmann::json& row, const std::string& data_source) const;

  // Scores the answers of a group, which are all to `row`: one score for each. Rules that do not
  // score groups score them one by one.
  std::vector<Score> RunGroup(const std::vector<Answer>& answers, const nlohmann::json& row,
                              const std::string& data_source) const;
  // Whether a rule scores groups.
  bool scores_groups() const;

  // What the rule or candidate `name` alone says of these answers to `row`, for each that it can
  // score. None at all if there is no such rule, or it does not apply to the source.
  std::vector<std::optional<RuleScore>> RunRule(const std::string& name,
                                                const std::vector<Answer>& answers,
                                                const nlohmann::json& row,
                                                const std::string& data_source) const;
  // The rules of the reward in the order of Score::parts, and the candidates. Both in the order in
  // which they were given.
  std::vector<const RewardRule*> rules() const;
  std::vector<const RewardRule*> shadows() const;

  // Checks whether answers to this row can be scored at all.
  // INVALID_ARGUMENT: they cannot; the message is the reason that Run() would give for each of
  // them.
  absl::Status CheckRow(const nlohmann::json& row, const std::string& data_source) const;

  // Identifies the rules, their judges and plug-ins, the toolchains of those that run programs, and
  // the version of the verifiers (kVerifiersVersion in scorer.cc): the first four bytes of a
  // SHA-256 of all. Equal ones give equal generations.
  uint32_t generation() const { return generation_; }
  // The version of each rule and candidate by its name: eight hex digits of a SHA-256 of the rule
  // and what it uses of the above.
  const std::map<std::string, std::string>& versions() const { return versions_; }

 private:
  struct Part {
    RewardRule rule;
    std::shared_ptr<const Verifier> verifier;
  };
  // Combines what the verifiers say about an answer. `verdict_of` gives the verdict of part i, and
  // is called at most once for each, in order, while the others allow a score.
  Score Combined(const std::string& data_source,
                 const std::function<absl::StatusOr<Verdict>(size_t part)>& verdict_of) const;
  Scorer() = default;

  std::vector<Part> parts_, shadows_;
  Combine combine_ = Combine::kSum;
  uint32_t generation_ = 0;
  std::map<std::string, std::string> versions_;
};

// The field `rew_tok` F64 [n, 2] of these credits: positions of tokens, ascending, and what each
// has earned. `ends` is the field `answer_ends` U32 [n, 2] of an answer of `text_bytes` bytes (see
// Field in common/v1/common.proto). A credit goes to the token that ends the text up to its end.
// DATA_LOSS: `ends` is not that of this text.
absl::StatusOr<std::vector<double>> TokenRewards(absl::Span<const Verdict::Credit> credits,
                                                 absl::string_view ends, size_t text_bytes);

// Parses the row that answers are scored by. Rows of prompts that came from outside were not
// checked by a reader of data files.
// INVALID_ARGUMENT: it is no JSON object, or nests too deeply.
absl::StatusOr<nlohmann::json> ParseRow(const std::string& text);

// The text of the last message of the assistant in `messages`, a JSON list of {role, content}.
// INVALID_ARGUMENT: there is none.
absl::StatusOr<std::string> LastAnswer(absl::string_view messages);

}  // namespace sluice
