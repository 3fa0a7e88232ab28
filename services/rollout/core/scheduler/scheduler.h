#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"

namespace sluice {

// What the scheduler knows of a request: counts alone.
struct SchedulerRequest {
  uint64_t id = 0;
  uint64_t group = 0;        // Requests of one group have equal prompts. 0: alone.
  uint8_t order_class = 0;   // Lower first.
  int64_t target_step = 0;   // Lower first, within a class.
  uint32_t prompt = 0;       // Tokens, >= 1.
  uint32_t known = 0;        // Tokens known at the start: the prompt and a resumed prefix; >= prompt.
};

// What one step computes.
struct SchedulerPlan {
  // Tokens [first, first + count) of a request, into its slot. `sample`: these are its last known ones, so the next is drawn.
  struct Row {
    uint64_t request = 0;
    uint32_t slot = 0;
    uint32_t first = 0;
    uint32_t count = 0;
    bool sample = false;
    bool operator==(const Row&) const = default;
  };
  // Keys and values of positions [0, count) copied between slots, before the rows.
  struct Copy {
    uint32_t from = 0;
    uint32_t to = 0;
    uint32_t count = 0;
    bool operator==(const Copy&) const = default;
  };
  std::vector<Copy> copies;
  std::vector<Row> rows;     // Decodes first.
  uint32_t tokens = 0;       // Sum of counts.
};

// Decides what each engine step computes. One rule serves prefill, decode and resume: a request has `known` tokens of which
// `computed` are in its slot; a step gives it up to known - computed, decodes (difference 1) first, then prefill in chunks up to
// `max_batch_tokens`. Of a group one member prefills the prompt; the others wait for it and take a copy of all but the last
// prompt token, which they compute themselves.
//
// Slots go to waiting requests by (class, target step, arrival); one that has waited `aging_steps` goes before all others. A
// request keeps its slot to its end, and max_batch_tokens >= slots, so each running request ends in a bounded number of steps.
//
// Plain integers: no clock, no thread. The same events give the same plans; digest() shows it.
class Scheduler {
 public:
  struct Options {
    uint32_t slots = 256;
    uint32_t max_batch_tokens = 2048;  // At least `slots`.
    uint32_t aging_steps = 1000;
  };

  explicit Scheduler(const Options& options);

  // INVALID_ARGUMENT: known < prompt or no prompt. ALREADY_EXISTS: the id is live.
  absl::Status Add(const SchedulerRequest& request);

  // The request leaves and gives back its slot. Unknown ids are passed over.
  void Remove(uint64_t id);

  // The plan of the next step; an empty one if nothing can run. Call Advance() with what came of it before the next.
  const SchedulerPlan& Plan();

  // The step is done: its rows are computed. Each request that sampled knows one token more; those in `ended` leave.
  void Advance(const std::vector<uint64_t>& ended);

  // The weights changed. Prompts computed before are no longer copied; with `recompute` running requests start over.
  void Switched(bool recompute);

  uint32_t running() const { return static_cast<uint32_t>(running_.size()); }
  uint32_t waiting() const { return static_cast<uint32_t>(waiting_.size()); }
  uint64_t held_tokens() const { return held_tokens_; }  // Computed tokens in slots.
  uint64_t steps() const { return step_; }
  uint64_t digest() const { return digest_; }            // Of all plans so far.

 private:
  struct Live {
    SchedulerRequest request;
    uint64_t arrival = 0;
    uint64_t since = 0;      // Step at which it began to wait.
    int64_t slot = -1;
    uint32_t known = 0;
    uint32_t computed = 0;
    uint64_t epoch = 0;      // Of the weights under which position 0 was computed.
  };
  using Key = std::tuple<uint8_t, int64_t, uint64_t>;  // Class, target step, arrival.

  static Key KeyOf(const Live& live) { return {live.request.order_class, live.request.target_step, live.arrival}; }
  void GiveSlots();
  void PlanPrefill(Live& live);
  const Live* PromptSource(const Live& live) const;
  bool SiblingPrefills(const Live& live) const;
  void AddRow(const Live& live, uint32_t count);
  void Leave(Live& live);

  const Options options_;
  absl::flat_hash_map<uint64_t, Live> live_;
  std::map<Key, uint64_t> waiting_;                      // In order of slots.
  std::map<uint64_t, uint64_t> by_age_;                  // Arrival -> id, of those waiting.
  std::map<Key, uint64_t> running_;
  absl::flat_hash_map<uint64_t, std::vector<uint64_t>> groups_;  // Members that hold a slot.
  std::set<uint32_t> free_slots_;
  SchedulerPlan plan_;
  uint64_t arrivals_ = 0;
  uint64_t step_ = 0;
  uint64_t epoch_ = 0;
  uint64_t held_tokens_ = 0;
  uint64_t digest_ = 0;
};

}  // namespace sluice
