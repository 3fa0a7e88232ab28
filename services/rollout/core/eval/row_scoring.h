#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/work_threads.h"

namespace sluice {

struct EvalVerdict {
  double score = 0;
  bool passes = false;  // Counts for pass@k.
};

// The text of one answer.
struct EvalText {
  std::string text;
  bool truncated = false;  // The answer ended because it had max_tokens.
};

// The scores of the answers to one row.
struct RowScores {
  uint32_t generation = 0;  // Of the rewards that scored (Scorer::generation()).
  // One for each answer.
  // INVALID_ARGUMENT: there is no score, and there will be none.
  // RESOURCE_EXHAUSTED: what scores is busy; a later try may give a score.
  // CANCELLED: the evaluation ends.
  // Others: what scores has failed; a later try may give a score.
  std::vector<absl::StatusOr<EvalVerdict>> verdicts;
};

// Scores the answers to one row, which is given as JSON. May block if it runs on threads.
using EvalScorer =
    std::function<RowScores(absl::Span<const EvalText> answers, const std::string& row_json)>;

// Scores a row, and again those answers for which what scores has failed or is busy: after a
// failure at most twice, and while it is busy for ten minutes at most. What has no score then stays
// without one. All scores are of one generation: if a later try has another one, it scores the
// whole row. With `whole_rows` each try does, for rewards that compare the answers of a row.
// `rest` waits for a time, and returns false if the evaluation ends meanwhile.
RowScores ScoreWithRetries(const EvalScorer& scorer, absl::Span<const EvalText> answers,
                           const std::string& row_json, bool whole_rows,
                           const std::function<bool(absl::Duration)>& rest,
                           Clock* clock = Clock::Real());

// Scores the rows of an evaluation beside the sampling. Used by one thread, which gets the scores
// by Collect(). Owns up to `threads` threads, on which the scorer runs; with 0, it runs in Score(),
// and is called once for each row.
class RowScoring {
 public:
  using Take = std::function<void(RowScores scores)>;

  // `scorer` outlives this object. `whole_rows` as in ScoreWithRetries().
  RowScoring(uint32_t threads, const EvalScorer* scorer, bool whole_rows = false)
      : threads_count_(threads), scorer_(scorer), whole_rows_(whole_rows), threads_(threads) {}
  // Rows that are not scored yet are given up. The destructor waits for calls of the scorer, which
  // its owner must have ended.
  ~RowScoring();

  // `take` is called later, by Collect().
  void Score(std::vector<EvalText> answers, std::string row_json, Take take);
  // Passes on the scores of the rows that have been scored since the last call.
  void Collect() ABSL_LOCKS_EXCLUDED(mu_);
  // Waits until Collect() has something to pass on, at most `timeout`.
  void Await(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mu_);
  // Rows that Collect() has not passed on yet.
  size_t waiting() const { return waiting_; }

 private:
  bool Rest(absl::Duration duration) ABSL_LOCKS_EXCLUDED(mu_);

  const uint32_t threads_count_;
  const EvalScorer* const scorer_;
  const bool whole_rows_;
  size_t waiting_ = 0;

  Mutex mu_;
  CondVar changed_;
  bool ending_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<std::pair<Take, RowScores>> scored_ ABSL_GUARDED_BY(mu_);
  WorkThreads threads_;  // The last member, as its threads use the others.
};

}  // namespace sluice
