#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/checkpoint/tensor_set.h"

namespace sluice {

// Rotary position embedding. Pair i of a head (of head_dim / 2 pairs) is rotated by the angle p *
// f_i at position p, with f_i = theta^(-2i / head_dim) for kDefault, and that divided by `factor`
// for kLinear.
struct RopeConfig {
  enum class Type { kDefault, kLinear, kLlama3 };

  Type type = Type::kDefault;
  double theta = 10000;
  // kLlama3 (Llama 3.1): a frequency with a wavelength above original_context / low_freq_factor is
  // divided by `factor`. One with a wavelength below original_context / high_freq_factor is kept.
  // In between, the two values are mixed.
  double factor = 1, low_freq_factor = 1, high_freq_factor = 4;
  int64_t original_context = 0;  // In tokens.

  // Returns the head_dim / 2 frequencies f_i in radians per token, computed in fp32 like
  // transformers.
  std::vector<float> Frequencies(int64_t head_dim) const;
};

// A decoder-only transformer as a Hugging Face config.json describes it: RMSNorm, rotary positions,
// grouped-query attention, SwiGLU. The supported architectures differ only in these fields.
struct ModelConfig {
  std::string architecture;  // For example "Qwen3ForCausalLM".
  int64_t vocab_size = 0, hidden_size = 0, intermediate_size = 0, num_layers = 0;
  // head_dim may differ from hidden_size / num_heads.
  int64_t num_heads = 0, num_kv_heads = 0, head_dim = 0;
  int64_t max_context = 0;  // max_position_embeddings, in tokens.
  double rms_norm_eps = 1e-6;
  // True: model.embed_tokens.weight is also the output head, and there is no lm_head.weight.
  bool tie_word_embeddings = false;
  // RMSNorm over each head of q and k, before the rotation (Qwen3).
  bool qk_norm = false;
  bool qkv_bias = false;  // q, k and v have a bias (Qwen2, or the key `attention_bias`).
  bool o_bias = false;    // The output projection o has one too (`attention_bias`).
  bool mlp_bias = false;  // gate, up and down have a bias (Llama).
  // Number of positions that a position attends to, itself included (Mistral); 0 means itself and
  // all before it.
  int64_t sliding_window = 0;
  // Mixture of experts (Qwen3-MoE). With num_experts > 0, each layer has that many MLPs of width
  // expert_size, and a token goes through the experts_per_token that the router gives the highest
  // probability; intermediate_size is then unused.
  int64_t num_experts = 0, experts_per_token = 0, expert_size = 0;
  bool norm_topk_prob = false;  // The weights of a token's experts are scaled to the sum 1.
  RopeConfig rope;
  double initializer_range = 0.02;  // Standard deviation of random weights.
  // The keys `dtype` or `torch_dtype`: the declared type of the stored weights.
  DType dtype = DType::kF32;

  // The end tokens in config.json; generation_config.json overrides them (ModelDir::stop_ids).
  std::vector<int32_t> eos_ids;
  std::vector<std::string> ignored;  // Keys that were ignored but may matter to the user: auto_map.

  // Returns all parameters by their Hugging Face names, sorted by name.
  std::vector<TensorSpec> Parameters(DType dtype) const;
  int64_t NumParameters() const;
};

// Parses a config.json (at most 1 MiB, nested at most 32 deep). It is strict: each key must be
// used, or be known to have no effect, or be null or false. For any other key the error names the
// key, its value and the nearest known key. Old and new spellings are read (torch_dtype / dtype,
// rope_theta and rope_scaling / rope_parameters). `path` is used in messages only.
//
// INVALID_ARGUMENT: the file is malformed, or a value is out of range.
// UNIMPLEMENTED: Sluice does not support the architecture, rope type, activation or quantisation;
// the message lists what it supports.
absl::StatusOr<ModelConfig> ParseModelConfig(absl::string_view json, absl::string_view path);

}  // namespace sluice
