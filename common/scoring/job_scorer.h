#pragma once

#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/scoring/scorer.h"

namespace sluice::job::v1 {
class Reward;
class RewardEntry;
}  // namespace sluice::job::v1

namespace sluice {

// The `args` of an entry as JSON, from which its verifier is made.
// INVALID_ARGUMENT: they contain a value that JSON has no form for.
absl::StatusOr<nlohmann::json> VerifierArgs(const job::v1::RewardEntry& entry);

// Makes the scorer for the `reward` block of a job that CheckJobSpec() and CheckOnDaemon()
// (common/config/check.h) accept. It does not notice what they refuse: an unknown `combine` counts
// as a sum. Errors as Scorer::Make().
absl::StatusOr<Scorer> MakeScorer(const job::v1::Reward& reward,
                                  const ScorerServices& services = {});

// The names of the judges that the entries ask.
std::set<std::string> JudgesOf(const job::v1::Reward& reward);

// The names of the servers that score for the entries, as plug-ins.
std::set<std::string> PluginServersOf(const job::v1::Reward& reward);

// Whether an entry runs programs of the policy.
bool RunsCode(const job::v1::Reward& reward);

// The entries that a plug-in scores.
std::vector<const job::v1::RewardEntry*> PluginsOf(const job::v1::Reward& reward);

// Those of them that are programs, which the job brings; servers are the operator's. What cannot be
// read counts as a program.
std::vector<const job::v1::RewardEntry*> PluginProgramsOf(const job::v1::Reward& reward);

// Whether an entry that counts scores whole groups. Then the reward's task is one of a group.
bool ScoresGroups(const job::v1::Reward& reward);

// Whether the rewards that count for this data source or dataset need more than their own process:
// a judge, a plug-in or a sandbox.
bool ScoresOutside(const job::v1::Reward& reward, absl::string_view source);

// How long a try of the reward's task may take: the entries that count, one after the other, each
// with all its calls, votes and tests, and the waits before them.
absl::Duration LongestTry(const job::v1::Reward& reward);

// Whether an entry says what single tokens have earned. Then rollouts must write the field
// answer_ends, and the field rew_tok comes with scores.
bool GivesTokenRewards(const job::v1::Reward& reward);

// The block without candidates (`shadow` of an entry), which have no influence on the reward.
job::v1::Reward WithoutShadows(const job::v1::Reward& reward);

// The pool of reward tasks that score by this block. Tasks of a pool never wait for those of
// another: cpu is for verifiers that compute, io for those that wait for a judge or a plug-in, and
// sandbox for those that run programs and wait for neither.
std::string TaskPoolOf(const job::v1::Reward& reward);

}  // namespace sluice
