#pragma once

#include <vector>

#include "absl/strings/string_view.h"
#include "common/verifiers/verifier.h"

namespace sluice {

// Of an answer that a judge grades step by step: the most steps, and the votes by default.
inline constexpr size_t kMaxSteps = 64;
inline constexpr int kPrmVotes = 3;

// A language model scores the answer. The operator's judges.yaml says where it is; a job only names
// it.
//
//   judge     name of the judge; needed
//   template  reference: does the answer agree with the row's `answer`? The score is 0 or 1.
//             rubric: how well does it meet `rubric`? The score is from `low` to `high`.
//             prm: how good is each of its steps, which are its paragraphs? (process reward) Each
//             step has a score from `low` to `high`; the score is their mean. A step has earned its
//             own share of it (Verdict::credits), so that more steps alone earn no more.
//   rubric    text, at most 16 KiB; needed by rubric, and allowed with prm
//   low, high (0, 10)  scores of rubric and prm are brought from this range to [0, 1]
//   votes     1..9 (1; prm: 3)  replies that are asked for; more than half must have a score
//   combine   mean | majority (mean)  of the votes, step by step; majority is their median
//
// Paragraphs are parted by blank lines. An answer has at most kMaxSteps steps: what follows belongs
// to the last one. An answer without a paragraph has the score 0, and no judge is asked.
//
// The policy's text may try to speak to the judge. It is cut to 32 KiB (head and tail), what may be
// a special token in it is broken up, and it is fenced by a random word that its author cannot
// know. Only the judge's reply is parsed, never the policy's text. A reply without one clear score
// is asked for once more.
//
// Score() is not pure: it asks the judge, and each call may wait for the context's timeout and take
// as long again. Its errors:
// INVALID_ARGUMENT: the row has no `prompt`, or no gold for reference.
// FAILED_PRECONDITION: this process has no judges.
// UNAVAILABLE, OUT_OF_RANGE: the judge fails, cannot judge this text, or gives no clear score.
// RESOURCE_EXHAUSTED: the judge is busy, or its budget is spent. CANCELLED: the work ends.
absl::StatusOr<std::unique_ptr<Verifier>> MakeJudge(const nlohmann::json& args,
                                                    const VerifierContext& context);

// The paragraphs of a text, at most kMaxSteps, without the white space around them.
std::vector<absl::string_view> StepsOf(absl::string_view text);

// The scores that a judge's reply states for `steps` steps: the numbers of the list `scores` of its
// JSON object. Otherwise as ParseJudgement().
absl::StatusOr<std::vector<double>> ParseStepJudgement(absl::string_view reply, size_t steps,
                                                       double low, double high);

// The score that a judge's reply states: the number `score` of its JSON object. What it thought
// before that does not count, nor do objects within others.
// INVALID_ARGUMENT: there is none, there are several that differ, or it is outside of [low, high].
absl::StatusOr<double> ParseJudgement(absl::string_view reply, double low, double high);

}  // namespace sluice
