#include "common/checkpoint/registry.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace sluice {
namespace {

constexpr Architecture kArchitectures[] = {
    {.name = "LlamaForCausalLM",
     .model_type = "llama",
     .qk_norm = false,
     .qkv_bias = false,
     .attention_bias_key = true,
     .default_window = 0,
     .default_head_dim = 0,
     .default_kv_heads = 0,
     .mlp_bias_key = true,
     .experts = false},
    {.name = "MistralForCausalLM",
     .model_type = "mistral",
     .qk_norm = false,
     .qkv_bias = false,
     .attention_bias_key = false,
     .default_window = 4096,
     .default_head_dim = 0,
     .default_kv_heads = 8,
     .mlp_bias_key = false,
     .experts = false},
    {.name = "Qwen2ForCausalLM",
     .model_type = "qwen2",
     .qk_norm = false,
     .qkv_bias = true,
     .attention_bias_key = false,
     .default_window = 0,
     .default_head_dim = 0,
     .default_kv_heads = 32,
     .mlp_bias_key = false,
     .experts = false},
    {.name = "Qwen3ForCausalLM",
     .model_type = "qwen3",
     .qk_norm = true,
     .qkv_bias = false,
     .attention_bias_key = true,
     .default_window = 0,
     .default_head_dim = 128,
     .default_kv_heads = 32,
     .mlp_bias_key = false,
     .experts = false},
    {.name = "Qwen3MoeForCausalLM",
     .model_type = "qwen3_moe",
     .qk_norm = true,
     .qkv_bias = false,
     .attention_bias_key = true,
     .default_window = 0,
     .default_head_dim = 0,
     .default_kv_heads = 4,
     .mlp_bias_key = false,
     .experts = true},
};

}  // namespace

absl::Span<const Architecture> Architectures() { return kArchitectures; }

const Architecture* FindArchitecture(absl::string_view name) {
  for (const Architecture& row : kArchitectures) {
    if (row.name == name) return &row;
  }
  return nullptr;
}

std::string ArchitectureNames() {
  return absl::StrJoin(kArchitectures, ", ", [](std::string* out, const Architecture& row) {
    absl::StrAppend(out, row.name);
  });
}

}  // namespace sluice
