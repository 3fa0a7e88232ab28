#include "common/models/packed_weights.h"

#include <gtest/gtest.h>

#include <vector>

#include "common/base/splitmix.h"
#include "common/checkpoint/init.h"

namespace sluice {
namespace {

// The widths are odd, so panels are padded, and the model has every tensor that one may have.
ModelConfig SomeConfig() {
  ModelConfig config;
  config.vocab_size = 53, config.hidden_size = 37, config.intermediate_size = 45,
  config.num_layers = 2;
  config.num_heads = 3, config.num_kv_heads = 1, config.head_dim = 10, config.max_context = 64;
  config.qk_norm = config.qkv_bias = config.o_bias = config.mlp_bias = true;
  return config;
}

ModelConfig SomeExperts() {
  ModelConfig config = SomeConfig();
  config.mlp_bias = false, config.tie_word_embeddings = true;
  config.num_experts = 5, config.experts_per_token = 2, config.expert_size = 19;
  return config;
}

// Returns how many of `found` differ from `wanted`.
int Differing(const std::vector<Fingerprint>& found, const std::vector<Fingerprint>& wanted) {
  int count = 0;
  for (size_t i = 0; i < wanted.size(); ++i) count += found[i] == wanted[i] ? 0 : 1;
  return count;
}

template <typename T>
void ExpectEachFlipIsFound(const ModelConfig& config, DType dtype) {
  TensorSet weights = *InitWeights(config, 3, dtype);
  Team team(1, "sluice-test");
  PackedWeights<T> packed;
  ASSERT_EQ(packed.Create(config, &weights), absl::OkStatus());
  packed.Pack(&weights, &team);
  const std::vector<Fingerprint> wanted = TensorFingerprints(weights);
  ASSERT_EQ(packed.Fingerprints(&team), wanted);

  SplitMix64 random(17);
  // Flips one bit of one of the n numbers at `p`, except in the zeros of the padding.
  const auto flip = [&](auto* p, int64_t n, const std::string& where) {
    const auto at = static_cast<int64_t>(random.Below(static_cast<uint64_t>(n)));
    if (p[at] == 0) return;
    auto* const byte = reinterpret_cast<unsigned char*>(p + at) + random.Below(sizeof(*p));
    const auto bit = static_cast<unsigned char>(1 << random.Below(8));
    *byte ^= bit;
    EXPECT_EQ(Differing(packed.Fingerprints(&team), wanted), 1)
        << where << ", number " << at << ", bit " << int{bit};
    *byte ^= bit;
  };

  // All matrices lie in one buffer, which begins with the q, k and v of the first layer.
  for (int i = 0; i < 300; ++i)
    flip(packed.layers()[0].qkv, packed.bytes() / static_cast<int64_t>(sizeof(T)), "matrices");
  const auto in_vector = [&](const std::vector<float>& v, const char* name) {
    for (int i = 0; i < 20 && !v.empty(); ++i)
      flip(const_cast<float*>(v.data()), static_cast<int64_t>(v.size()), name);
  };
  for (const auto& layer : packed.layers()) {
    in_vector(layer.input_norm, "input_norm"), in_vector(layer.post_norm, "post_norm");
    in_vector(layer.q_norm, "q_norm"), in_vector(layer.k_norm, "k_norm");
    in_vector(layer.qkv_bias, "qkv_bias"), in_vector(layer.o_bias, "o_bias");
    in_vector(layer.gate_bias, "gate_bias"), in_vector(layer.up_bias, "up_bias"),
        in_vector(layer.down_bias, "down_bias");
  }
  in_vector(packed.final_norm(), "final_norm");

  // A step reads the embedding from the tensors, even if a copy of it is packed as the head.
  const auto embedding = static_cast<size_t>(weights.Find("model.embed_tokens.weight"));
  const int64_t bytes = weights.bytes(embedding);
  for (int i = 0; i < 50; ++i)
    flip(reinterpret_cast<unsigned char*>(weights.data(embedding)), bytes, "embedding");
  EXPECT_EQ(packed.Fingerprints(&team), wanted);
}

TEST(PackedWeightsTest, AFlippedBitOfAnyTensorChangesItsFingerprintAlone) {
  for (const ModelConfig& config : {SomeConfig(), SomeExperts()}) {
    ExpectEachFlipIsFound<float>(config, DType::kF32);
    ExpectEachFlipIsFound<uint16_t>(config, DType::kBF16);
    // These weights are widened: a flip in digits that fp16 does not have must be found too.
    ExpectEachFlipIsFound<float>(config, DType::kF16);
    // bf16 weights are widened if some other matrix of the model is fp32.
    ExpectEachFlipIsFound<float>(config, DType::kBF16);
  }
}

}  // namespace
}  // namespace sluice
