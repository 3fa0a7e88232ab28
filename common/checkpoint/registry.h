#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace sluice {

// One supported architecture: where it differs from the common decoder, and the defaults of keys
// that published configs leave out. The defaults are those of the configuration class in
// transformers.
struct Architecture {
  absl::string_view name;        // The value in `architectures`.
  absl::string_view model_type;  // The value of `model_type`.
  bool qk_norm;
  bool qkv_bias;            // q, k and v have a bias, whatever the config says.
  bool attention_bias_key;  // The key `attention_bias` is read; it gives q, k, v and o a bias.
  // Window of attention if the key `sliding_window` is absent; 0 if the architecture has no such
  // key.
  int64_t default_window;
  int64_t default_head_dim;  // 0 means hidden_size / num_attention_heads.
  int64_t default_kv_heads;  // 0 means num_attention_heads.
  bool mlp_bias_key;         // The key `mlp_bias` is read; it gives gate, up and down a bias.
  bool experts;              // Its MLPs are mixtures of experts.
};

// Returns all supported architectures.
absl::Span<const Architecture> Architectures();
// Returns null if the architecture is not supported.
const Architecture* FindArchitecture(absl::string_view name);
// "LlamaForCausalLM, Qwen3ForCausalLM, ..", for messages.
std::string ArchitectureNames();

}  // namespace sluice
