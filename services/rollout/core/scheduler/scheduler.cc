#include "services/rollout/core/scheduler/scheduler.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/splitmix.h"
#include "common/base/status.h"

namespace sluice {

Scheduler::Scheduler(const Options& options) : options_(options) {
  SLUICE_CHECK_MSG(options.slots >= 1 && options.max_batch_tokens >= options.slots,
                   absl::StrCat("slots ", options.slots, ", max_batch_tokens ", options.max_batch_tokens));
  for (uint32_t slot = 0; slot < options.slots; ++slot) free_slots_.insert(slot);
}

absl::Status Scheduler::Add(const SchedulerRequest& request) {
  if (request.prompt == 0 || request.known < request.prompt) {
    return absl::InvalidArgumentError(
        absl::StrCat("request ", request.id, ": ", request.prompt, " prompt tokens, ", request.known, " known"));
  }
  auto [it, inserted] = live_.try_emplace(request.id);
  if (!inserted) return absl::AlreadyExistsError(absl::StrCat("request ", request.id, " is live"));
  Live& live = it->second;
  live.request = request;
  live.arrival = arrivals_++;
  live.since = step_;
  live.known = request.known;
  waiting_.emplace(KeyOf(live), request.id);
  by_age_.emplace(live.arrival, request.id);
  return absl::OkStatus();
}

void Scheduler::Remove(uint64_t id) {
  auto it = live_.find(id);
  if (it == live_.end()) return;
  Leave(it->second);
  live_.erase(it);
}

void Scheduler::Leave(Live& live) {
  if (live.slot < 0) {
    waiting_.erase(KeyOf(live));
    by_age_.erase(live.arrival);
    return;
  }
  running_.erase(KeyOf(live));
  free_slots_.insert(static_cast<uint32_t>(live.slot));
  held_tokens_ -= live.computed;
  if (auto group = groups_.find(live.request.group); group != groups_.end()) {
    std::erase(group->second, live.request.id);
    if (group->second.empty()) groups_.erase(group);
  }
}

void Scheduler::GiveSlots() {
  while (!waiting_.empty() && !free_slots_.empty()) {
    uint64_t id = waiting_.begin()->second;
    const uint64_t oldest = by_age_.begin()->second;
    if (step_ - live_.at(oldest).since >= options_.aging_steps) id = oldest;
    Live& live = live_.at(id);
    waiting_.erase(KeyOf(live));
    by_age_.erase(live.arrival);
    live.slot = *free_slots_.begin();
    free_slots_.erase(free_slots_.begin());
    running_.emplace(KeyOf(live), id);
    if (live.request.group != 0) groups_[live.request.group].push_back(id);
  }
}

// A sibling whose slot holds the prompt, computed under the weights of now.
const Scheduler::Live* Scheduler::PromptSource(const Live& live) const {
  const auto group = groups_.find(live.request.group);
  if (group == groups_.end()) return nullptr;
  for (uint64_t id : group->second) {
    const Live& sibling = live_.at(id);
    if (id != live.request.id && sibling.epoch == epoch_ && sibling.computed + 1 >= live.request.prompt && sibling.computed > 0) {
      return &sibling;
    }
  }
  return nullptr;
}

// An earlier sibling is at the prompt already, so this one waits for it.
bool Scheduler::SiblingPrefills(const Live& live) const {
  const auto group = groups_.find(live.request.group);
  if (group == groups_.end()) return false;
  for (uint64_t id : group->second) {
    if (id == live.request.id) return false;  // Members before this one in the list lead.
    const Live& sibling = live_.at(id);
    if (sibling.computed == 0 || (sibling.epoch == epoch_ && sibling.computed + 1 < live.request.prompt)) return true;
  }
  return false;
}

void Scheduler::AddRow(const Live& live, uint32_t count) {
  plan_.rows.push_back({.request = live.request.id,
                        .slot = static_cast<uint32_t>(live.slot),
                        .first = live.computed,
                        .count = count,
                        .sample = live.computed + count == live.known});
  plan_.tokens += count;
}

void Scheduler::PlanPrefill(Live& live) {
  const uint32_t room = options_.max_batch_tokens - plan_.tokens;
  if (live.computed == 0 && live.request.prompt > 1) {
    if (const Live* source = PromptSource(live)) {
      const uint32_t count = live.request.prompt - 1;
      plan_.copies.push_back({static_cast<uint32_t>(source->slot), static_cast<uint32_t>(live.slot), count});
      live.computed = count;
      live.epoch = epoch_;
      held_tokens_ += count;
    } else if (SiblingPrefills(live)) {
      return;
    }
  }
  if (live.computed == 0) live.epoch = epoch_;
  AddRow(live, std::min(room, live.known - live.computed));
}

const SchedulerPlan& Scheduler::Plan() {
  plan_.copies.clear();
  plan_.rows.clear();
  plan_.tokens = 0;
  GiveSlots();
  // Decodes: one token each. There are at most `slots` of them, so they fit.
  for (const auto& [key, id] : running_) {
    const Live& live = live_.at(id);
    if (live.known - live.computed == 1 && live.computed > 0) AddRow(live, 1);
  }
  for (const auto& [key, id] : running_) {
    Live& live = live_.at(id);
    if (plan_.tokens == options_.max_batch_tokens) break;
    if (live.known - live.computed > 1 || live.computed == 0) PlanPrefill(live);
  }
  const auto fold = [this](uint64_t x) { digest_ = Mix64(digest_ + kGolden + x); };
  for (const SchedulerPlan::Copy& copy : plan_.copies) fold((uint64_t{copy.from} << 40) ^ (uint64_t{copy.to} << 20) ^ copy.count);
  for (const SchedulerPlan::Row& row : plan_.rows) {
    fold(row.request);
    fold((uint64_t{row.slot} << 40) ^ (uint64_t{row.first} << 8) ^ (uint64_t{row.count} << 1) ^ row.sample);
  }
  return plan_;
}

void Scheduler::Advance(const std::vector<uint64_t>& ended) {
  for (const SchedulerPlan::Row& row : plan_.rows) {
    auto it = live_.find(row.request);
    if (it == live_.end()) continue;
    it->second.computed = row.first + row.count;
    held_tokens_ += row.count;
    if (row.sample) ++it->second.known;
  }
  plan_.rows.clear();
  plan_.copies.clear();
  for (uint64_t id : ended) Remove(id);
  ++step_;
}

void Scheduler::Switched(bool recompute) {
  ++epoch_;
  if (!recompute) return;
  for (auto& [id, live] : live_) {
    if (live.slot < 0) continue;
    held_tokens_ -= live.computed;
    live.computed = 0;
  }
}

}  // namespace sluice
