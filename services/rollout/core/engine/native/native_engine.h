#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/checkpoint/model_config.h"
#include "common/checkpoint/tensor_set.h"
#include "common/models/decode_model.h"
#include "common/weights/fingerprint.h"
#include "kernels/sample/op.h"
#include "services/rollout/core/engine/engine.h"
#include "services/rollout/core/scheduler/scheduler.h"

namespace sluice {
class Detokenizer;

// The engine of this tree: Scheduler, DecodeModel and the sampler, on the CPU. Keys and values lie
// in blocks that requests share where their prefixes are equal and of equal weights.
//
// Holds the staged set of tensors that its weights came from, to put them back from, and the
// model's packed copy. V vocabulary.
class NativeEngine : public Engine {
 public:
  struct Options {
    uint32_t slots = 256;  // Requests at once.
    bool adapt = false;    // Fewer, by use of the KV cache.
    // Of the KV cache, 32 tokens each; 0: as many as all slots may need.
    uint32_t blocks = 0;
    uint32_t max_context = 0;          // Tokens of a request; 0: the model's own limit.
    uint32_t max_batch_tokens = 2048;  // Computed per step; raised to `slots`.
    uint32_t aging_steps = 1000;
    int threads = 1;
    std::string job;  // Keys and values of different jobs never meet.
  };

  // `weights`: the parameters of `config`, of version `version`. `stop_ids`: the model's end
  // tokens.
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
  absl::StatusOr<Activation> ActivateWeights(const StagedWeights& staged, KvPolicy kv) override;
  PolicyVersion version() const override { return version_; }
  bool idle() const override { return live_.empty(); }
  EngineStats Stats() const override;

  // Of the weights held, as last recomputed over them.
  Fingerprint fingerprint() const { return held_; }
  const TensorSet& weights() const { return *weights_; }  // Until the next activation.
  const Scheduler& scheduler() const { return scheduler_; }
  // Spent on plans and what came of them, of all steps.
  double schedule_seconds() const { return schedule_seconds_; }

 private:
  struct Live {
    uint32_t prompt = 0;
    uint32_t end = 0;  // Tokens at which the answer is as long as it may get.
    SamplingParams sampling;
    std::shared_ptr<const Adapter> adapter;
    std::vector<int32_t> stop_ids;  // All that end this request.
    uint64_t seed = 0;
    uint32_t member = 0;
    int32_t given = -1;  // The answer's one token, where it is not drawn.
    bool kept_sets = false, routing = false, raw_logprobs = false;
    uint32_t top_logprobs = 0;
    std::unique_ptr<Detokenizer> detokenizer;  // With text or stop texts.
    // With prompt_logprobs, until they are told: [prompt - 1], by token.
    std::vector<float> prompt_logprobs;
    std::vector<std::vector<TokenLogprob>> prompt_top;
    float scoring_temperature() const {
      return raw_logprobs || sampling.temperature == 0 ? 1 : sampling.temperature;
    }
    bool details() const {
      return kept_sets || routing || raw_logprobs || top_logprobs > 0 || detokenizer != nullptr ||
             !prompt_logprobs.empty();
    }
  };
  // A row that samples, and its request.
  struct Sampling {
    const SchedulerPlan::Row* row = nullptr;
    Live* live = nullptr;
    size_t logits = 0;  // Its place among the rows with logits.
  };
  // A row whose next token is one of the prompt's, to be scored.
  struct Scored {
    Live* live = nullptr;
    uint32_t position = 0;  // Of the row.
    int32_t next = 0;
    size_t logits = 0;
  };

  NativeEngine(Options options, PolicyVersion version, std::vector<int32_t> stop_ids,
               std::shared_ptr<const TensorSet> weights, std::unique_ptr<DecodeModel> model);
  absl::Status Check(const Request& request) const;
  KvHash Salt() const;  // Of what the KV cache is computed with now.
  absl::Status MakeDetokenizer(const Request& request, Live* live) const;
  // The failpoint rollout.kv.corrupt.
  void CorruptKv(const SchedulerPlan& plan);
  void Compute(const SchedulerPlan& plan);
  void ScorePrompts();
  void Draw();
  TokenEvent Take(size_t i);
  void Describe(size_t i, TokenEvent* event);
  Activation Refuse(const StagedWeights& staged, const std::vector<Fingerprint>& found,
                    Fingerprint sum) const;

  const Options options_;
  const EngineCaps caps_;
  const std::vector<int32_t> model_stop_ids_;
  std::shared_ptr<const TensorSet> weights_;
  const std::unique_ptr<DecodeModel> model_;
  PolicyVersion version_;
  Fingerprint held_;
  Scheduler scheduler_;
  absl::flat_hash_map<uint64_t, std::unique_ptr<Live>> live_;
  const Tokenizer* tokenizer_ = nullptr;
  EngineStats stats_;
  double schedule_seconds_ = 0;

  // Reused by every step.
  std::vector<DecodeModel::Row> rows_;
  std::vector<absl::Span<const int32_t>> tables_;  // By row of the plan.
  std::vector<float> logits_;                      // [rows that sample or are scored, V]
  std::vector<Sampling> sampling_;
  std::vector<Scored> scored_;
  std::vector<SampleRow> sample_rows_;
  // [sampling rows, V], where a request wants its kept sets.
  std::vector<int32_t> kept_;
  std::vector<SampleDraw> draws_;
  std::vector<Scheduler::Drawn> drawn_;
};

}  // namespace sluice
