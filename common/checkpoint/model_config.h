#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/checkpoint/tensor_set.h"

namespace sluice {

// Rotary position embedding. Angle of pair i at position p: p * f_i, with f_i = theta^(-2i /
// head_dim) for kDefault, divided by `factor` for kLinear.
struct RopeConfig {
  enum class Type { kDefault, kLinear, kLlama3 };

  Type type = Type::kDefault;
  double theta = 10000;
  // kLlama3 (Llama 3.1): frequencies whose wavelength passes original_context / low_freq_factor are
  // divided by `factor`, those below original_context / high_freq_factor stay, those between are
  // mixed.
  double factor = 1, low_freq_factor = 1, high_freq_factor = 4;
  int64_t original_context = 0;  // In tokens.

  // The head_dim / 2 frequencies in radians per token, fp32 as transformers computes them.
  std::vector<float> Frequencies(int64_t head_dim) const;
};

// A decoder-only transformer, as a Hugging Face config.json describes it: RMSNorm, rotary
// positions, grouped-query attention, SwiGLU. The architectures differ in flags alone.
struct ModelConfig {
  std::string architecture;  // "Qwen3ForCausalLM".
  int64_t vocab_size = 0, hidden_size = 0, intermediate_size = 0, num_layers = 0;
  // head_dim need not be hidden_size / num_heads.
  int64_t num_heads = 0, num_kv_heads = 0, head_dim = 0;
  int64_t max_context = 0;  // max_position_embeddings, in tokens.
  double rms_norm_eps = 1e-6;
  // The output head is model.embed_tokens.weight; there is no lm_head.weight.
  bool tie_word_embeddings = false;
  // RMSNorm over each head of q and k, before the rotation (Qwen3).
  bool qk_norm = false;
  bool qkv_bias = false;  // q, k and v have a bias (Qwen2, or `attention_bias`).
  bool o_bias = false;    // So has what follows attention (`attention_bias`).
  bool mlp_bias = false;  // gate, up and down have a bias (Llama).
  // A position sees itself and the window - 1 before it (Mistral). 0: all before it.
  int64_t sliding_window = 0;
  // With num_experts > 0 the MLP of a layer is that many small ones of width expert_size, of which
  // each token goes through the experts_per_token that its router finds likeliest (Qwen3-MoE);
  // intermediate_size says nothing then.
  int64_t num_experts = 0, experts_per_token = 0, expert_size = 0;
  bool norm_topk_prob = false;  // The weights of a token's experts are scaled to a sum of 1.
  RopeConfig rope;
  double initializer_range = 0.02;  // Standard deviation of a random start.
  // `dtype` or `torch_dtype`: what the stored weights are said to be.
  DType dtype = DType::kF32;

  // config.json's own; generation_config.json overrides it (ModelDir::stop_ids).
  std::vector<int32_t> eos_ids;
  std::vector<std::string> ignored;  // Keys left unread that a person should know of: auto_map.

  // Every parameter, by its Hugging Face name, sorted by it.
  std::vector<TensorSpec> Parameters(DType dtype) const;
  int64_t NumParameters() const;
};

// Reads a config.json (at most 1 MiB, 32 deep). Strict: a key is used, known to change nothing, or
// null or false; any other is an error that names the key, its value and the nearest known one.
// Both spellings are read (torch_dtype / dtype, rope_theta and rope_scaling / rope_parameters).
//
// INVALID_ARGUMENT: malformed, or a value out of range. UNIMPLEMENTED: an architecture, rope type,
// activation or quantisation that Sluice does not run; the message lists what it does. `path`
// serves messages only.
absl::StatusOr<ModelConfig> ParseModelConfig(absl::string_view json, absl::string_view path);

}  // namespace sluice
