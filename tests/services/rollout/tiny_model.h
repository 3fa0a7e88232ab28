#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "common/checkpoint/init.h"
#include "common/checkpoint/model_config.h"
#include "common/models/decode_model.h"
#include "common/weights/fingerprint.h"
#include "common/weights/staged.h"
#include "services/rollout/core/engine/native/native_engine.h"

namespace sluice {

// A small Qwen3 whose weights are large enough that its distributions are far from uniform.
inline ModelConfig TinyConfig() {
  ModelConfig config;
  config.architecture = "Qwen3ForCausalLM";
  config.vocab_size = 40;
  config.hidden_size = 32;
  config.intermediate_size = 48;
  config.num_layers = 2;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 8;
  config.max_context = 256;
  config.tie_word_embeddings = true;
  config.qk_norm = true;
  config.initializer_range = 0.3;
  return config;
}

inline TensorSet TinyWeights(uint64_t seed) { return *InitWeights(TinyConfig(), seed); }

inline StagedWeights Stage(uint64_t seed, PolicyVersion version) {
  auto tensors = std::make_shared<const TensorSet>(TinyWeights(seed));
  StagedWeights staged;
  staged.version = version;
  staged.state = FingerprintOf(*tensors);
  staged.tensors = std::move(tensors);
  return staged;
}

inline std::unique_ptr<NativeEngine> TinyEngine(uint64_t seed,
                                                NativeEngine::Options options = {.slots = 8},
                                                std::vector<int32_t> stop_ids = {}) {
  return *NativeEngine::Create(TinyConfig(), TinyWeights(seed), {1, 0}, std::move(stop_ids),
                               options);
}

// The logits after each of `tokens` under the weights of `seed`, computed in one step.
inline std::vector<float> LogitsUnder(uint64_t seed, const std::vector<int32_t>& tokens) {
  const ModelConfig config = TinyConfig();
  const TensorSet weights = TinyWeights(seed);
  auto model =
      *DecodeModel::Create(config, &weights, {.blocks = 8, .max_context = 256, .threads = 1});
  std::vector<DecodeModel::Row> rows;
  for (size_t i = 0; i < tokens.size(); ++i)
    rows.push_back(
        {.table = 0, .position = static_cast<int32_t>(i), .token = tokens[i], .want_logits = true});
  std::vector<float> logits(tokens.size() * static_cast<size_t>(config.vocab_size));
  model->Step(rows, {{0, 1, 2, 3, 4, 5, 6, 7}}, logits.data());
  return logits;
}

inline std::vector<int32_t> TokensOf(const std::vector<TokenEvent>& events) {
  std::vector<int32_t> tokens;
  for (const TokenEvent& event : events) tokens.push_back(event.token);
  return tokens;
}

inline std::shared_ptr<const std::vector<int32_t>> Prompt(std::vector<int32_t> tokens) {
  return std::make_shared<const std::vector<int32_t>>(std::move(tokens));
}

}  // namespace sluice
