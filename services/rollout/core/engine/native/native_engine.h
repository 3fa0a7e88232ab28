#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/checkpoint/model_config.h"
#include "common/checkpoint/tensor_set.h"
#include "common/models/decode_model.h"
#include "common/weights/fingerprint.h"
#include "kernels/sample/op.h"
#include "services/rollout/core/engine/engine.h"
#include "services/rollout/core/engine/native/verify_rotation.h"
#include "services/rollout/core/scheduler/scheduler.h"

namespace sluice {
class Detokenizer;

// Seconds from `start` to now.
inline double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Sluice's own engine: Scheduler, DecodeModel and the sampler, on the CPU. Keys and values lie in
// blocks. Requests with equal prefixes share the blocks of the prefix if these were computed with
// the same weights.
//
// The engine holds the weights once, packed for its products (common/models/decode_weights.h). A
// delta that changes few elements is applied to them in place, on all threads, while no token is
// sampled. Only the changed elements are touched, and the fingerprint follows from them: if it is
// the published one, the version changes; else the same delta is applied backwards. Whole versions,
// and deltas that change many elements, are built beside while the engine samples, and then change
// places with what was held; for that time there is memory for a second set of weights.
//
// A fingerprint that follows from the changes says nothing about the other elements. So after each
// activation weights are read again: all of them if that takes less than a quarter of a step, else
// those whose turn it is (VerifyRotation). After a delta was applied backwards, and while there is
// nothing to sample, the others are read too.
//
// With Options::max_versions above 1, answers that are trained on end with the version that gave
// their first token. Each version is then built beside, and the one before it is held, with its
// fingerprint, until the last of its answers has ended; at each activation a part of each version
// held is read again. One step computes the rows of all versions, so none waits for another. Other
// requests go on with the new version. If any version held is found damaged, all answers go on with
// the whole version that comes then.
//
// V: vocabulary.
class NativeEngine : public Engine {
 public:
  struct Options {
    uint32_t slots = 256;  // Most requests at once.
    bool adapt = false;    // Run fewer requests than `slots` while the KV cache is nearly full.
    // Blocks of the KV cache, of 32 tokens each. 0: as many as all slots may need.
    uint32_t blocks = 0;
    uint32_t max_context = 0;  // Most tokens of a request; 0: the model's own limit.
    // Most tokens that are computed per step. A value below `slots` is raised to it.
    uint32_t max_batch_tokens = 2048;
    uint32_t aging_steps = 1000;  // See Scheduler.
    int threads = 1;
    // Most versions whose weights are held at once. 1: running requests go on with a new version,
    // so that older ones are not needed.
    uint32_t max_versions = 1;
    std::string job;  // Requests never use keys and values of another job.
    // At an activation read only those weights again whose turn it is, however fast all are read.
    bool verify_in_turns = false;
  };

  // `weights` are the parameters of `config` at version `version`. `stop_ids` are the model's end
  // tokens.
  // RESOURCE_EXHAUSTED: the machine has no memory for `max_versions` versions and the KV cache.
  static absl::StatusOr<std::unique_ptr<NativeEngine>> Create(const ModelConfig& config,
                                                              TensorSet weights,
                                                              PolicyVersion version,
                                                              std::vector<int32_t> stop_ids,
                                                              const Options& options);
  ~NativeEngine() override;

  const EngineCaps& caps() const override { return caps_; }
  uint32_t slots() const override { return options_.slots; }
  uint32_t max_context() const override { return options_.max_context; }
  void UseTokenizer(const Tokenizer* tokenizer) override { tokenizer_ = tokenizer; }
  absl::Status AddRequest(Request request) override;
  void SetThreads(int threads) override { model_->SetThreads(threads); }
  absl::StatusOr<StepEvents> Step() override;
  void Abort(uint64_t request, AbortReason reason) override;
  void PrepareWeights(StagedWeights* staged) override;
  absl::StatusOr<Activation> ActivateWeights(const StagedWeights& staged, KvPolicy kv) override;
  bool verified() const override { return held_.rotation.complete() || damaged_; }
  std::optional<WeightDamage> VerifyPart() override;
  bool damaged() const override { return damaged_; }
  WeightsCheck CheckWeights(std::optional<WeightDamage>* damage) override;
  PolicyVersion version() const override { return version_; }
  bool idle() const override { return requests_.empty(); }
  EngineStats Stats() const override;

  // Fingerprint of the weights of version().
  Fingerprint fingerprint() const { return held_.state; }
  const DecodeWeights& weights() const { return model_->weights(); }
  // For tests and benchmarks of bad memory: a bit of version(), or of the oldest version held.
  void FlipBit() { model_->FlipBit(); }
  void FlipBitOfOldest() { older_.front().weights->FlipBit(); }
  const Scheduler& scheduler() const { return scheduler_; }
  // Seconds that all steps together spent in the scheduler.
  double schedule_seconds() const { return schedule_seconds_; }

 private:
  // A request that has not ended. The scheduler has its tokens.
  struct RequestState {
    uint32_t prompt = 0;  // Number of tokens.
    uint32_t end = 0;     // Number of tokens, prompt and answer, at which it ends at the latest.
    SamplingParams sampling;
    std::shared_ptr<const Adapter> adapter;
    std::vector<int32_t> stop_ids;  // All tokens that end this request.
    uint64_t seed = 0;
    uint32_t member = 0;
    int32_t given = -1;  // Request::given.
    bool kept_sets = false, routing = false, raw_logprobs = false;
    uint32_t top_logprobs = 0;
    std::unique_ptr<Detokenizer> detokenizer;  // Null without text and stop texts.
    // With prompt_logprobs: [prompt - 1], of the tokens from the second on. The answer's first
    // event takes them away.
    std::vector<float> prompt_logprobs;
    std::vector<std::vector<TokenLogprob>> prompt_top;
    float scoring_temperature() const {
      return raw_logprobs || sampling.temperature == 0 ? 1 : sampling.temperature;
    }
    bool wants_details() const {
      return kept_sets || routing || raw_logprobs || top_logprobs > 0 || detokenizer != nullptr ||
             !prompt_logprobs.empty();
    }
  };
  // A position of this step from whose logits the request's next token is drawn.
  struct Sampling {
    const SchedulerPlan::Row* row = nullptr;
    RequestState* state = nullptr;
    size_t logits = 0;  // Index of its row in logits_.
    PolicyVersion version;
  };
  // A position of this step whose logits score the next token of the prompt.
  struct Scored {
    RequestState* state = nullptr;
    uint32_t position = 0;
    int32_t next = 0;   // The token at position + 1.
    size_t logits = 0;  // Index of its row in logits_.
  };

  // What is known of a set of weights in memory. Unless they are damaged, they have these
  // fingerprints: of all together, and of each tensor.
  struct HeldWeights {
    PolicyVersion version;
    Fingerprint state;
    std::vector<Fingerprint> tensors;
    VerifyRotation rotation;
  };
  // Weights of a version before the current one, with which requests end.
  struct OlderWeights : HeldWeights {
    uint64_t epoch = 0;  // Scheduler::epoch() while they were the current ones.
    std::unique_ptr<DecodeWeights> weights;
  };

  NativeEngine(Options options, PolicyVersion version, std::vector<int32_t> stop_ids,
               std::string layout_id, std::unique_ptr<DecodeModel> model);
  absl::Status CheckRequest(const Request& request) const;
  // Hash of what keys and values depend on now beside the tokens: job, weights and their types.
  KvHash Salt() const;
  HeldWeights ReadHeld(PolicyVersion version);
  bool keeps_versions() const { return options_.max_versions > 1; }
  bool HasRoom() const;
  void FreeUnusedWeights();
  // Lets go of the older versions. Nothing is computed by them once weights are known as damaged,
  // and there must be memory for a whole version beside those held.
  void DropOlder();
  // The epoch of a version that is held; 0: it is not.
  uint64_t EpochOf(PolicyVersion version) const;
  absl::Status MakeDetokenizer(const Request& request, RequestState* state) const;
  // The failpoint rollout.kv.corrupt.
  void CorruptKv(const SchedulerPlan& plan);
  void ComputeLogits(const SchedulerPlan& plan);
  void ComputeRows(const SchedulerPlan& plan, uint64_t epoch, PolicyVersion version,
                   const DecodeWeights& weights, size_t* places);
  void ScorePrompts();
  void DrawTokens();
  TokenEvent MakeEvent(size_t i);
  void AddDetails(size_t i, TokenEvent* event);

  class Prepared;
  absl::Status BuildBeside(const StagedWeights& staged, Prepared* prepared) const;
  bool FitsBeside() const;
  Activation Refuse(const StagedWeights& staged, absl::string_view why) const;
  Activation SwitchToBeside(const StagedWeights& staged, Prepared* prepared);
  void KeepWeightsBefore(Prepared* prepared);
  Activation ApplyInPlace(const StagedWeights& staged, const WeightDelta& delta);
  std::optional<WeightDamage> VerifyAfterActivation();
  std::optional<WeightDamage> VerifyAll();
  std::optional<WeightDamage> VerifyOlder();
  void AddDamageOfHeld(Activation* refused);
  std::optional<WeightDamage> Compare(const HeldWeights& held, absl::Span<const int64_t> tensors,
                                      absl::Span<const Fingerprint> found);
  std::vector<Fingerprint> ReadAll();
  double MedianStepSeconds() const;

  const Options options_;
  const EngineCaps caps_;
  const std::vector<int32_t> model_stop_ids_;
  const std::string layout_id_;
  const std::unique_ptr<DecodeModel> model_;

  double full_pass_seconds_;  // Time that the last reading of all weights took.
  PolicyVersion version_;
  // The weights of model_. Their version is not version_ if damage was found while it was
  // activated.
  HeldWeights held_;
  // The oldest first; fewer than max_versions. The scheduler has requests that keep their epochs.
  std::vector<OlderWeights> older_;
  bool damaged_ = false;  // Those of some version are.
  uint64_t damages_ = 0;  // How often damage was found.
  // Of the last decode steps, in a ring.
  std::array<double, 31> step_seconds_{};
  size_t steps_timed_ = 0;

  Scheduler scheduler_;
  absl::flat_hash_map<uint64_t, std::unique_ptr<RequestState>> requests_;
  const Tokenizer* tokenizer_ = nullptr;
  EngineStats stats_;
  double schedule_seconds_ = 0;

  // Contents are of one step; the memory is reused, so that a step allocates little. sample_rows_,
  // draws_ and drawn_ have the order of sampling_.
  std::vector<DecodeModel::Row> rows_;
  std::vector<absl::Span<const int32_t>> tables_;  // By row of the plan.
  std::vector<float> logits_;  // [positions in sampling_ or scored_, V], by version.
  // [the same positions, layers, experts of a token]; empty without experts.
  std::vector<uint16_t> routing_;
  std::vector<Sampling> sampling_;  // In the order of the plan.
  std::vector<Scored> scored_;
  std::vector<SampleRow> sample_rows_;
  // [sampling_.size(), V], if a request asked for kept sets.
  std::vector<int32_t> kept_;
  std::vector<SampleDraw> draws_;
  std::vector<Scheduler::Drawn> drawn_;
};

}  // namespace sluice
