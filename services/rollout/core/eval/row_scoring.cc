#include "services/rollout/core/eval/row_scoring.h"

#include <algorithm>
#include <iterator>

#include "common/base/clock.h"

namespace sluice {
namespace {

constexpr int kTries = 3;
constexpr absl::Duration kRestAfterFault = absl::Seconds(2);  // The second rest is longer.
constexpr absl::Duration kRestWhileBusy = absl::Seconds(1);
constexpr absl::Duration kLongestBusy = absl::Minutes(10);

enum class Outcome { kFinal, kBusy, kFailed };

// What the verdicts of a row say about another try. A fault says more than that something is busy.
Outcome OutcomeOf(const RowScores& scores) {
  Outcome outcome = Outcome::kFinal;
  for (const absl::StatusOr<EvalVerdict>& verdict : scores.verdicts) {
    if (verdict.ok() || absl::IsInvalidArgument(verdict.status())) continue;
    if (absl::IsCancelled(verdict.status())) return Outcome::kFinal;
    const bool busy = absl::IsResourceExhausted(verdict.status());
    outcome = std::max(outcome, busy ? Outcome::kBusy : Outcome::kFailed);
  }
  return outcome;
}

}  // namespace

RowScores ScoreWithRetries(const EvalScorer& scorer, absl::Span<const EvalText> answers,
                           const std::string& row_json,
                           const std::function<bool(absl::Duration)>& rest) {
  int failures = 0;
  absl::Duration busy = absl::ZeroDuration();
  while (true) {
    RowScores scores = scorer(answers, row_json);
    switch (OutcomeOf(scores)) {
      case Outcome::kFinal: return scores;
      case Outcome::kBusy:
        busy += kRestWhileBusy;
        if (busy > kLongestBusy || !rest(kRestWhileBusy)) return scores;
        break;
      case Outcome::kFailed:
        if (++failures == kTries || !rest(failures * failures * kRestAfterFault)) return scores;
        break;
    }
  }
}

RowScoring::~RowScoring() {
  {
    MutexLock lock(&mu_);
    ending_ = true;
    changed_.NotifyAll();
  }
  threads_.Stop();
}

void RowScoring::Score(std::vector<EvalText> answers, std::string row_json, Take take) {
  ++waiting_;
  if (threads_count_ == 0) {
    RowScores scores = (*scorer_)(answers, row_json);
    MutexLock lock(&mu_);
    scored_.emplace_back(std::move(take), std::move(scores));
    return;
  }
  threads_.Run([this, answers = std::move(answers), row_json = std::move(row_json),
                take = std::move(take)]() mutable {
    RowScores scores = ScoreWithRetries(*scorer_, answers, row_json,
                                        [this](absl::Duration duration) { return Rest(duration); });
    MutexLock lock(&mu_);
    scored_.emplace_back(std::move(take), std::move(scores));
    changed_.NotifyAll();
  });
}

void RowScoring::Collect() {
  std::deque<std::pair<Take, RowScores>> scored;
  {
    MutexLock lock(&mu_);
    scored.swap(scored_);
  }
  waiting_ -= scored.size();
  for (auto& [take, scores] : scored) take(std::move(scores));
}

void RowScoring::Await(absl::Duration timeout) {
  MutexLock lock(&mu_);
  if (scored_.empty()) changed_.WaitFor(&mu_, timeout);
}

bool RowScoring::Rest(absl::Duration duration) {
  const absl::Duration until = Clock::Real()->Monotonic() + duration;
  MutexLock lock(&mu_);
  while (!ending_) {
    const absl::Duration left = until - Clock::Real()->Monotonic();
    if (left <= absl::ZeroDuration()) return true;
    changed_.WaitFor(&mu_, left);
  }
  return false;
}

}  // namespace sluice
