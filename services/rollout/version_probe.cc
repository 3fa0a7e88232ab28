#include "services/rollout/version_probe.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "common/base/status.h"
#include "services/rollout/core/engine/scoring.h"
#include "services/rollout/streamer.h"

namespace sluice::rollout {

void VersionProbe::OnSealed(const Member& member) {
  const std::vector<float>& logprobs = member.trajectory.logprobs();
  if (logprobs.empty() || logprobs.size() != member.trajectory.tokens().size()) return;
  Answer answer{.tokens = member.prompt->tokens,
                .prompt = member.prompt->tokens.size(),
                .logprobs = logprobs,
                .temperature = member.temperature};
  answer.tokens.insert(answer.tokens.end(), member.trajectory.tokens().begin(),
                       member.trajectory.tokens().end());
  if (answer.tokens.size() > kMostTokens) return;
  answer.incarnation = std::numeric_limits<int64_t>::max();
  for (const PolicyVersion& version : member.trajectory.versions())
    answer.incarnation = std::min(answer.incarnation, version.incarnation);

  MutexLock lock(&mu_);
  tokens_ += answer.tokens.size();
  answers_.push_back(std::move(answer));
  while (answers_.size() > kMostAnswers || tokens_ > kMostTokens) {
    tokens_ -= answers_.front().tokens.size();
    answers_.pop_front();
  }
}

void VersionProbe::StartVersion(PolicyVersion version, bool on_trial) {
  std::vector<Request> requests;
  {
    MutexLock lock(&mu_);
    version_ = version;
    std::erase_if(answers_, [&](const Answer& answer) {
      if (answer.incarnation >= version.incarnation) return false;
      tokens_ -= answer.tokens.size();
      return true;
    });
    rows_ = bad_rows_ = 0;
    gaps_ = 0;
    first_ = next_;
    if (!on_trial) return;
    for (const Answer& answer : answers_) {
      Request& request =
          requests.emplace_back(MakeScoringRequest(answer.tokens, answer.temperature));
      request.id = next_++;
      pending_.emplace(request.id, answer);
    }
  }
  for (Request& request : requests) add_(std::move(request));
}

void VersionProbe::TakeEvents(StepEvents* step) {
  std::erase_if(step->tokens, [this](const TokenEvent& event) {
    if (OwnerOf(event.request) != RequestOwner::kProbe) return false;
    Compare(event);
    return true;
  });
  std::erase_if(step->failures, [this](const RequestFailure& failure) {
    if (OwnerOf(failure.request) != RequestOwner::kProbe) return false;
    CountFailure(failure);
    return true;
  });
}

VersionProbe::Answer VersionProbe::Remove(uint64_t request) {
  const auto found = pending_.find(request);
  SLUICE_CHECK(found != pending_.end());  // The engine gives each request one event.
  Answer answer = std::move(found->second);
  pending_.erase(found);
  return answer;
}

void VersionProbe::CountFailure(const RequestFailure& failure) {
  MutexLock lock(&mu_);
  (void)Remove(failure.request);
  // Other failures, such as those of an engine that stops, say nothing about the version.
  const bool is_bad = failure.request >= first_ && ReasonOf(failure.status) == "NONFINITE";
  if (is_bad) ++rows_, ++bad_rows_;
}

void VersionProbe::Compare(const TokenEvent& event) {
  MutexLock lock(&mu_);
  const Answer answer = Remove(event.request);
  // Another version was loaded before the request ran.
  if (event.version != version_) return;

  // The scores begin with the prompt's second token; those of the answer begin at `first`.
  const std::vector<float> scores = ReadScores(event);
  const size_t first = answer.prompt - 1;
  for (size_t i = 0; i < answer.logprobs.size(); ++i) {
    const double gap =
        std::abs(static_cast<double>(answer.logprobs[i]) - static_cast<double>(scores[first + i]));
    ++rows_;
    if (std::isfinite(gap)) gaps_ += gap;
    else ++bad_rows_;
  }
}

VersionHealth VersionProbe::health() const {
  MutexLock lock(&mu_);
  const uint64_t finite = rows_ - bad_rows_;
  bool probed = true;
  for (const auto& [request, unused] : pending_) probed &= request < first_;
  return {.rows = rows_,
          .bad_rows = bad_rows_,
          .gap_tokens = finite,
          .gap = finite == 0 ? 0 : gaps_ / static_cast<double>(finite),
          .probed = probed};
}

}  // namespace sluice::rollout
