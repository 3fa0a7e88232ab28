#include "common/checkpoint/critic.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/base/status.h"
#include "common/checkpoint/teacher.h"

namespace sluice {
namespace {

// What decides the computation below the output head, by its name in config.json.
std::vector<std::pair<const char*, double>> NumbersOf(const ModelConfig& config) {
  const RopeConfig& rope = config.rope;
  const auto number = [](auto value) { return static_cast<double>(value); };
  return {{"vocab_size", number(config.vocab_size)},
          {"hidden_size", number(config.hidden_size)},
          {"intermediate_size", config.num_experts > 0 ? 0 : number(config.intermediate_size)},
          {"num_hidden_layers", number(config.num_layers)},
          {"num_attention_heads", number(config.num_heads)},
          {"num_key_value_heads", number(config.num_kv_heads)},
          {"head_dim", number(config.head_dim)},
          {"rms_norm_eps", config.rms_norm_eps},
          {"a norm of queries and keys", number(config.qk_norm)},
          {"attention_bias", number(config.qkv_bias)},
          {"attention_bias of the output", number(config.o_bias)},
          {"mlp_bias", number(config.mlp_bias)},
          {"sliding_window", number(config.sliding_window)},
          {"num_experts", number(config.num_experts)},
          {"num_experts_per_tok", number(config.experts_per_token)},
          {"moe_intermediate_size", number(config.expert_size)},
          {"norm_topk_prob", number(config.norm_topk_prob)},
          {"the type of rope_scaling", number(static_cast<int>(rope.type))},
          {"rope_theta", rope.theta},
          {"the factor of rope_scaling", rope.factor},
          {"low_freq_factor", rope.low_freq_factor},
          {"high_freq_factor", rope.high_freq_factor},
          {"original_max_position_embeddings", number(rope.original_context)}};
}

}  // namespace

absl::Status CheckCritic(const ModelDir& policy, const ModelDir& critic) {
  for (const char* name : {"/critic.safetensors", "/critic.safetensors.index.json"}) {
    if (!PathExists(critic.path + name)) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        critic.path,
        " is the checkpoint of a job with a critic, which is in critic.safetensors: "
        "a critic that began with this directory would have the weights of that job's policy. "
        "Name a directory of Hugging Face's form that holds the critic; if the policy is meant, "
        "name an export of the checkpoint (`sluice job export`)"));
  }
  const auto ours = NumbersOf(policy.config), theirs = NumbersOf(critic.config);
  for (size_t i = 0; i < ours.size(); ++i) {
    if (ours[i].second == theirs[i].second) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("the critic ", critic.path, " has ", theirs[i].first, " ", theirs[i].second,
                     ", but the model ", policy.path, " has ", ours[i].second,
                     "; a critic has the policy's shape"));
  }
  return CheckSameTokenizer("critic", policy, critic);
}

}  // namespace sluice
