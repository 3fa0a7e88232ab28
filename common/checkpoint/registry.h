#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace sluice {

// What an architecture's name in config.json stands for: where it departs from the common decoder,
// and the defaults of the keys its published configs leave out (those of its configuration class in
// transformers).
struct Architecture {
  absl::string_view name;        // In `architectures`.
  absl::string_view model_type;  // In `model_type`.
  bool qk_norm;
  bool qkv_bias;            // Whatever the config says.
  bool attention_bias_key;  // The key `attention_bias` gives q, k, v and o a bias.
  // Positions that attention sees where the key `sliding_window` is absent; 0: it has no such key.
  int64_t default_window;
  int64_t default_head_dim;  // 0: hidden_size / num_attention_heads.
  int64_t default_kv_heads;  // 0: num_attention_heads.
  bool mlp_bias_key;         // The key `mlp_bias` gives gate, up and down one.
  bool experts;              // Its MLPs are mixtures of experts.
};

// All that Sluice runs.
absl::Span<const Architecture> Architectures();
// Null: not one of them.
const Architecture* FindArchitecture(absl::string_view name);
// "LlamaForCausalLM, Qwen3ForCausalLM, ..", for messages.
std::string ArchitectureNames();

}  // namespace sluice
