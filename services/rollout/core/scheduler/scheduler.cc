#include "services/rollout/core/scheduler/scheduler.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/splitmix.h"
#include "common/base/status.h"

namespace sluice {
namespace {

// With Options::adapt the limit of running requests follows the share of blocks in use, by additive
// increase and multiplicative decrease: below kRaiseBelow it rises, from kTrimFrom on it falls, and
// above kRefuseFrom no request begins. All are percentages.
constexpr uint64_t kRaiseBelow = 70, kTrimFrom = 80, kRefuseFrom = 90;
constexpr uint32_t kRaise = 4;  // Requests by which the limit rises in a step.
// Steps after a decrease in which the limit does not change. A lower limit stops no running
// request, so it takes effect only as requests end.
constexpr uint64_t kTrimPause = 32;

}  // namespace

Scheduler::Scheduler(const Options& options)
    : options_(options), blocks_(options.blocks, options.salt), limit_(options.max_running) {
  SLUICE_CHECK_MSG(options.blocks >= 1 && limit_ >= 1 && options.max_batch_tokens >= limit_,
                   absl::StrCat("blocks is ", options.blocks, ", max_batch_tokens is ",
                                options.max_batch_tokens, ", max_running is ", limit_));
}

// A request is added, waits, runs, and ends. ------------------------------------------------------

absl::Status Scheduler::Add(SchedulerRequest request) {
  const size_t known = request.tokens.size();
  if (request.prompt == 0 || known < request.prompt || request.end <= known) {
    return absl::InvalidArgumentError(
        absl::StrCat("request ", request.id, " has ", request.prompt, " prompt tokens, ", known,
                     " known tokens and a limit of ", request.end,
                     "; wanted: 1 <= prompt tokens <= known tokens < limit"));
  }

  // The answer's last token is drawn, but its keys and values are never computed.
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
  if (!inserted)
    return absl::AlreadyExistsError(
        absl::StrCat("another request with the id ", request.id, " has not ended"));
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

  // An answer that is longer than predicted has 0 tokens left, not fewer.
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

// The request gives up its blocks and its place among the running. It keeps its tokens.
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

// Which requests may run. -------------------------------------------------------------------------

// Raises or lowers limit_ by the use of the KV cache. A limit that is not reached does not rise,
// because the use of the cache does not show what it would allow.
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

// Moves waiting requests that have not advanced for aging_steps to the front.
void Scheduler::Age() {
  while (!by_age_.empty() && step_ - by_age_.begin()->first.first >= options_.aging_steps) {
    Live* live = by_age_.begin()->second;
    StopWaiting(live);
    live->key.not_aged = false;
    Wait(live);
  }
}

// Estimates how many blocks the request needs for its known tokens and the next one. If a member of
// its group runs, it will share that member's whole blocks of the prompt.
uint32_t Scheduler::BlocksToStart(const Live& live) const {
  if (live.group != nullptr && !live.group->running.empty()) {
    return BlocksFor(live.known() + 1) - (live.request.prompt - 1) / kBlockTokens;
  }
  return BlocksFor(live.known() + 1);
}

// Lets waiting requests run, in order, while the limit and the blocks allow it.
void Scheduler::Admit() {
  if (waiting_.empty() || running() >= limit_) return;

  // `promised` counts the blocks in use, and those that running requests need for their known
  // tokens and do not have yet.
  const uint64_t room = options_.adapt ? blocks_.blocks() * kRefuseFrom / 100 : blocks_.blocks();
  uint64_t promised = blocks_.active();
  for (const Live* live : running_) {
    const uint32_t wanted =
        live->table.blocks.empty() ? BlocksToStart(*live) : BlocksFor(live->known());
    promised += wanted - std::min<size_t>(wanted, live->table.blocks.size());
  }

  // If nothing runs, the first one runs anyway: Add() made sure that the cache can hold it alone.
  while (!waiting_.empty() && running() < limit_) {
    Live* live = waiting_.begin()->second;
    promised += BlocksToStart(*live);
    if (promised > room && !running_.empty()) return;
    Run(live);
  }
}

// The plan. ---------------------------------------------------------------------------------------

// Returns a running member of the group whose blocks hold the prompt, computed with the current
// weights; null if there is none. The prompt's last token may be missing: each member computes it
// itself. So there is nothing to share of a prompt of one token.
const Scheduler::Live* Scheduler::PromptSource(const Live& live) const {
  if (live.group == nullptr || live.request.prompt == 1) return nullptr;
  for (const Live* sibling : live.group->running) {
    if (sibling != &live && sibling->epoch == epoch_ &&
        sibling->computed + 1 >= live.request.prompt)
      return sibling;
  }
  return nullptr;
}

// Returns true if a member of the group that began to run earlier is still computing the prompt, or
// is about to. This request then waits for it.
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

// Gives a request without blocks those that it starts from: with `fork` the blocks of a member of
// its group if possible, else those of the prefix cache.
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

  // The last known token is always computed: the next one is drawn from its logits.
  live->computed = blocks_.Match(absl::MakeConstSpan(live->request.tokens).first(live->known() - 1),
                                 &live->table);
  return Start::kMatched;
}

// Preempts the last request behind `place` that has blocks. Returns false if there is none.
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

// Gets blocks for up to `count` more positions of the request at `place`. If blocks are short, it
// takes fewer positions as long as there is room for one, and only then preempts later requests.
// Returns the number of positions; 0 if there is no room even for one.
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

// Called for a running request that did not get a row. If it has not advanced for aging_steps, it
// goes before the others from the next step on.
void Scheduler::Stalled(Live* live) {
  if (!live->key.not_aged || !live->request.ages || step_ - live->since < options_.aging_steps)
    return;
  live->key.not_aged = false;
  live->key = KeyOf(*live);
  unsorted_ = true;
}

// Appends a row of up to `count` positions for the request at `place` to `rows`, and the request to
// `lives`, unless it has to wait or there are no blocks.
void Scheduler::PlanRow(size_t place, uint32_t count, std::vector<SchedulerPlan::Row>* rows,
                        std::vector<Live*>* lives) {
  Live* live = running_[place];
  const bool starts = live->table.blocks.empty();
  uint32_t got = 0;

  // First share a member's blocks of the prompt (fork). If then not one more block is left,
  // Reserve() has preempted all later requests, perhaps also that member. So release the shared
  // blocks and try again from the prefix cache.
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

  // Each request that decodes takes one token of the budget. Because max_batch_tokens is at least
  // max_running, a request that prefills then still gets one.
  uint32_t room = options_.max_batch_tokens;
  for (const Live* live : running_) room -= live->decodes();

  // Rows are planned in the order of the requests, and only later requests are preempted. So a
  // preempted request never has a row in this plan.
  for (size_t place = 0; place < running_.size(); ++place) {
    if (running_[place]->decodes()) {
      PlanRow(place, 1, &plan_.rows, &planned_);
    } else if (room > 0) {
      const uint32_t before = plan_.tokens;
      PlanRow(place, room, &prefills_, &planned_prefills_);
      room -= plan_.tokens - before;
    } else {
      Stalled(running_[place]);
    }
  }

  plan_.rows.insert(plan_.rows.end(), prefills_.begin(), prefills_.end());
  planned_.insert(planned_.end(), planned_prefills_.begin(), planned_prefills_.end());
  Fold();
  return plan_;
}

// Adds the plan to the digest.
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

// The result of a step. ---------------------------------------------------------------------------

// Called when an answer has got a token. If it is the longest of its group, the waiting members are
// now expected to be as long, and move in the order. Moving them costs time, so it is done only
// once per 32 tokens and at the answer's end.
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

    // What this step computed for a row that is not finite must not enter the index.
    if (row.sample && drawn[next].token < 0) {
      Erase(live);
      ++next;
      continue;
    }

    // Blocks that hold keys and values of several versions are not indexed.
    if (live->epoch == epoch_ && live->computed / kBlockTokens > live->table.indexed) {
      blocks_.Index(absl::MakeConstSpan(live->request.tokens).first(live->computed), &live->table);
    }
    if (!row.sample) continue;

    const Drawn& token = drawn[next++];
    live->request.tokens.push_back(token.token);
    Grew(live, token.ends);
    if (token.ends) {
      // Requests that only score text say nothing about how long answers get.
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
