#include "services/queue/core/lineage.h"

#include <algorithm>

namespace sluice::queue {
namespace {
constexpr size_t kMost = 1000;

// Forgets the steps from `end` on.
void CutSteps(int64_t end, std::vector<std::pair<int64_t, int64_t>>& steps) {
  while (!steps.empty() && steps.back().first >= end) steps.pop_back();
  if (!steps.empty()) steps.back().second = std::min(steps.back().second, end - 1);
}

int64_t LastStepOf(const Lineage::Generation& generation) {
  return generation.steps.empty() ? -1 : generation.steps.back().second;
}
}  // namespace

void Lineage::NoteRewards(uint32_t generation, const std::map<std::string, std::string>& rewards) {
  if (rewards.empty()) return;
  // A worker can name any number of generations, so the one used longest ago makes way.
  if (!generations_.contains(generation) && generations_.size() >= kMost) {
    generations_.erase(std::min_element(
        generations_.begin(), generations_.end(),
        [](const auto& a, const auto& b) { return LastStepOf(a.second) < LastStepOf(b.second); }));
  }
  Generation& noted = generations_[generation];
  if (noted.rewards.empty()) noted.rewards = rewards;
}

void Lineage::NoteStep(int64_t step, const std::set<uint32_t>& generations) {
  for (auto& [unused, generation] : generations_) CutSteps(step, generation.steps);
  for (const uint32_t name : generations) {
    auto& steps = generations_[name].steps;
    if (!steps.empty() && steps.back().second == step - 1) steps.back().second = step;
    else steps.emplace_back(step, step);
  }
}

std::map<uint32_t, Lineage::Generation> Lineage::Until(int64_t steps) const {
  std::map<uint32_t, Generation> until = generations_;
  for (auto& [unused, generation] : until) CutSteps(steps, generation.steps);
  return until;
}

void Lineage::Reset(std::map<uint32_t, Generation> generations) {
  generations_ = std::move(generations);
}

}  // namespace sluice::queue
