#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "services/rollout/core/kv/block_manager.h"
#include "services/rollout/core/scheduler/lengths.h"

namespace sluice {

// What the scheduler knows of a request.
struct SchedulerRequest {
  uint64_t id = 0;
  uint64_t group = 0;       // Requests of one group have equal prompts. 0: alone.
  uint8_t order_class = 0;  // Lower first.
  int64_t target_step = 0;  // Lower first, within a class.
  bool ages = true;         // False: it never goes before others for having waited long.
  uint32_t prompt = 0;      // Tokens, >= 1.
  uint32_t end = 0;         // Tokens, prompt and answer, at which it ends at the latest.
  // Not 0: it computes all of its tokens itself, at most so many a step.
  uint32_t chunk = 0;
  KvHash root;  // Of its adapter; members of a group have the same.
  // Known at the start: the prompt and a resumed prefix; fewer than `end`.
  std::vector<int32_t> tokens;
};

// What one step computes. Spans hold until Advance().
struct SchedulerPlan {
  struct Row {
    uint64_t request = 0;
    uint32_t first = 0;  // Positions [first, first + count) are computed.
    uint32_t count = 0;
    // They are the last known ones, so the next token is drawn.
    bool sample = false;
    absl::Span<const int32_t> tokens;  // All known ones.
    absl::Span<const int32_t> blocks;  // blocks[j] holds positions 32 j .. 32 j + 31.
  };
  std::vector<BlockManager::Copy> copies;  // Made in this order, before the rows.
  std::vector<Row> rows;                   // Decodes first.
  std::vector<uint64_t> preempted;         // Gave up their blocks, and wait again.
  std::vector<uint64_t> crowded_out;       // Of these, those for whom it was not the first time.
  uint32_t tokens = 0;                     // Sum of counts.
};

// Decides what each engine step computes. One rule serves prefill, decode and resume: a request has
// `known` tokens of which `computed` have keys and values in its blocks; a step gives it up to
// known - computed, decodes (difference 1) first, then prefill in chunks up to `max_batch_tokens`.
// Of a group one member prefills the prompt; the others wait for it, hold its blocks too and
// compute the last prompt token themselves. Others begin with what the prefix cache has.
//
// Order, for who may run and who loses its blocks: (class, target step, predicted length left,
// longest first, arrival). The prediction is the longest answer in the group so far (Seer,
// arXiv:2511.14617), else the 90th percentile of all. One that did not advance for `aging_steps`
// goes before all others, to its end.
//
// Out of blocks, the last in the order that holds any is preempted: it keeps its tokens, gives up
// its blocks and waits. The first can always have what it needs, so each request ends in a bounded
// number of steps.
//
// Plain integers: no clock, no thread. The same events give the same plans; digest() shows it.
class Scheduler {
 public:
  struct Options {
    uint32_t blocks = 0;               // Of the KV pool.
    uint32_t max_running = 256;        // At once.
    bool adapt = false;                // Fewer, by the use of the pool.
    uint32_t max_batch_tokens = 2048;  // At least max_running.
    uint32_t aging_steps = 1000;
    KvHash salt;  // Of the weights at the start.
  };

  // What came of a row that samples.
  struct Drawn {
    int32_t token = -1;  // -1: none; the request leaves, and what it computed last is not kept.
    bool ends = false;   // This was its last token.
  };

  explicit Scheduler(const Options& options);

  // INVALID_ARGUMENT: no prompt, no room for an answer, more tokens than the pool holds, or another
  // root than its group's. ALREADY_EXISTS: the id is live.
  absl::Status Add(SchedulerRequest request);

  // The request leaves and gives back its blocks. Unknown ids are passed over.
  void Remove(uint64_t id);

  // The plan of the next step; an empty one if there is nothing to run. Call Advance() with what
  // came of it before the next.
  const SchedulerPlan& Plan();

  // The step is done. `drawn`: for each row that samples, in the order of the rows.
  void Advance(absl::Span<const Drawn> drawn);

  // Keys and values come of other weights from now on: no block of before is found or forked. With
  // `recompute` running requests start over; else they go on over what they have, but for those
  // that compute all of their prompt themselves and are at it.
  void Switched(KvHash salt, bool recompute);

  uint32_t running() const { return static_cast<uint32_t>(running_.size()); }
  uint32_t waiting() const { return static_cast<uint32_t>(waiting_.size()); }
  uint32_t limit() const { return limit_; }  // Requests that may run at once, now.
  uint64_t steps() const { return step_; }
  uint64_t digest() const { return digest_; }  // Of all plans so far.
  uint64_t preemptions() const { return preemptions_; }
  uint64_t prompt_tokens_computed() const { return computed_; }
  uint64_t prompt_tokens_forked() const { return forked_; }
  uint64_t prompt_tokens_cached() const { return cached_; }
  const BlockManager& blocks() const { return blocks_; }

 private:
  struct Key {
    bool not_aged = true;
    uint8_t order_class = 0;
    int64_t target_step = 0;
    int64_t minus_left = 0;
    uint64_t arrival = 0;
    auto operator<=>(const Key&) const = default;
  };
  struct Group;
  struct Live {
    SchedulerRequest request;
    Group* group = nullptr;
    uint64_t arrival = 0;
    uint64_t since = 0;  // The step it last advanced in, or came.
    Key key;             // Its place while it waits or runs.
    bool runs = false;
    uint32_t computed = 0;
    uint32_t preempted = 0;  // So often.
    uint64_t epoch = 0;      // Of the weights under which position 0 was computed.
    BlockTable table;
    uint32_t known() const { return static_cast<uint32_t>(request.tokens.size()); }
    bool decodes() const { return computed > 0 && known() - computed == 1; }
  };
  struct Group {
    std::vector<Live*> members;
    std::vector<Live*> running;  // Who ran first leads.
    uint32_t longest = 0;        // Answer so far.
  };

  enum class Start { kGoesOn, kWaits, kForked, kMatched };

  Key KeyOf(const Live& live) const;
  void Wait(Live* live);
  void Run(Live* live);
  void StopWaiting(Live* live);
  void StopRunning(Live* live);
  void Erase(Live* live);

  void AdjustLimit();
  void Age();
  void Admit();
  uint32_t BlocksToStart(const Live& live) const;

  const Live* PromptSource(const Live& live) const;
  bool SiblingPrefills(const Live& live) const;
  Start Begin(Live* live, bool fork);
  uint32_t Reserve(size_t place, uint32_t count);
  bool PreemptBehind(size_t place);
  void PlanRow(size_t place, uint32_t count, std::vector<SchedulerPlan::Row>* rows,
               std::vector<Live*>* lives);
  void Stalled(Live* live);
  void Fold();

  void Grew(Live* live, bool ended);

  const Options options_;
  BlockManager blocks_;
  absl::flat_hash_map<uint64_t, std::unique_ptr<Live>> live_;
  absl::flat_hash_map<uint64_t, std::unique_ptr<Group>> groups_;
  std::map<Key, Live*> waiting_;
  // (since, arrival), of those waiting and not aged.
  std::map<std::pair<uint64_t, uint64_t>, Live*> by_age_;
  std::vector<Live*> running_;  // In order.
  bool unsorted_ = false;       // The order of running_ has changed.
  LengthQuantile lengths_;
  SchedulerPlan plan_;
  std::vector<SchedulerPlan::Row> prefills_;
  std::vector<Live*> planned_, planned_prefills_;  // The requests of the plan's rows.
  uint32_t limit_ = 0;
  uint64_t adjust_at_ = 0;
  uint64_t arrivals_ = 0, step_ = 0, epoch_ = 1, digest_ = 0;
  uint64_t preemptions_ = 0, computed_ = 0, forked_ = 0, cached_ = 0;
};

}  // namespace sluice
