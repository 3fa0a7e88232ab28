#include "common/checkpoint/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "nlohmann/json.hpp"

namespace sluice {
namespace {

using Json = nlohmann::json;
using testing::HasSubstr;

Json Qwen3() {
  return Json::parse(
      R"({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 64, )"
      R"("hidden_size": 64,
      "intermediate_size": 192, "num_hidden_layers": 2, "num_attention_heads": 4, )"
      R"("num_key_value_heads": 2, "head_dim": 32,
      "max_position_embeddings": 128, "tie_word_embeddings": true, "hidden_act": "silu", )"
      R"("sliding_window": 4096,
      "use_sliding_window": false, "max_window_layers": 28, "rope_theta": 1e6, )"
      R"("torch_dtype": "bfloat16", "eos_token_id": [2, 5]})");
}

Json With(Json json, const std::string& key, Json value) {
  json[key] = std::move(value);
  return json;
}
Json Without(Json json, const std::string& key) {
  json.erase(key);
  return json;
}

std::string Refusal(const Json& json, absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
  const absl::Status status = ParseModelConfig(json.dump(), "config.json").status();
  EXPECT_EQ(status.code(), code) << status;
  return std::string(status.message());
}
std::string Unsupported(const Json& json) {
  return Refusal(json, absl::StatusCode::kUnimplemented);
}

TEST(ModelConfigTest, BothSpellingsReadAlike) {
  // transformers 5 writes dtype and rope_parameters in place of torch_dtype and rope_theta.
  Json newer = Without(Without(Qwen3(), "rope_theta"), "torch_dtype");
  newer["dtype"] = "bfloat16";
  newer["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 1e6}};

  for (const Json& json : {Qwen3(), newer}) {
    const auto config = ParseModelConfig(json.dump(), "config.json");
    ASSERT_TRUE(config.ok()) << config.status();

    EXPECT_EQ(config->head_dim, 32);
    EXPECT_TRUE(config->qk_norm);
    EXPECT_TRUE(config->tie_word_embeddings);
    EXPECT_EQ(config->rope.theta, 1e6);
    EXPECT_EQ(config->dtype, DType::kBF16);
    EXPECT_THAT(config->eos_ids, testing::ElementsAre(2, 5));
  }
}

TEST(ModelConfigTest, AbsentKeysHaveTheDefaultsOfTheirArchitecture) {
  const Json bare =
      Without(Without(With(Qwen3(), "num_attention_heads", 32), "head_dim"), "num_key_value_heads");
  EXPECT_EQ(ParseModelConfig(bare.dump(), "")->head_dim, 128);
  EXPECT_EQ(ParseModelConfig(bare.dump(), "")->num_kv_heads, 32);

  const Json llama = {{"architectures", {"LlamaForCausalLM"}},
                      {"vocab_size", 64},
                      {"hidden_size", 64},
                      {"intermediate_size", 96},
                      {"num_hidden_layers", 1},
                      {"num_attention_heads", 4},
                      {"max_position_embeddings", 128}};
  const auto config = ParseModelConfig(llama.dump(), "");
  ASSERT_TRUE(config.ok()) << config.status();

  EXPECT_EQ(config->head_dim, 16);
  EXPECT_EQ(config->num_kv_heads, 4);
  EXPECT_FALSE(config->qk_norm);
  EXPECT_FALSE(config->tie_word_embeddings);
  EXPECT_EQ(config->rope.theta, 10000);
  EXPECT_THAT(Refusal(With(llama, "sliding_window", 128)), HasSubstr("unknown key sliding_window"));
}

TEST(ModelConfigTest, ParametersHaveHuggingFaceNamesAndATiedHeadOccursOnce) {
  const ModelConfig tied = *ParseModelConfig(Qwen3().dump(), "");
  const ModelConfig untied =
      *ParseModelConfig(With(Qwen3(), "tie_word_embeddings", false).dump(), "");

  EXPECT_EQ(tied.Parameters(DType::kF32).size(), 2u + 2 * 11);
  EXPECT_EQ(untied.NumParameters() - tied.NumParameters(), 64 * 64);

  const auto has = [](const ModelConfig& config, const TensorSpec& spec) {
    const auto all = config.Parameters(DType::kBF16);
    return std::find(all.begin(), all.end(), spec) != all.end();
  };

  EXPECT_TRUE(has(tied, {"model.layers.1.self_attn.q_norm.weight", DType::kBF16, {32}}));
  EXPECT_TRUE(has(tied, {"model.layers.0.self_attn.o_proj.weight", DType::kBF16, {64, 128}}));
  EXPECT_FALSE(has(tied, {"lm_head.weight", DType::kBF16, {64, 64}}));
  EXPECT_TRUE(has(untied, {"lm_head.weight", DType::kBF16, {64, 64}}));
}

TEST(ModelConfigTest, AnUnknownKeyIsAnErrorWithItsValueAndTheNearestKey) {
  EXPECT_EQ(Refusal(With(Qwen3(), "hidden_sise", 64)),
            "config.json: unknown key hidden_sise (its value: 64); did you mean hidden_size?");
  EXPECT_EQ(Refusal(With(Qwen3(), "frobnication_level", "high")),
            "config.json: unknown key frobnication_level (its value: \"high\")");
  EXPECT_THAT(Refusal(With(Qwen3(), "rope_scaling", {{"rope_type", "default"}, {"facter", 2}})),
              HasSubstr("rope_scaling: unknown key facter"));
  EXPECT_TRUE(ParseModelConfig(
                  With(With(Qwen3(), "some_feature", false), "other_feature", nullptr).dump(), "")
                  .ok());
}

TEST(ModelConfigTest, WrongValuesAreNamedWithWhatIsNeeded) {
  EXPECT_EQ(Refusal(With(Qwen3(), "hidden_size", "64")),
            "config.json: hidden_size is \"64\"; it must be an integer");
  EXPECT_EQ(Refusal(With(Qwen3(), "hidden_size", 64.0)),
            "config.json: hidden_size is 64.0; it must be an integer");
  EXPECT_EQ(Refusal(With(Qwen3(), "hidden_size", 0)),
            "config.json: hidden_size is 0; it must be an integer in [1, 16777216]");
  EXPECT_THAT(Refusal(With(Qwen3(), "hidden_size", uint64_t{1} << 63)),
              HasSubstr("hidden_size is 9223372036854775808"));
  EXPECT_EQ(Refusal(Without(Qwen3(), "vocab_size")), "config.json: has no vocab_size");
  EXPECT_THAT(Refusal(With(Qwen3(), "num_key_value_heads", 3)),
              HasSubstr("num_attention_heads 4 is not a multiple of num_key_value_heads 3"));
  EXPECT_THAT(Refusal(With(Qwen3(), "head_dim", 15)),
              HasSubstr("head_dim 15 is not a positive even number"));
  EXPECT_THAT(Refusal(With(Qwen3(), "rms_norm_eps", -1)), HasSubstr("rms_norm_eps is -1"));
  EXPECT_THAT(Refusal(With(Qwen3(), "tie_word_embeddings", 1)),
              HasSubstr("it must be true or false"));
  EXPECT_THAT(Refusal(With(Qwen3(), "torch_dtype", "int8")),
              HasSubstr("it must be float32, float16 or bfloat16"));
  EXPECT_THAT(Refusal(With(Qwen3(), "eos_token_id", "</s>")),
              HasSubstr("it must be a token id or a list"));
}

TEST(ModelConfigTest, WhatSluiceDoesNotRunIsRefusedByName) {
  EXPECT_THAT(
      Unsupported(With(Qwen3(), "architectures", {"MixtralForCausalLM"})),
      HasSubstr(
          "architecture \"MixtralForCausalLM\" is not supported; Sluice supports LlamaForCausalLM, "
          "MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, Qwen3MoeForCausalLM"));
  EXPECT_THAT(Refusal(Without(Qwen3(), "architectures")), HasSubstr("architectures is absent"));
  EXPECT_THAT(Unsupported(With(Qwen3(), "model_type", "llama")),
              HasSubstr("model_type \"llama\" is not supported, only \"qwen3\""));
  EXPECT_THAT(Unsupported(With(Qwen3(), "rope_scaling", {{"type", "yarn"}, {"factor", 4}})),
              HasSubstr("rope type \"yarn\" is not supported"));
  EXPECT_THAT(Unsupported(With(Qwen3(), "hidden_act", "gelu")), HasSubstr("hidden_act \"gelu\""));
  EXPECT_THAT(Unsupported(With(Qwen3(), "use_sliding_window", true)),
              HasSubstr("use_sliding_window true"));
  EXPECT_THAT(Unsupported(With(Qwen3(), "layer_types", {"full_attention", "sliding_attention"})),
              HasSubstr("layer_types"));
  EXPECT_THAT(Unsupported(With(Qwen3(), "quantization_config", {{"quant_method", "gptq"}})),
              HasSubstr("quantization_config"));
}

bool HasParameter(const ModelConfig& config, const std::string& name) {
  const auto all = config.Parameters(DType::kF32);
  return std::any_of(all.begin(), all.end(),
                     [&](const TensorSpec& spec) { return spec.name == name; });
}

TEST(ModelConfigTest, BiasesAreThoseThatTheArchitectureKnows) {
  const ModelConfig qwen3 = *ParseModelConfig(With(Qwen3(), "attention_bias", true).dump(), "");
  EXPECT_TRUE(qwen3.qkv_bias && qwen3.o_bias && !qwen3.mlp_bias);
  EXPECT_TRUE(HasParameter(qwen3, "model.layers.1.self_attn.o_proj.bias"));

  Json llama = Without(Without(Without(Qwen3(), "use_sliding_window"), "max_window_layers"),
                       "sliding_window");
  llama["architectures"] = {"LlamaForCausalLM"}, llama["model_type"] = "llama",
  llama["mlp_bias"] = true;
  const ModelConfig config = *ParseModelConfig(llama.dump(), "");

  EXPECT_TRUE(!config.qkv_bias && !config.o_bias && config.mlp_bias);
  EXPECT_TRUE(HasParameter(config, "model.layers.0.mlp.down_proj.bias"));
  EXPECT_THAT(Refusal(With(Qwen3(), "mlp_bias", true)), HasSubstr("unknown key mlp_bias"));

  Json mistral = With(Without(llama, "mlp_bias"), "attention_bias", true);
  mistral["architectures"] = {"MistralForCausalLM"}, mistral["model_type"] = "mistral";
  EXPECT_THAT(Unsupported(mistral), HasSubstr("attention_bias true is not supported, only false"));
}

TEST(ModelConfigTest, AMixtureOfExpertsIsReadWithTheDefaultsOfTransformers) {
  Json json =
      With(With(Qwen3(), "architectures", {"Qwen3MoeForCausalLM"}), "model_type", "qwen3_moe");
  const ModelConfig bare = *ParseModelConfig(json.dump(), "");

  EXPECT_EQ(bare.num_experts, 128);
  EXPECT_EQ(bare.experts_per_token, 8);
  EXPECT_EQ(bare.expert_size, 768);
  EXPECT_FALSE(bare.norm_topk_prob);

  json["num_experts"] = 4, json["num_experts_per_tok"] = 2, json["moe_intermediate_size"] = 24,
  json["norm_topk_prob"] = true;
  json["decoder_sparse_step"] = 1, json["mlp_only_layers"] = Json::array(),
  json["output_router_logits"] = false, json["router_aux_loss_coef"] = 0.001;
  const ModelConfig config = *ParseModelConfig(json.dump(), "");

  EXPECT_TRUE(config.norm_topk_prob);
  EXPECT_TRUE(HasParameter(config, "model.layers.0.mlp.gate.weight"));
  EXPECT_TRUE(HasParameter(config, "model.layers.0.mlp.experts.3.down_proj.weight"));
  EXPECT_FALSE(HasParameter(config, "model.layers.0.mlp.experts.4.down_proj.weight"));
  EXPECT_FALSE(HasParameter(config, "model.layers.0.mlp.down_proj.weight"));
  EXPECT_THAT(Refusal(With(json, "num_experts_per_tok", 5)),
              HasSubstr("num_experts_per_tok 5 is above num_experts 4"));
  EXPECT_THAT(Refusal(With(json, "num_experts", 65535)),
              HasSubstr("experts are more than 65536 in all"));
  EXPECT_THAT(Unsupported(With(json, "decoder_sparse_step", 2)),
              HasSubstr("decoder_sparse_step 2 is not supported, only 1"));
  EXPECT_THAT(Unsupported(With(json, "mlp_only_layers", Json::array({0}))),
              HasSubstr("mlp_only_layers"));
}

TEST(ModelConfigTest, TheNumberOfExpertsHasTwoNamesThatMustAgree) {
  const Json bare =
      With(With(Qwen3(), "architectures", {"Qwen3MoeForCausalLM"}), "model_type", "qwen3_moe");
  // transformers 5 saves a config in this form.
  const Json json = With(With(bare, "num_experts_per_tok", 2), "num_local_experts", 6);

  EXPECT_EQ(ParseModelConfig(json.dump(), "")->num_experts, 6);
  EXPECT_EQ(ParseModelConfig(With(json, "num_experts", 6).dump(), "")->num_experts, 6);
  EXPECT_THAT(Refusal(With(json, "num_experts", 8)),
              HasSubstr("num_experts 8 and num_local_experts 6"));
  EXPECT_THAT(Refusal(With(json, "num_local_experts", 0)), HasSubstr("num_local_experts is 0"));
  EXPECT_THAT(Refusal(With(Qwen3(), "num_local_experts", 6)),
              HasSubstr("unknown key num_local_experts"));
}

TEST(ModelConfigTest, KeysThatChangeNothingAreReadPast) {
  Json json = Qwen3();
  json["_attn_implementation_autoset"] = true, json["unsloth_fixed"] = true,
  json["unsloth_version"] = "2025.3.19";
  json["chunk_size_feed_forward"] = 0, json["model_max_length"] = 4096,
  json["pruned_heads"] = Json::object();
  json["id2label"] = {{"0", "LABEL_0"}}, json["return_dict"] = true, json["temperature"] = 0.7,
  json["is_llama_config"] = true;
  const auto config = ParseModelConfig(json.dump(), "config.json");
  ASSERT_TRUE(config.ok()) << config.status();

  EXPECT_EQ(config->max_context, ParseModelConfig(Qwen3().dump(), "")->max_context);
  EXPECT_THAT(Unsupported(With(Qwen3(), "pruned_heads", {{"0", {1}}})), HasSubstr("pruned_heads"));
}

TEST(ModelConfigTest, MistralHasAWindowUnlessItIsNull) {
  const Json mistral =
      With(With(Without(Without(Without(Without(Qwen3(), "head_dim"), "use_sliding_window"),
                                "max_window_layers"),
                        "sliding_window"),
                "architectures", {"MistralForCausalLM"}),
           "model_type", "mistral");
  const auto window = [](const Json& json) {
    const auto config = ParseModelConfig(json.dump(), "config.json");
    EXPECT_TRUE(config.ok()) << config.status();
    return config.ok() ? config->sliding_window : -1;
  };

  EXPECT_EQ(window(mistral), 4096);  // The default of its configuration class.
  EXPECT_EQ(window(With(mistral, "sliding_window", 20)), 20);
  EXPECT_EQ(window(With(mistral, "sliding_window", nullptr)), 0);
  EXPECT_EQ(window(Qwen3()), 0);
  EXPECT_THAT(Refusal(With(mistral, "sliding_window", 0)), HasSubstr("sliding_window is 0"));

  const auto wide = ParseModelConfig(With(mistral, "head_dim", 24).dump(), "config.json");
  EXPECT_EQ(wide->head_dim, 24);
}

TEST(ModelConfigTest, Qwen2HasBiasesOnQueriesKeysAndValuesAlone) {
  const Json json = With(With(Without(Qwen3(), "head_dim"), "architectures", {"Qwen2ForCausalLM"}),
                         "model_type", "qwen2");
  const auto config = ParseModelConfig(json.dump(), "config.json");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->head_dim, 16);

  int biases = 0;
  for (const TensorSpec& spec : config->Parameters(DType::kF32))
    biases += spec.name.ends_with(".bias");

  EXPECT_EQ(biases, 3 * config->num_layers);
}

TEST(ModelConfigTest, RemoteCodeIsIgnoredAndReported) {
  const auto config =
      ParseModelConfig(With(Qwen3(), "auto_map", {{"AutoModel", "x.Y"}}).dump(), "");
  ASSERT_TRUE(config.ok());
  EXPECT_THAT(config->ignored, testing::ElementsAre("auto_map"));
}

TEST(ModelConfigTest, HugeOrDeepOrBrokenTextIsRefused) {
  EXPECT_THAT(
      std::string(ParseModelConfig(std::string((1 << 20) + 1, ' '), "c").status().message()),
      HasSubstr("the limit is 1048576"));
  EXPECT_THAT(std::string(ParseModelConfig(std::string(100000, '['), "c").status().message()),
              HasSubstr("nested deeper than 32"));
  EXPECT_THAT(std::string(ParseModelConfig("{\"a\":\n 1,}", "c").status().message()),
              HasSubstr("line 2, column"));
}

TEST(RopeTest, LinearSlowsAllWaves) {
  const RopeConfig rope{.type = RopeConfig::Type::kLinear, .factor = 4}, plain;
  for (size_t i = 0; i < 16; ++i) EXPECT_EQ(rope.Frequencies(32)[i], plain.Frequencies(32)[i] / 4);
}

TEST(RopeTest, Llama3SlowsLongWavesAndLeavesShortOnes) {
  RopeConfig rope{.type = RopeConfig::Type::kLlama3,
                  .theta = 5e5,
                  .factor = 8,
                  .low_freq_factor = 1,
                  .high_freq_factor = 4,
                  .original_context = 8192};
  RopeConfig plain{.theta = 5e5};
  const std::vector<float> scaled = rope.Frequencies(128), base = plain.Frequencies(128);

  EXPECT_EQ(scaled.front(), base.front());
  EXPECT_EQ(scaled.back(), base.back() / 8);

  for (size_t i = 0; i < base.size(); ++i) {
    EXPECT_LE(scaled[i], base[i]);
    EXPECT_GE(scaled[i], base[i] / 8);
    EXPECT_LT(scaled[i], i > 0 ? scaled[i - 1] : 2.0f);
  }
}

}  // namespace
}  // namespace sluice
