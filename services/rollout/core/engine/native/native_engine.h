#pragma once

#include <cstdint>
#include <memory>
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

// The engine of this tree: Scheduler, DecodeModel and the sampler, on the CPU. A request holds a KV slot, a fixed run of
// blocks.
//
// Holds the weights as one TensorSet at fixed addresses, a second set of the same size to put them back from, and the model's
// packed copy. V vocabulary.
class NativeEngine : public Engine {
 public:
  struct Options {
    uint32_t slots = 256;
    uint32_t max_context = 0;          // Tokens per slot; 0: the model's own limit.
    uint32_t max_batch_tokens = 2048;  // Computed per step; raised to `slots`.
    uint32_t aging_steps = 1000;
    int threads = 1;
  };

  // `weights`: the parameters of `config`, of version `version`. `stop_ids`: the model's end tokens.
  static absl::StatusOr<std::unique_ptr<NativeEngine>> Create(const ModelConfig& config, TensorSet weights, PolicyVersion version,
                                                              std::vector<int32_t> stop_ids, const Options& options);

  const EngineCaps& caps() const override { return caps_; }
  uint32_t slots() const override { return options_.slots; }
  uint32_t max_context() const override { return options_.max_context; }
  void UseTokenizer(const Tokenizer* tokenizer) override { tokenizer_ = tokenizer; }
  absl::Status AddRequest(Request request) override;
  absl::StatusOr<StepEvents> Step() override;
  void Abort(uint64_t request, AbortReason reason) override;
  absl::StatusOr<Activation> ActivateWeights(const StagedWeights& staged, KvPolicy kv) override;
  PolicyVersion version() const override { return version_; }
  bool idle() const override { return live_.empty(); }
  EngineStats Stats() const override;

  Fingerprint fingerprint() const { return held_; }       // Of the weights held, as last recomputed over them.
  const TensorSet& weights() const { return *weights_; }
  uint64_t plan_digest() const { return scheduler_.digest(); }

 private:
  struct Live {
    std::vector<int32_t> tokens;  // Prompt, then answer.
    uint32_t prompt = 0;
    uint32_t end = 0;             // Tokens at which the answer is as long as it may get.
    SamplingParams sampling;
    std::vector<int32_t> stop_ids;  // All that end this request.
    uint64_t seed = 0;
    uint32_t member = 0;
  };

  NativeEngine(Options options, PolicyVersion version, std::vector<int32_t> stop_ids, std::unique_ptr<TensorSet> weights,
               std::unique_ptr<DecodeModel> model);
  absl::Status Check(const Request& request) const;
  void Compute(const SchedulerPlan& plan);
  void Draw();
  Activation Refuse(const StagedWeights& staged, const std::vector<Fingerprint>& found, Fingerprint sum) const;

  const Options options_;
  const EngineCaps caps_;
  const std::vector<int32_t> model_stop_ids_;
  const std::unique_ptr<TensorSet> weights_;
  const std::unique_ptr<DecodeModel> model_;
  Scheduler scheduler_;
  std::vector<int32_t> blocks_;                      // Of the slots, one after another.
  std::vector<absl::Span<const int32_t>> tables_;    // By slot.
  absl::flat_hash_map<uint64_t, Live> live_;
  const Tokenizer* tokenizer_ = nullptr;
  PolicyVersion version_;
  Fingerprint held_;
  EngineStats stats_;

  // Reused by every step.
  std::vector<DecodeModel::Row> rows_;
  std::vector<float> logits_;              // [sampling rows, V]
  std::vector<SampleRow> sample_rows_;
  std::vector<SampleDraw> draws_;
  std::vector<const SchedulerPlan::Row*> sampling_;
  std::vector<uint64_t> ended_;
  TensorSet previous_;                     // Made at the first activation.
};

}  // namespace sluice
