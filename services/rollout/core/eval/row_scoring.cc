#include "services/rollout/core/eval/row_scoring.h"

#include <algorithm>
#include <iterator>
#include <optional>

#include "absl/algorithm/container.h"

namespace sluice {
namespace {

constexpr int kTries = 3;
constexpr absl::Duration kRestAfterFault = absl::Seconds(2);  // The second rest is longer.
constexpr absl::Duration kRestWhileBusy = absl::Seconds(1);
constexpr absl::Duration kLongestBusy = absl::Minutes(10);

enum class Outcome { kFinal, kBusy, kFailed };

Outcome OutcomeOf(const absl::StatusOr<EvalVerdict>& verdict) {
  if (verdict.ok() || absl::IsInvalidArgument(verdict.status())) return Outcome::kFinal;
  return absl::IsResourceExhausted(verdict.status()) ? Outcome::kBusy : Outcome::kFailed;
}

// What the verdicts of a row say about another try. A fault says more than that something is busy.
Outcome OutcomeOf(const RowScores& scores) {
  Outcome outcome = Outcome::kFinal;
  for (const absl::StatusOr<EvalVerdict>& verdict : scores.verdicts) {
    if (absl::IsCancelled(verdict.status())) return Outcome::kFinal;
    outcome = std::max(outcome, OutcomeOf(verdict));
  }
  return outcome;
}

bool IsOk(const absl::StatusOr<EvalVerdict>& verdict) { return verdict.ok(); }

// Asks again for the answers that have no final verdict.
void ScoreAgain(const EvalScorer& scorer, absl::Span<const EvalText> answers,
                const std::string& row_json, RowScores* scores) {
  std::vector<size_t> places;
  std::vector<EvalText> open;
  for (size_t i = 0; i < answers.size(); ++i) {
    if (OutcomeOf(scores->verdicts[i]) == Outcome::kFinal) continue;
    places.push_back(i);
    open.push_back(answers[i]);
  }
  const RowScores again = scorer(open, row_json);
  const bool scored = absl::c_any_of(again.verdicts, IsOk);
  if (scored && again.generation != scores->generation && absl::c_any_of(scores->verdicts, IsOk)) {
    *scores = scorer(answers, row_json);
    return;
  }
  if (scored) scores->generation = again.generation;
  for (size_t i = 0; i < places.size(); ++i) scores->verdicts[places[i]] = again.verdicts[i];
}

}  // namespace

RowScores ScoreWithRetries(const EvalScorer& scorer, absl::Span<const EvalText> answers,
                           const std::string& row_json, bool whole_rows,
                           const std::function<bool(absl::Duration)>& rest, Clock* clock) {
  int failures = 0;
  std::optional<absl::Duration> busy_since;
  RowScores scores = scorer(answers, row_json);
  while (true) {
    switch (OutcomeOf(scores)) {
      case Outcome::kFinal: return scores;
      case Outcome::kBusy: {
        const absl::Duration now = clock->Monotonic();
        if (!busy_since) busy_since = now;
        if (now - *busy_since >= kLongestBusy || !rest(kRestWhileBusy)) return scores;
        break;
      }
      case Outcome::kFailed:
        if (++failures == kTries || !rest(failures * failures * kRestAfterFault)) return scores;
        break;
    }
    if (whole_rows) scores = scorer(answers, row_json);
    else ScoreAgain(scorer, answers, row_json, &scores);
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
    RowScores scores = ScoreWithRetries(*scorer_, answers, row_json, whole_rows_,
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
