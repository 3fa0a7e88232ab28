#include "services/reward/shadows.h"

#include <utility>

namespace sluice::reward {

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

void Shadows::Add(std::shared_ptr<const Scorer> scorer, ScoredAnswers scored) {
  MutexLock lock(&mu_);
  if (stopping_) return;
  if (waiting_.size() < kMostWaiting) {
    waiting_.push_back({std::move(scorer), std::move(scored)});
    changed_.NotifyAll();
    return;
  }
  for (const RewardRule* const rule : scorer->shadows()) {
    Result& result = results_[rule->name];
    result.of = rule->shadow;
    result.skipped += scored.answers.size();
    metrics_.Shadow(rule->name, "skipped").Add(static_cast<double>(scored.answers.size()));
  }
}

std::map<std::string, Shadows::Result> Shadows::results() const {
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
    mu_.Unlock();
    Compare(item);
    mu_.Lock();
  }
}

void Shadows::Compare(const Item& item) {
  for (const RewardRule* const rule : item.scorer->shadows()) {
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
    Result& result = results_[rule->name];
    result.of = rule->shadow;
    result.comparison += one;
  }
}

}  // namespace sluice::reward
