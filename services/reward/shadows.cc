#include "services/reward/shadows.h"

#include <utility>

#include "common/base/clock.h"

namespace sluice::reward {
namespace {

Shadows::Result EmptyResult(const Scorer& scorer, const RewardRule& candidate) {
  return {
      .of = candidate.shadow,
      .versions = {scorer.versions().at(candidate.name), scorer.versions().at(candidate.shadow)},
      .since = Clock::Real()->Now()};
}

}  // namespace

Shadows::Shadows(Metrics metrics) : metrics_(std::move(metrics)), thread_([this] { Run(); }) {}

Shadows::~Shadows() { Stop(); }

void Shadows::Stop() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    waiting_.clear();
  }
  changed_.NotifyAll();
  if (thread_.joinable()) thread_.join();
}

Shadows::Results Shadows::Use(const Scorer& scorer) {
  Results ended;
  MutexLock lock(&mu_);
  for (const RewardRule* const rule : scorer.shadows()) {
    Result fresh = EmptyResult(scorer, *rule);
    const auto [it, added] = results_.try_emplace(rule->name, fresh);
    if (added || it->second.versions == fresh.versions) continue;
    ended[rule->name] = std::exchange(it->second, std::move(fresh));
  }
  return ended;
}

Shadows::Result* Shadows::FindResult(const Scorer& scorer, const RewardRule& candidate) {
  Result fresh = EmptyResult(scorer, candidate);
  const auto it = results_.try_emplace(candidate.name, fresh).first;
  return it->second.versions == fresh.versions ? &it->second : nullptr;
}

void Shadows::Add(std::shared_ptr<const Scorer> scorer, ScoredAnswers scored) {
  const size_t bytes = scored.bytes();
  MutexLock lock(&mu_);
  if (stopping_) return;
  if (waiting_.size() < kMostWaiting && waiting_bytes_ + bytes <= kMostBytes) {
    waiting_.push_back({std::move(scorer), std::move(scored), bytes});
    waiting_bytes_ += bytes;
    changed_.NotifyAll();
    return;
  }
  for (const RewardRule* const rule : scorer->shadows()) {
    if (Result* const result = FindResult(*scorer, *rule)) result->skipped += scored.answers.size();
    metrics_.Shadow(rule->name, "skipped").Add(static_cast<double>(scored.answers.size()));
  }
}

Shadows::Results Shadows::results() const {
  MutexLock lock(&mu_);
  return results_;
}

void Shadows::Run() {
  MutexLock lock(&mu_);
  while (!stopping_) {
    if (waiting_.empty()) {
      changed_.Wait(&mu_);
      continue;
    }
    const Item item = std::move(waiting_.front());
    waiting_.pop_front();
    waiting_bytes_ -= item.bytes;
    mu_.Unlock();
    Compare(item);
    mu_.Lock();
  }
}

void Shadows::Compare(const Item& item) {
  for (const RewardRule* const rule : item.scorer->shadows()) {
    {
      MutexLock lock(&mu_);
      if (FindResult(*item.scorer, *rule) == nullptr) continue;
    }
    Comparison one;
    one.Add(item.scored, rule->shadow, *item.scorer, rule->name);
    for (const auto& [outcome, count] : {std::pair("equal", one.equal),
                                         {"higher", one.higher},
                                         {"lower", one.lower},
                                         {"unscorable", one.unscorable}})
      metrics_.Shadow(rule->name, outcome).Add(static_cast<double>(count));
    metrics_.ShadowDistance(rule->name).Add(one.distance);
    // Most candidates give no rewards of steps, and need no series of them.
    if (one.stepped() > 0) {
      for (const auto& [outcome, count] : {std::pair("same", one.same_steps),
                                           {"other_values", one.other_values},
                                           {"other_places", one.other_places}})
        metrics_.ShadowSteps(rule->name, outcome).Add(static_cast<double>(count));
      metrics_.ShadowStepDistance(rule->name).Add(one.step_distance);
    }

    MutexLock lock(&mu_);
    if (Result* const result = FindResult(*item.scorer, *rule)) result->comparison += one;
  }
}

}  // namespace sluice::reward
