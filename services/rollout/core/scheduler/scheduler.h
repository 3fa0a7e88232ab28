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

// What the scheduler knows about a request.
struct SchedulerRequest {
  uint64_t id = 0;
  uint64_t group = 0;       // Requests of one group have equal prompts. 0: it is in no group.
  uint8_t order_class = 0;  // Lower classes go first.
  int64_t target_step = 0;  // Within a class, lower steps go first.
  // If false, waiting for long never moves the request ahead of others.
  bool ages = true;
  uint32_t prompt = 0;  // Number of tokens, at least 1.
  uint32_t end = 0;     // Number of tokens, prompt and answer, at which it ends at the latest.
  // If not 0, the request takes no keys and values from others, and computes at most this many
  // tokens per step.
  uint32_t chunk = 0;
  KvHash root;  // KvRoot() of its adapter; the same for all members of a group.
  // From its first token on, the request keeps the weights that gave it, until it ends.
  bool keeps_weights = false;
  // If not 0, it keeps the weights of this epoch from the start; other requests keep them already,
  // or they are the current ones.
  uint64_t epoch = 0;
  // The known tokens: the prompt, and the part of the answer that an earlier attempt sampled. Fewer
  // than `end`.
  std::vector<int32_t> tokens;
};

// What one step computes. The spans are valid until Advance().
struct SchedulerPlan {
  // The part of one request. Positions [first, first + count) are computed.
  struct Row {
    uint64_t request = 0;
    uint64_t epoch = 0;  // Whose weights compute it.
    uint32_t first = 0;
    uint32_t count = 0;
    // The last of these positions is the request's last known token, so the next token is drawn.
    bool sample = false;
    absl::Span<const int32_t> tokens;  // All known tokens of the request.
    absl::Span<const int32_t> blocks;  // blocks[j] holds positions 32 j .. 32 j + 31.
  };
  std::vector<BlockManager::Copy> copies;  // To be made in this order, before the rows.
  std::vector<Row> rows;                   // Requests that decode come before those that prefill.
  std::vector<uint64_t> preempted;         // Requests that gave up their blocks and wait again.
  std::vector<uint64_t> crowded_out;       // Those of `preempted` that were preempted before.
  uint32_t tokens = 0;                     // Sum of the counts of all rows.
};

// Decides what each step of the engine computes.
//
// One rule covers prefill, decode and resume. A request has `known` tokens, and the keys and values
// of the first `computed` of them are in its blocks. A step gives it up to known - computed
// positions. Requests with a difference of 1 decode, and get their position first. The others
// prefill, in chunks, until the step has `max_batch_tokens`.
//
// One member of a group prefills the prompt. The others wait for it, share its blocks, and compute
// only the prompt's last token themselves, from whose logits they draw. A request that can share
// with no member starts from what the prefix cache has.
//
// Requests are ordered by class, target step, predicted remaining length (longest first), and
// arrival. The first ones run; the last ones are preempted. The predicted length of an answer is
// that of the longest in its group so far (Seer, arXiv:2511.14617), or if there is none the 90th
// percentile of all answers. A request that has not advanced for `aging_steps` steps goes before
// all others from then on, until it ends.
//
// If blocks run out, the last request in this order that holds blocks is preempted: it gives up its
// blocks, keeps its tokens, and waits again. The first request can always get all the blocks it
// needs. Therefore each request ends within a bounded number of steps.
//
// Weights are known by their epoch: each SwitchWeights() begins the next one. A request whose
// answer is to be of one version keeps the epoch of its first token; requests of several epochs run
// in one step. Such a request shares blocks with members of its group that keep the same epoch, and
// the prefix cache serves the current epoch alone.
//
// It has no clock and no thread. The same sequence of calls gives the same plans; digest() proves
// it.
class Scheduler {
 public:
  struct Options {
    uint32_t blocks = 0;               // Blocks of the KV cache.
    uint32_t max_running = 256;        // Most requests that run at once.
    bool adapt = false;                // Run fewer while most blocks are in use.
    uint32_t max_batch_tokens = 2048;  // Most tokens of a step; at least max_running.
    uint32_t aging_steps = 1000;
    KvHash salt;  // KvSalt() of the weights at the start.
  };

  // The token drawn for a row with `sample`.
  struct Drawn {
    int32_t token = -1;  // -1: none could be drawn, so the request ends.
    bool ends = false;   // This is the request's last token.
  };

  explicit Scheduler(const Options& options);

  // INVALID_ARGUMENT: the request has no prompt, no room for an answer, more tokens than all blocks
  // hold, or another root than its group.
  // ALREADY_EXISTS: a request with this id has not ended.
  absl::Status Add(SchedulerRequest request);

  // Ends a request and gives back its blocks. Does nothing if the id is unknown. Must not be called
  // between Plan() and Advance().
  void Remove(uint64_t id);

  // Returns the plan of the next step; it has no rows if nothing can run. Call Advance() before the
  // next Plan().
  const SchedulerPlan& Plan();

  // Says that the step is done. `drawn` has one entry for each row with `sample`, in the order of
  // the rows.
  void Advance(absl::Span<const Drawn> drawn);

  // Says that requests are computed with other weights from now on, except those that keep theirs.
  // No request starts from blocks of the old weights. With `recompute`, running requests compute
  // all their tokens again. Without it they go on over the blocks that they have. Only two kinds
  // start over: requests with a `chunk` that are still in their prompt, because it must be of one
  // version, and those that will keep the weights of their first token and do not have it yet. Must
  // not be called between Plan() and Advance().
  void SwitchWeights(KvHash salt, bool recompute);
  // No request keeps its weights any more: from the next SwitchWeights() on, they all compute their
  // tokens again, and keep the weights of the next token.
  void DropKeptWeights();

  // The epoch of the current weights. Epochs are above 0.
  uint64_t epoch() const { return epoch_; }
  // How many requests keep the weights of this epoch.
  uint32_t keepers(uint64_t epoch) const {
    const auto it = keepers_.find(epoch);
    return it == keepers_.end() ? 0 : it->second;
  }

  uint32_t running() const { return static_cast<uint32_t>(running_.size()); }
  uint32_t waiting() const { return static_cast<uint32_t>(waiting_.size()); }
  uint32_t limit() const { return limit_; }  // Most requests that may run at once now.
  uint64_t steps() const { return step_; }
  uint64_t digest() const { return digest_; }  // Hash of all plans so far.
  uint64_t preemptions() const { return preemptions_; }
  uint64_t prompt_tokens_computed() const { return computed_; }
  uint64_t prompt_tokens_forked() const { return forked_; }
  uint64_t prompt_tokens_cached() const { return cached_; }
  const BlockManager& blocks() const { return blocks_; }

 private:
  // Place in the order; lower keys go first. Requests that have aged are ordered by arrival alone.
  struct Key {
    bool not_aged = true;
    uint8_t order_class = 0;
    int64_t target_step = 0;
    int64_t minus_left = 0;  // The predicted remaining tokens, negated: longest first.
    uint64_t arrival = 0;
    auto operator<=>(const Key&) const = default;
  };
  struct Group;
  // A request that has not ended. It either waits or runs.
  struct RequestState {
    SchedulerRequest request;
    Group* group = nullptr;  // Null: none.
    uint64_t arrival = 0;
    // The last step in which it advanced; at first the step it was added in.
    uint64_t last_advance = 0;
    Key key;  // Its place in waiting_ or running_.
    bool runs = false;
    uint32_t computed = 0;   // Positions [0, computed) have keys and values in `table`.
    uint32_t preempted = 0;  // How often it was preempted.
    // epoch_ when it got its first blocks. While it equals epoch_, or the request keeps weights,
    // all keys and values in `table` were computed with those of this epoch.
    uint64_t epoch = 0;
    bool keeps = false;  // It is computed with the weights of `epoch`; keepers_ counts it.
    BlockTable table;
    uint32_t known() const { return static_cast<uint32_t>(request.tokens.size()); }
    bool decodes() const { return computed > 0 && known() - computed == 1; }
  };
  struct Group {
    std::vector<RequestState*> members;
    std::vector<RequestState*> running;  // In the order in which they began to run.
    uint32_t longest = 0;                // Tokens of the longest answer so far.
  };

  // What a running request's next row starts from.
  enum class Start {
    kGoesOn,  // Nothing: it has blocks already.
    kWaits,   // Nothing yet: a member of its group computes the prompt.
    kForked,  // The blocks of a member of its group.
    kMatched  // The blocks that the prefix cache has, perhaps none.
  };

  Key KeyOf(const RequestState& state) const;
  void StartWaiting(RequestState* state);
  void StartRunning(RequestState* state);
  void StopWaiting(RequestState* state);
  void StopRunning(RequestState* state);
  void Erase(RequestState* state);

  void AdjustLimit();
  void AgeWaiting();
  void AdmitWaiting();
  uint32_t BlocksToStart(const RequestState& state) const;

  uint64_t WeightsOf(const RequestState& state) const { return state.keeps ? state.epoch : epoch_; }
  // Whether all keys and values of `sibling` were computed with the weights of `state`.
  bool SharesWeights(const RequestState& sibling, const RequestState& state) const {
    return sibling.epoch == WeightsOf(sibling) && sibling.epoch == WeightsOf(state);
  }
  void KeepWeights(RequestState* state);
  const RequestState* PromptSource(const RequestState& state) const;
  bool SiblingPrefills(const RequestState& state) const;
  Start AssignFirstBlocks(RequestState* state, bool fork);
  uint32_t Reserve(size_t place, uint32_t count);
  bool PreemptBehind(size_t place);
  void PlanRow(size_t place, uint32_t count, std::vector<SchedulerPlan::Row>* rows,
               std::vector<RequestState*>* states);
  void AgeIfStalled(RequestState* state);
  void AddPlanToDigest();

  void UpdateGroupLength(RequestState* state, bool ended);

  const Options options_;
  BlockManager blocks_;
  absl::flat_hash_map<uint64_t, std::unique_ptr<RequestState>> requests_;
  absl::flat_hash_map<uint64_t, std::unique_ptr<Group>> groups_;
  std::map<Key, RequestState*> waiting_;
  // Waiting requests that can age and have not, by (last_advance, arrival).
  std::map<std::pair<uint64_t, uint64_t>, RequestState*> by_age_;
  std::vector<RequestState*> running_;  // Sorted by key, unless unsorted_.
  bool unsorted_ = false;               // A key in running_ has changed.
  LengthQuantile lengths_;
  SchedulerPlan plan_;  // Has rows only from Plan() to Advance().
  // While planning: the rows of requests that prefill, which come at the plan's end.
  std::vector<SchedulerPlan::Row> prefills_;
  // The requests of plan_.rows and of prefills_.
  std::vector<RequestState*> planned_, planned_prefills_;
  uint32_t limit_ = 0;
  uint64_t adjust_at_ = 0;                // AdjustLimit() does nothing before this step.
  std::map<uint64_t, uint32_t> keepers_;  // By epoch, if there are any.
  // epoch_ counts the weights: each SwitchWeights() begins the next epoch.
  uint64_t arrivals_ = 0, step_ = 0, epoch_ = 1, digest_ = 0;
  // Counters; the last three count prompt tokens.
  uint64_t preemptions_ = 0, computed_ = 0, forked_ = 0, cached_ = 0;
};

}  // namespace sluice
