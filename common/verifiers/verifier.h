#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/sandbox/code.h"
#include "common/verifiers/plugin_result.h"
#include "nlohmann/json_fwd.hpp"

namespace sluice {

// An answer to score: the policy's text for one row.
struct Answer {
  std::string text;              // Everything that the policy wrote in its last turn.
  bool truncated = false;        // The text was ended by a limit, without an end token.
  std::string data_source = "";  // Name of the row's source.
};

// The result of scoring. Everything that the policy is responsible for (a wrong, unreadable or
// endless answer) is a verdict, mostly with score 0, and not an error.
struct Verdict {
  // A part of the score that the answer has earned by what it says up to the byte `end`.
  struct Credit {
    size_t end = 0;
    double value = 0;
  };
  double score = 0;
  std::string reason;  // One word, such as right, wrong, no_answer, unfinished.
  // By ascending end; they add up to the score. Empty unless Verifier::gives_credits().
  std::vector<Credit> credits = {};

  // Only user code gives others than kScore.
  enum class Kind {
    kScore,
    kAbsent,      // The reward does not apply to the answer.
    kUnscorable,  // It should have a score, but the code failed; `reason` says how.
  };
  Kind kind = Kind::kScore;
  std::string status = "";  // With kUnscorable: the status of the score, one word.
};

// Scores answers by a rule. The verdict depends only on the arguments of Score(), except that of a
// judge, which is asked, and that of a plug-in, which is user code.
//
// Immutable, so thread-safe.
class Verifier {
 public:
  virtual ~Verifier() = default;

  // Scores an answer to `row`, which holds the mapped fields, with the gold (the reference answer)
  // in `answer`. INVALID_ARGUMENT: the row lacks something that the verifier needs, or its gold
  // cannot be read. This is a fault of the data and says nothing about the policy. Other errors, of
  // verifiers that need another service, are faults of that service; a later try may succeed.
  virtual absl::StatusOr<Verdict> Score(const Answer& answer, const nlohmann::json& row) const = 0;

  // Scores the answers of a group, which are all to `row`: one result for each. Those of most
  // verifiers do not depend on each other.
  virtual std::vector<absl::StatusOr<Verdict>> ScoreGroup(absl::Span<const Answer> answers,
                                                          const nlohmann::json& row) const;

  // Checks whether answers to `row` can be scored at all. INVALID_ARGUMENT: Score() would refuse
  // the row for every answer. The checks of a job's data find such rows by this call, which needs
  // no answer of the policy.
  virtual absl::Status CheckRow(const nlohmann::json& row) const = 0;

  // Every score is in [low, high].
  virtual double low() const { return 0; }
  virtual double high() const { return 1; }
  // Whether verdicts say which part of the answer has earned what.
  virtual bool gives_credits() const { return false; }
};

// Sends two messages, of the system and of a user, to the judge of this name, and returns the text
// of its reply. Blocks at most `timeout`. Errors as JudgeClient::Ask() (common/judges).
using AskJudge =
    std::function<absl::StatusOr<std::string>(const std::string& judge, const std::string& system,
                                              const std::string& user, absl::Duration timeout)>;

// What a verifier may use beside its arguments.
struct VerifierContext {
  AskJudge ask_judge;    // Null: this process has no judges.
  RunPlugin run_plugin;  // Null: this process runs no plug-ins.
  RunCode run_code;      // Null: this process has no sandboxes.
  // Most time of one Score() of a verifier that asks others.
  absl::Duration timeout = absl::Seconds(10);
};

struct VerifierRow {
  absl::string_view name;
  absl::string_view doc;  // One line.
  // `args` is an object. INVALID_ARGUMENT: an argument is unknown or has a wrong value; the message
  // names it.
  absl::StatusOr<std::unique_ptr<Verifier>> (*make)(const nlohmann::json& args,
                                                    const VerifierContext& context);
};

// Verifiers() returns all verifiers of this build. MakeVerifier() returns INVALID_ARGUMENT if there
// is none of this name (the message lists them), or for wrong args.
const std::vector<VerifierRow>& Verifiers();
absl::StatusOr<std::unique_ptr<Verifier>> MakeVerifier(absl::string_view name,
                                                       const nlohmann::json& args,
                                                       const VerifierContext& context = {});

// Sets *answer to the part of `text` that counts: what follows the last </think>, or all if there
// is none. Returns false if a <think> was not closed.
bool AfterThinking(absl::string_view text, absl::string_view* answer);

}  // namespace sluice
