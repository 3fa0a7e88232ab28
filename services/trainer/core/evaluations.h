#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/rl/version.h"

namespace sluice::trainer {

// The result of the evaluation of one version.
struct Evaluation {
  PolicyVersion version;
  // Fingerprint of its weights, in hex. A version of the same number on another branch of the run
  // has another one.
  std::string state;
  // Mean over the datasets of their mean reward or loss (see Better).
  double score = 0;
  std::map<std::string, double> values;  // Named as in a step report: `eval/heldout/reward`, ..
  // k of the step report that carried the values; -1 if none has yet.
  int64_t reported = -1;

  bool operator==(const Evaluation&) const = default;
};

// Which of two scores is the better one. Rewards are kHigher, losses kLower.
enum class Better { kHigher, kLower };

// Summary of the evaluations of a run; the fields are those of job.v1.EvalSummary.
struct EvalTotals {
  int64_t versions = 0;
  double first = 0, last = 0, best = 0;
  int64_t best_version = 0;
  std::string best_checkpoint;
};

// Names of symbolic links in the folder of a job's checkpoints. A checkpoint to which a link points
// is never removed.
inline constexpr char kBestLink[] = "best";  // To the checkpoint with the best score.
// To the checkpoint whose version is being evaluated now.
inline constexpr char kEvaluatingLink[] = "evaluating";

// The evaluations of one job. They are kept in the folder of its checkpoints, in the file
// `evaluations.jsonl`, one line for each, and as the link `best`. When Add() has returned, its
// evaluation is on disk; after a crash the file is either the old or the new one.
//
// A run that goes back to a checkpoint may have evaluated later versions before. They stay in the
// file, but do not count in the totals until the run reaches them again.
//
// Not thread-safe. Only one process writes.
class EvaluationLog {
 public:
  // `dir` is the folder of the checkpoints, which must exist.
  explicit EvaluationLog(std::string dir, Better better = Better::kHigher)
      : dir_(std::move(dir)), better_(better) {}

  // Reads what earlier incarnations left. The run goes on from version `version`: evaluations of
  // later versions do not count until these are reached again. DATA_LOSS: a line cannot be read;
  // the message names it, and the log is then empty.
  absl::Status Load(int64_t version);

  // The evaluation of version `number`, perhaps of another branch. Null if there is none.
  const Evaluation* Find(int64_t number) const;
  // The newest evaluation that counts. Null if none does.
  const Evaluation* Last() const;

  // Adds an evaluation, or replaces that of the same version; it counts from now on. Moves the link
  // `best` if it is the best.
  absl::Status Add(Evaluation evaluation);
  // Notes that step report k carried the values of version `number`.
  absl::Status SetReported(int64_t number, int64_t k);

  const EvalTotals& totals() const { return totals_; }

 private:
  absl::Status Write() const;
  // Computes the totals and sets the link `best`.
  absl::Status Recount();

  bool IsBetter(double score, double than) const {
    return better_ == Better::kHigher ? score > than : score < than;
  }

  const std::string dir_;
  const Better better_;
  std::map<int64_t, Evaluation> all_;  // By version.
  // The newest version that the run has reached, as far as the log knows. Evaluations up to it
  // count.
  int64_t reached_ = 0;
  EvalTotals totals_;
};

// Points the link `name` in `dir` to the checkpoint of version `number`, which need not exist yet.
// The old link is replaced atomically.
absl::Status LinkCheckpoint(const std::string& dir, absl::string_view name, int64_t number);
absl::Status RemoveLink(const std::string& dir, absl::string_view name);
// The version to whose checkpoint the link points. Nullopt if there is no such link.
std::optional<int64_t> LinkedVersion(const std::string& dir, absl::string_view name);
// Names of the checkpoints to which the links `best` and `evaluating` in `dir` point.
std::set<std::string> LinkedCheckpoints(const std::string& dir);

}  // namespace sluice::trainer
