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

// What an evaluation of one version came to.
struct Evaluation {
  PolicyVersion version;
  // Fingerprint of its weights, hex: the same version of another branch has another one.
  std::string state;
  double score = 0;  // Mean over the datasets of their mean reward; higher is better.
  std::map<std::string, double> values;  // As a step report names them: `eval/heldout/reward`, ..
  // k of the step report that carried the values; -1: none yet.
  int64_t reported = -1;

  bool operator==(const Evaluation&) const = default;
};

// What the evaluations of a run came to; mirrors job.v1.EvalSummary.
struct EvalTotals {
  int64_t versions = 0;
  double first = 0, last = 0, best = 0;
  int64_t best_version = 0;
  std::string best_checkpoint;
};

// Names of links in the folder of a job's checkpoints. A checkpoint that a link names is never
// pruned.
inline constexpr char kBestLink[] = "best";  // To the best one by evaluation.
// To the one whose version is being evaluated.
inline constexpr char kEvaluatingLink[] = "evaluating";

// The evaluations of one job, in the folder of its checkpoints: file `evaluations.jsonl`, one line
// for each, and link `best`. What Add() has returned from is on disk; a crash leaves the file of
// before or of after.
//
// Not thread-safe; one process writes.
class EvaluationLog {
 public:
  // `dir`: the folder, which exists.
  explicit EvaluationLog(std::string dir) : dir_(std::move(dir)) {}

  // Reads what an earlier incarnation left, which went on to version `version`: later ones may be
  // reached again, and count from then on. DATA_LOSS: names file, line and what is wrong; the log
  // is empty then.
  absl::Status Load(int64_t version);

  // That of version `number`, perhaps of another branch's. Null: there is none.
  const Evaluation* Find(int64_t number) const;
  // The newest that counts. Null: none does.
  const Evaluation* Last() const;

  // Adds one, or replaces that of the same version; it counts from now on. Moves the link `best` if
  // it is the best.
  absl::Status Add(Evaluation evaluation);
  // Step report k carried the values of version `number`.
  absl::Status SetReported(int64_t number, int64_t k);

  const EvalTotals& totals() const { return totals_; }

 private:
  absl::Status Write() const;
  absl::Status Recount();

  const std::string dir_;
  std::map<int64_t, Evaluation> all_;  // By version.
  // The newest version that the run has reached, as far as the log knows: evaluations up to it
  // count.
  int64_t reached_ = 0;
  EvalTotals totals_;
};

// Points the link `name` in `dir` at the checkpoint of version `number`, which need not be there
// yet. Atomic.
absl::Status LinkCheckpoint(const std::string& dir, absl::string_view name, int64_t number);
absl::Status RemoveLink(const std::string& dir, absl::string_view name);
// The version that the link names. Nullopt: there is no such link.
std::optional<int64_t> LinkedVersion(const std::string& dir, absl::string_view name);
// Names of all checkpoints that links in `dir` point at.
std::set<std::string> LinkedCheckpoints(const std::string& dir);

}  // namespace sluice::trainer
