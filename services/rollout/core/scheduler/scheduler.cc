#include "services/rollout/core/scheduler/scheduler.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/splitmix.h"
#include "common/base/status.h"

namespace sluice {
namespace {

// Additive increase, multiplicative decrease of how many may run, by the share of the pool in use.
constexpr uint64_t kRaiseBelow = 70, kTrimFrom = 80, kRefuseFrom = 90;  // Percent.
constexpr uint32_t kRaise = 4;                                          // At once.
constexpr uint64_t kTrimPause = 32;  // Steps between two trims: those that run must end first.

}  // namespace

Scheduler::Scheduler(const Options& options)
    : options_(options), blocks_(options.blocks, options.salt), limit_(options.max_running) {
  SLUICE_CHECK_MSG(options.blocks >= 1 && limit_ >= 1 && options.max_batch_tokens >= limit_,
                   absl::StrCat("blocks ", options.blocks, ", max_batch_tokens ",
                                options.max_batch_tokens, " for ", limit_, " at once"));
}

// Requests come, wait, run and leave. -------------------------------------------------------------

absl::Status Scheduler::Add(SchedulerRequest request) {
  const size_t known = request.tokens.size();
  if (request.prompt == 0 || known < request.prompt || request.end <= known) {
    return absl::InvalidArgumentError(absl::StrCat("request ", request.id, ": ", request.prompt,
                                                   " prompt tokens, ", known, " known, end at ",
                                                   request.end));
  }
  // The last token is never computed.
  if (BlocksFor(request.end - 1) > blocks_.blocks()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "request ", request.id, ": ", request.end, " tokens need ", BlocksFor(request.end - 1),
        " blocks of ", kBlockTokens, "; the KV cache has ", blocks_.blocks()));
  }
  const auto group_of = groups_.find(request.group);
  if (group_of != groups_.end() &&
      group_of->second->members.front()->request.root != request.root) {
    return absl::InvalidArgumentError(absl::StrCat("request ", request.id, ": its group ",
                                                   request.group, " has another adapter"));
  }
  auto [it, inserted] = live_.try_emplace(request.id);
  if (!inserted) return absl::AlreadyExistsError(absl::StrCat("request ", request.id, " is live"));
  it->second = std::make_unique<Live>();
  Live* live = it->second.get();
  live->request = std::move(request);
  live->request.tokens.reserve(std::min<size_t>(live->request.end, known + 256));
  live->table.root = live->table.chain = live->request.root;
  live->table.blocks.reserve(BlocksFor(live->request.end));
  live->arrival = arrivals_++;
  live->since = step_;
  if (live->request.group != 0) {
    std::unique_ptr<Group>& group = groups_[live->request.group];
    if (group == nullptr) group = std::make_unique<Group>();
    group->members.push_back(live);
    live->group = group.get();
  }
  Wait(live);
  return absl::OkStatus();
}

Scheduler::Key Scheduler::KeyOf(const Live& live) const {
  if (!live.key.not_aged) return {.not_aged = false, .arrival = live.arrival};
  const uint32_t longest = live.group != nullptr ? live.group->longest : 0;
  const uint32_t predicted =
      std::min(longest > 0 ? longest : lengths_.p90(), live.request.end - live.request.prompt);
  const int64_t left = int64_t{predicted} - (live.known() - live.request.prompt);
  return {.order_class = live.request.order_class,
          .target_step = live.request.target_step,
          .minus_left = std::min<int64_t>(-left, 0),
          .arrival = live.arrival};
}

void Scheduler::Wait(Live* live) {
  live->key = KeyOf(*live);
  waiting_.emplace(live->key, live);
  if (live->key.not_aged && live->request.ages)
    by_age_.emplace(std::pair(live->since, live->arrival), live);
}

void Scheduler::StopWaiting(Live* live) {
  waiting_.erase(live->key);
  by_age_.erase({live->since, live->arrival});
}

void Scheduler::Run(Live* live) {
  StopWaiting(live);
  live->runs = true;
  running_.insert(std::upper_bound(running_.begin(), running_.end(), live,
                                   [](const Live* a, const Live* b) { return a->key < b->key; }),
                  live);
  if (live->group != nullptr) live->group->running.push_back(live);
}

void Scheduler::StopRunning(Live* live) {
  blocks_.Release(&live->table);
  live->computed = 0;
  live->runs = false;
  std::erase(running_, live);
  if (live->group != nullptr) std::erase(live->group->running, live);
}

void Scheduler::Erase(Live* live) {
  if (live->runs) {
    StopRunning(live);
  } else {
    StopWaiting(live);
  }
  if (Group* group = live->group; group != nullptr) {
    std::erase(group->members, live);
    if (group->members.empty()) groups_.erase(live->request.group);
  }
  live_.erase(live->request.id);
}

void Scheduler::Remove(uint64_t id) {
  if (const auto it = live_.find(id); it != live_.end()) Erase(it->second.get());
}

void Scheduler::Switched(KvHash salt, bool recompute) {
  ++epoch_;
  blocks_.SetSalt(salt);
  for (Live* live : running_) {
    const bool scored = live->request.chunk > 0 && live->computed < live->request.prompt;
    if (!recompute && !scored) continue;
    blocks_.Release(&live->table);
    live->computed = 0;
  }
}

// Who may run. ------------------------------------------------------------------------------------

void Scheduler::AdjustLimit() {
  if (!options_.adapt || step_ < adjust_at_) return;
  const uint64_t used = uint64_t{blocks_.active()} * 100, all = blocks_.blocks();
  if (used >= kTrimFrom * all && running() > 1) {
    limit_ = std::max(1u, running() * 7 / 8);
    adjust_at_ = step_ + kTrimPause;
  } else if (used < kRaiseBelow * all && running() >= limit_) {
    limit_ = std::min(options_.max_running, limit_ + kRaise);
  }
}

void Scheduler::Age() {
  while (!by_age_.empty() && step_ - by_age_.begin()->first.first >= options_.aging_steps) {
    Live* live = by_age_.begin()->second;
    StopWaiting(live);
    live->key.not_aged = false;
    Wait(live);
  }
}

// About as many as it needs to get to its first token.
uint32_t Scheduler::BlocksToStart(const Live& live) const {
  if (live.group != nullptr && !live.group->running.empty()) {
    // The prompt is, or will be, a sibling's.
    return BlocksFor(live.known() + 1) - (live.request.prompt - 1) / kBlockTokens;
  }
  return BlocksFor(live.known() + 1);
}

void Scheduler::Admit() {
  if (waiting_.empty() || running() >= limit_) return;
  const uint64_t room = options_.adapt ? blocks_.blocks() * kRefuseFrom / 100 : blocks_.blocks();
  uint64_t promised = blocks_.active();
  for (const Live* live : running_) {
    const uint32_t wanted =
        live->table.blocks.empty() ? BlocksToStart(*live) : BlocksFor(live->known());
    promised += wanted - std::min<size_t>(wanted, live->table.blocks.size());
  }
  while (!waiting_.empty() && running() < limit_) {
    Live* live = waiting_.begin()->second;
    promised += BlocksToStart(*live);
    if (promised > room && !running_.empty()) return;
    Run(live);
  }
}

// The plan. ---------------------------------------------------------------------------------------

// A sibling whose blocks hold the prompt, computed under the weights of now.
const Scheduler::Live* Scheduler::PromptSource(const Live& live) const {
  if (live.group == nullptr || live.request.prompt == 1) return nullptr;
  for (const Live* sibling : live.group->running) {
    if (sibling != &live && sibling->epoch == epoch_ &&
        sibling->computed + 1 >= live.request.prompt)
      return sibling;
  }
  return nullptr;
}

// A sibling that began to run before is at the prompt already, so this one waits for it.
bool Scheduler::SiblingPrefills(const Live& live) const {
  if (live.group == nullptr || live.request.prompt == 1) return false;
  for (const Live* sibling : live.group->running) {
    if (sibling == &live) return false;
    if (sibling->computed == 0 ||
        (sibling->epoch == epoch_ && sibling->computed + 1 < live.request.prompt))
      return true;
  }
  return false;
}

// The blocks that a request without any starts from.
Scheduler::Start Scheduler::Begin(Live* live, bool fork) {
  live->epoch = epoch_;
  if (live->request.chunk > 0) return Start::kMatched;
  if (fork) {
    if (const Live* source = PromptSource(*live)) {
      live->computed = live->request.prompt - 1;
      blocks_.Fork(source->table, live->computed, &live->table);
      return Start::kForked;
    }
    if (SiblingPrefills(*live)) return Start::kWaits;
  }
  live->computed = blocks_.Match(absl::MakeConstSpan(live->request.tokens).first(live->known() - 1),
                                 &live->table);
  return Start::kMatched;
}

// Gives up the blocks of the last request behind `place` that has any.
bool Scheduler::PreemptBehind(size_t place) {
  for (size_t i = running_.size() - 1; i > place; --i) {
    Live* live = running_[i];
    if (live->table.blocks.empty()) continue;
    StopRunning(live);
    Wait(live);
    plan_.preempted.push_back(live->request.id);
    if (++live->preempted > 1) plan_.crowded_out.push_back(live->request.id);
    ++preemptions_;
    return true;
  }
  return false;
}

// Blocks for up to `count` more tokens of the request at `place`; fewer rather than to preempt, but
// at least one. Returns for how many there are blocks.
uint32_t Scheduler::Reserve(size_t place, uint32_t count) {
  Live* live = running_[place];
  while (!blocks_.Reserve(&live->table, live->computed, live->computed + count, &plan_.copies)) {
    const uint64_t room =
        (live->table.blocks.size() + blocks_.available()) * uint64_t{kBlockTokens} - live->computed;
    if (room > 0 && room < count) {
      count = static_cast<uint32_t>(room);
    } else if (!PreemptBehind(place)) {
      return 0;
    }
  }
  return count;
}

// It did not advance; for too long, and it goes before the others from the next step on.
void Scheduler::Stalled(Live* live) {
  if (!live->key.not_aged || !live->request.ages || step_ - live->since < options_.aging_steps)
    return;
  live->key.not_aged = false;
  live->key = KeyOf(*live);
  unsorted_ = true;
}

// A row of up to `count` tokens for the request at `place`, if there are blocks for it.
void Scheduler::PlanRow(size_t place, uint32_t count, std::vector<SchedulerPlan::Row>* rows,
                        std::vector<Live*>* lives) {
  Live* live = running_[place];
  const bool starts = live->table.blocks.empty();
  uint32_t got = 0;
  // A fork that there are no blocks for, its sibling's having been taken too, tries again with what
  // the cache has.
  for (bool fork : {true, false}) {
    const Start start = starts ? Begin(live, fork) : Start::kGoesOn;
    if (start == Start::kWaits) break;
    const uint32_t most = live->request.chunk > 0 ? std::min(count, live->request.chunk) : count;
    got = Reserve(place, std::min(most, live->known() - live->computed));
    if (got > 0) {
      const uint32_t of_prompt = std::min(live->computed, live->request.prompt);
      if (start == Start::kForked) forked_ += of_prompt;
      if (start == Start::kMatched) cached_ += of_prompt;
      break;
    }
    if (start != Start::kGoesOn) {
      blocks_.Release(&live->table);
      live->computed = 0;
    }
    if (start != Start::kForked) break;
  }
  if (got == 0) return Stalled(live);
  rows->push_back({.request = live->request.id,
                   .first = live->computed,
                   .count = got,
                   .sample = live->computed + got == live->known(),
                   .tokens = live->request.tokens,
                   .blocks = live->table.blocks});
  lives->push_back(live);
  plan_.tokens += got;
}

const SchedulerPlan& Scheduler::Plan() {
  plan_.copies.clear();
  plan_.rows.clear();
  plan_.preempted.clear();
  plan_.crowded_out.clear();
  plan_.tokens = 0;
  prefills_.clear();
  planned_.clear();
  planned_prefills_.clear();
  AdjustLimit();
  Age();
  Admit();
  if (unsorted_)
    std::sort(running_.begin(), running_.end(),
              [](const Live* a, const Live* b) { return a->key < b->key; });
  unsorted_ = false;
  // Who decodes has its token; at most max_running do, so the first that prefills has room.
  uint32_t room = options_.max_batch_tokens;
  for (const Live* live : running_) room -= live->decodes();
  // In order, so that who is preempted has no row yet.
  for (size_t place = 0; place < running_.size(); ++place) {
    if (running_[place]->decodes()) {
      PlanRow(place, 1, &plan_.rows, &planned_);
    } else if (room > 0) {
      const uint32_t before = plan_.tokens;
      PlanRow(place, room, &prefills_, &planned_prefills_);
      room -= plan_.tokens - before;
    }
  }
  plan_.rows.insert(plan_.rows.end(), prefills_.begin(), prefills_.end());
  planned_.insert(planned_.end(), planned_prefills_.begin(), planned_prefills_.end());
  Fold();
  return plan_;
}

void Scheduler::Fold() {
  const auto fold = [this](uint64_t x) { digest_ = Mix64(digest_ + kGolden + x); };
  for (uint64_t id : plan_.preempted) fold(~id);
  for (const BlockManager::Copy& copy : plan_.copies)
    fold(uint64_t{static_cast<uint32_t>(copy.from)} << 32 | static_cast<uint32_t>(copy.to));
  for (const SchedulerPlan::Row& row : plan_.rows) {
    fold(row.request);
    fold(uint64_t{row.first} << 32 | row.count << 1 | row.sample);
    fold(static_cast<uint32_t>(row.blocks.back()));
  }
}

// What came of it. --------------------------------------------------------------------------------

// An answer is longer. Siblings that wait are expected to be as long as the longest; their order
// changes once per block, for that costs something, and at the answer's end.
void Scheduler::Grew(Live* live, bool ended) {
  const uint32_t answer = live->known() - live->request.prompt;
  Group* group = live->group;
  if (group == nullptr || answer <= group->longest || (answer % kBlockTokens != 0 && !ended))
    return;
  group->longest = answer;
  for (Live* sibling : group->members) {
    if (sibling->runs || !sibling->key.not_aged) continue;
    StopWaiting(sibling);
    Wait(sibling);
  }
}

void Scheduler::Advance(absl::Span<const Drawn> drawn) {
  size_t next = 0;
  for (size_t i = 0; i < plan_.rows.size(); ++i) {
    const SchedulerPlan::Row& row = plan_.rows[i];
    Live* live = planned_[i];
    live->computed = row.first + row.count;
    live->since = step_;
    if (row.first < live->request.prompt)
      computed_ += std::min(live->computed, live->request.prompt) - row.first;
    if (row.sample && drawn[next].token < 0) {
      Erase(live);
      ++next;
      continue;
    }
    if (live->epoch == epoch_ && live->computed / kBlockTokens > live->table.indexed) {
      blocks_.Index(absl::MakeConstSpan(live->request.tokens).first(live->computed), &live->table);
    }
    if (!row.sample) continue;
    const Drawn& token = drawn[next++];
    live->request.tokens.push_back(token.token);
    Grew(live, token.ends);
    if (token.ends) {
      // Who is scored is no answer to go by.
      if (live->request.chunk == 0) lengths_.Add(live->known() - live->request.prompt);
      Erase(live);
    }
  }
  SLUICE_CHECK(next == drawn.size());
  plan_.rows.clear();
  plan_.copies.clear();
  ++step_;
}

}  // namespace sluice
