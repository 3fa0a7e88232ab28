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
  SLUICE_CHECK(request.epoch == 0 || request.epoch == epoch_ || keepers(request.epoch) > 0);
  const auto group_of = groups_.find(request.group);
  if (group_of != groups_.end() &&
      group_of->second->members.front()->request.root != request.root) {
    return absl::InvalidArgumentError(absl::StrCat("request ", request.id, ": its group ",
                                                   request.group, " has another adapter"));
  }

  auto [it, inserted] = requests_.try_emplace(request.id);
  if (!inserted)
    return absl::AlreadyExistsError(
        absl::StrCat("another request with the id ", request.id, " has not ended"));
  it->second = std::make_unique<RequestState>();
  RequestState* state = it->second.get();
  state->request = std::move(request);
  state->request.tokens.reserve(std::min<size_t>(state->request.end, known + 256));
  state->table.root = state->table.chain = state->request.root;
  state->table.blocks.reserve(BlocksFor(state->request.end));
  state->arrival = arrivals_++;
  state->last_advance = step_;
  if (state->request.epoch != 0) {
    state->epoch = state->request.epoch;
    KeepWeights(state);
  }
  if (state->request.group != 0) {
    std::unique_ptr<Group>& group = groups_[state->request.group];
    if (group == nullptr) group = std::make_unique<Group>();
    group->members.push_back(state);
    state->group = group.get();
  }
  StartWaiting(state);
  return absl::OkStatus();
}

Scheduler::Key Scheduler::KeyOf(const RequestState& state) const {
  if (!state.key.not_aged) return {.not_aged = false, .arrival = state.arrival};

  // An answer that is longer than predicted has 0 tokens left, not fewer.
  const uint32_t longest = state.group != nullptr ? state.group->longest : 0;
  const uint32_t predicted =
      std::min(longest > 0 ? longest : lengths_.p90(), state.request.end - state.request.prompt);
  const int64_t left = int64_t{predicted} - (state.known() - state.request.prompt);
  return {.order_class = state.request.order_class,
          .target_step = state.request.target_step,
          .minus_left = std::min<int64_t>(-left, 0),
          .arrival = state.arrival};
}

void Scheduler::StartWaiting(RequestState* state) {
  state->key = KeyOf(*state);
  waiting_.emplace(state->key, state);
  if (state->key.not_aged && state->request.ages)
    by_age_.emplace(std::pair(state->last_advance, state->arrival), state);
}

void Scheduler::StopWaiting(RequestState* state) {
  waiting_.erase(state->key);
  by_age_.erase({state->last_advance, state->arrival});
}

void Scheduler::StartRunning(RequestState* state) {
  StopWaiting(state);
  state->runs = true;
  running_.insert(std::upper_bound(
                      running_.begin(), running_.end(), state,
                      [](const RequestState* a, const RequestState* b) { return a->key < b->key; }),
                  state);
  if (state->group != nullptr) state->group->running.push_back(state);
}

// The request gives up its blocks and its place among the running. It keeps its tokens.
void Scheduler::StopRunning(RequestState* state) {
  blocks_.Release(&state->table);
  state->computed = 0;
  state->runs = false;
  std::erase(running_, state);
  if (state->group != nullptr) std::erase(state->group->running, state);
}

void Scheduler::Erase(RequestState* state) {
  if (state->runs) {
    StopRunning(state);
  } else {
    StopWaiting(state);
  }
  if (state->keeps && --keepers_[state->epoch] == 0) keepers_.erase(state->epoch);
  if (Group* group = state->group; group != nullptr) {
    std::erase(group->members, state);
    if (group->members.empty()) groups_.erase(state->request.group);
  }
  requests_.erase(state->request.id);
}

void Scheduler::Remove(uint64_t id) {
  SLUICE_CHECK(plan_.rows.empty());  // The rows of a plan refer to their requests.
  if (const auto it = requests_.find(id); it != requests_.end()) Erase(it->second.get());
}

void Scheduler::SwitchWeights(KvHash salt, bool recompute) {
  SLUICE_CHECK(plan_.rows.empty());  // The rows of a plan refer to blocks that are released here.
  ++epoch_;
  blocks_.SetSalt(salt);
  for (RequestState* state : running_) {
    if (state->keeps) continue;
    const bool scored = state->request.chunk > 0 && state->computed < state->request.prompt;
    if (!recompute && !scored && !state->request.keeps_weights) continue;
    blocks_.Release(&state->table);
    state->computed = 0;
  }
}

void Scheduler::DropKeptWeights() {
  for (const auto& [id, state] : requests_) state->keeps = false;
  keepers_.clear();
}

void Scheduler::KeepWeights(RequestState* state) {
  state->keeps = true;
  ++keepers_[state->epoch];
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
void Scheduler::AgeWaiting() {
  while (!by_age_.empty() && step_ - by_age_.begin()->first.first >= options_.aging_steps) {
    RequestState* state = by_age_.begin()->second;
    StopWaiting(state);
    state->key.not_aged = false;
    StartWaiting(state);
  }
}

// Estimates how many blocks the request needs for its known tokens and the next one. If a member of
// its group runs, it will share that member's whole blocks of the prompt.
uint32_t Scheduler::BlocksToStart(const RequestState& state) const {
  if (state.group != nullptr && !state.group->running.empty()) {
    return BlocksFor(state.known() + 1) - (state.request.prompt - 1) / kBlockTokens;
  }
  return BlocksFor(state.known() + 1);
}

// Lets waiting requests run, in order, while the limit and the blocks allow it.
void Scheduler::AdmitWaiting() {
  if (waiting_.empty() || running() >= limit_) return;

  // `promised` counts the blocks in use, and those that running requests need for their known
  // tokens and do not have yet.
  const uint64_t room = options_.adapt ? blocks_.blocks() * kRefuseFrom / 100 : blocks_.blocks();
  uint64_t promised = blocks_.active();
  for (const RequestState* state : running_) {
    const uint32_t wanted =
        state->table.blocks.empty() ? BlocksToStart(*state) : BlocksFor(state->known());
    promised += wanted - std::min<size_t>(wanted, state->table.blocks.size());
  }

  // If nothing runs, the first one runs anyway: Add() made sure that the cache can hold it alone.
  while (!waiting_.empty() && running() < limit_) {
    RequestState* state = waiting_.begin()->second;
    promised += BlocksToStart(*state);
    if (promised > room && !running_.empty()) return;
    StartRunning(state);
  }
}

// The plan. ---------------------------------------------------------------------------------------

// Returns a running member of the group whose blocks hold the prompt, computed with the weights of
// this request; null if there is none. The prompt's last token may be missing: each member computes
// it itself. So there is nothing to share of a prompt of one token.
const Scheduler::RequestState* Scheduler::PromptSource(const RequestState& state) const {
  if (state.group == nullptr || state.request.prompt == 1) return nullptr;
  for (const RequestState* sibling : state.group->running) {
    if (sibling != &state && SharesWeights(*sibling, state) &&
        sibling->computed + 1 >= state.request.prompt)
      return sibling;
  }
  return nullptr;
}

// Returns true if a member of the group that began to run earlier is still computing the prompt, or
// is about to. This request then waits for it.
bool Scheduler::SiblingPrefills(const RequestState& state) const {
  if (state.group == nullptr || state.request.prompt == 1) return false;
  for (const RequestState* sibling : state.group->running) {
    if (sibling == &state) return false;
    if (WeightsOf(*sibling) != WeightsOf(state)) continue;
    if (sibling->computed == 0 ||
        (SharesWeights(*sibling, state) && sibling->computed + 1 < state.request.prompt))
      return true;
  }
  return false;
}

// Gives a request without blocks those that it starts from: with `fork` the blocks of a member of
// its group if possible, else those of the prefix cache.
Scheduler::Start Scheduler::AssignFirstBlocks(RequestState* state, bool fork) {
  state->epoch = WeightsOf(*state);
  if (state->request.chunk > 0) return Start::kMatched;

  if (fork) {
    if (const RequestState* source = PromptSource(*state)) {
      state->computed = state->request.prompt - 1;
      blocks_.Fork(source->table, state->computed, &state->table);
      return Start::kForked;
    }
    if (SiblingPrefills(*state)) return Start::kWaits;
  }

  // The prefix cache has blocks of the current weights alone.
  if (state->epoch != epoch_) return Start::kMatched;

  // The last known token is always computed: the next one is drawn from its logits.
  state->computed = blocks_.Match(
      absl::MakeConstSpan(state->request.tokens).first(state->known() - 1), &state->table);
  return Start::kMatched;
}

// Preempts the last request behind `place` that has blocks. Returns false if there is none.
bool Scheduler::PreemptBehind(size_t place) {
  for (size_t i = running_.size() - 1; i > place; --i) {
    RequestState* state = running_[i];
    if (state->table.blocks.empty()) continue;
    StopRunning(state);
    StartWaiting(state);
    plan_.preempted.push_back(state->request.id);
    if (++state->preempted > 1) plan_.crowded_out.push_back(state->request.id);
    ++preemptions_;
    return true;
  }
  return false;
}

// Gets blocks for up to `count` more positions of the request at `place`. If blocks are short, it
// takes fewer positions as long as there is room for one, and only then preempts later requests.
// Returns the number of positions; 0 if there is no room even for one.
uint32_t Scheduler::Reserve(size_t place, uint32_t count) {
  RequestState* state = running_[place];
  while (!blocks_.Reserve(&state->table, state->computed, state->computed + count, &plan_.copies)) {
    const uint64_t room =
        (state->table.blocks.size() + blocks_.available()) * uint64_t{kBlockTokens} -
        state->computed;
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
void Scheduler::AgeIfStalled(RequestState* state) {
  if (!state->key.not_aged || !state->request.ages ||
      step_ - state->last_advance < options_.aging_steps)
    return;
  state->key.not_aged = false;
  state->key = KeyOf(*state);
  unsorted_ = true;
}

// Appends a row of up to `count` positions for the request at `place` to `rows`, and the request to
// `states`, unless it has to wait or there are no blocks.
void Scheduler::PlanRow(size_t place, uint32_t count, std::vector<SchedulerPlan::Row>* rows,
                        std::vector<RequestState*>* states) {
  RequestState* state = running_[place];
  const bool starts = state->table.blocks.empty();
  uint32_t got = 0;

  // First share a member's blocks of the prompt (fork). If then not one more block is left,
  // Reserve() has preempted all later requests, perhaps also that member. So release the shared
  // blocks and try again from the prefix cache.
  for (bool fork : {true, false}) {
    const Start start = starts ? AssignFirstBlocks(state, fork) : Start::kGoesOn;
    if (start == Start::kWaits) break;
    const uint32_t most = state->request.chunk > 0 ? std::min(count, state->request.chunk) : count;
    got = Reserve(place, std::min(most, state->known() - state->computed));
    if (got > 0) {
      const uint32_t of_prompt = std::min(state->computed, state->request.prompt);
      if (start == Start::kForked) forked_ += of_prompt;
      if (start == Start::kMatched) cached_ += of_prompt;
      break;
    }
    if (start != Start::kGoesOn) {
      blocks_.Release(&state->table);
      state->computed = 0;
    }
    if (start != Start::kForked) break;
  }
  if (got == 0) return AgeIfStalled(state);

  rows->push_back({.request = state->request.id,
                   .epoch = WeightsOf(*state),
                   .first = state->computed,
                   .count = got,
                   .sample = state->computed + got == state->known(),
                   .tokens = state->request.tokens,
                   .blocks = state->table.blocks});
  states->push_back(state);
  plan_.tokens += got;
}

const SchedulerPlan& Scheduler::Plan() {
  SLUICE_CHECK(plan_.rows.empty());  // Advance() has taken the rows of the last plan.
  plan_.copies.clear();
  plan_.rows.clear();
  plan_.preempted.clear();
  plan_.crowded_out.clear();
  plan_.tokens = 0;
  prefills_.clear();
  planned_.clear();
  planned_prefills_.clear();

  AdjustLimit();
  AgeWaiting();
  AdmitWaiting();
  if (unsorted_)
    std::sort(running_.begin(), running_.end(),
              [](const RequestState* a, const RequestState* b) { return a->key < b->key; });
  unsorted_ = false;

  // Each request that decodes takes one token of the budget. Because max_batch_tokens is at least
  // max_running, a request that prefills then still gets one.
  uint32_t room = options_.max_batch_tokens;
  for (const RequestState* state : running_) room -= state->decodes();

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
      AgeIfStalled(running_[place]);
    }
  }

  plan_.rows.insert(plan_.rows.end(), prefills_.begin(), prefills_.end());
  planned_.insert(planned_.end(), planned_prefills_.begin(), planned_prefills_.end());
  AddPlanToDigest();
  return plan_;
}

// Adds the plan to the digest.
void Scheduler::AddPlanToDigest() {
  const auto add = [this](uint64_t x) { digest_ = Mix64(digest_ + kGolden + x); };
  for (uint64_t id : plan_.preempted) add(~id);
  for (const BlockManager::Copy& copy : plan_.copies)
    add(uint64_t{static_cast<uint32_t>(copy.from)} << 32 | static_cast<uint32_t>(copy.to));
  for (const SchedulerPlan::Row& row : plan_.rows) {
    add(row.request);
    add(uint64_t{row.first} << 32 | row.count << 1 | row.sample);
    add(static_cast<uint32_t>(row.blocks.back()));
  }
}

// The result of a step. ---------------------------------------------------------------------------

// Called when an answer has got a token. If it is the longest of its group, the waiting members are
// now expected to be as long, and move in the order. Moving them costs time, so it is done only
// once per 32 tokens and at the answer's end.
void Scheduler::UpdateGroupLength(RequestState* state, bool ended) {
  const uint32_t answer = state->known() - state->request.prompt;
  Group* group = state->group;
  if (group == nullptr || answer <= group->longest || (answer % kBlockTokens != 0 && !ended))
    return;

  group->longest = answer;
  for (RequestState* sibling : group->members) {
    if (sibling->runs || !sibling->key.not_aged) continue;
    StopWaiting(sibling);
    StartWaiting(sibling);
  }
}

void Scheduler::Advance(absl::Span<const Drawn> drawn) {
  size_t next = 0;
  for (size_t i = 0; i < plan_.rows.size(); ++i) {
    const SchedulerPlan::Row& row = plan_.rows[i];
    RequestState* state = planned_[i];
    state->computed = row.first + row.count;
    state->last_advance = step_;
    if (row.first < state->request.prompt)
      computed_ += std::min(state->computed, state->request.prompt) - row.first;

    // What this step computed for a row that is not finite must not enter the index.
    if (row.sample && drawn[next].token < 0) {
      Erase(state);
      ++next;
      continue;
    }

    // Blocks that hold keys and values of other or of several versions are not indexed.
    if (state->epoch == epoch_ && state->computed / kBlockTokens > state->table.indexed) {
      blocks_.Index(absl::MakeConstSpan(state->request.tokens).first(state->computed),
                    &state->table);
    }
    if (!row.sample) continue;

    const Drawn& token = drawn[next++];
    state->request.tokens.push_back(token.token);
    UpdateGroupLength(state, token.ends);
    if (state->request.keeps_weights && !state->keeps) KeepWeights(state);
    if (token.ends) {
      // Requests that only score text say nothing about how long answers get.
      if (state->request.chunk == 0) lengths_.Add(state->known() - state->request.prompt);
      Erase(state);
    }
  }
  SLUICE_CHECK(next == drawn.size());
  plan_.rows.clear();
  plan_.copies.clear();
  ++step_;
}

}  // namespace sluice
