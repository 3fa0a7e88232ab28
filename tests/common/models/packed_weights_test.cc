#include "common/models/packed_weights.h"

#include <gtest/gtest.h>

#include <vector>

#include "common/base/splitmix.h"
#include "common/checkpoint/init.h"
#include "common/weights/weight_delta.h"
#include "tests/common/weights/make_delta.h"

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
  const TensorSet weights = *InitWeights(config, 3, dtype);
  Team team(1, "sluice-test");
  const auto made = PackedWeights<T>::Create(config, weights.specs());
  ASSERT_TRUE(made.ok()) << made.status();
  PackedWeights<T>& packed = **made;
  packed.Pack(weights, &team);
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
  for (int i = 0; i < 300; ++i) {
    flip(packed.layers()[0].qkv, packed.matrix_bytes() / static_cast<int64_t>(sizeof(T)),
         "matrices");
  }
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

  // Without a head that is the embedding too, its rows lie apart.
  if (!config.tie_word_embeddings) {
    const auto embedding = weights.Find("model.embed_tokens.weight");
    auto* const rows = const_cast<std::byte*>(packed.embedding_rows());
    for (int i = 0; i < 50; ++i)
      flip(reinterpret_cast<unsigned char*>(rows), weights.bytes(embedding), "embedding");
  }
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

// Changes the lowest bits of about one in `one_in` elements, so that no number becomes NaN.
TensorSet Change(const TensorSet& from, SplitMix64* random, uint64_t one_in) {
  TensorSet to = from;
  for (size_t i = 0; i < to.size(); ++i) {
    const auto width = static_cast<int64_t>(DTypeBytes(to.spec(i).dtype));
    for (int64_t at = 0; at < to.bytes(i); at += width) {
      if (random->Below(one_in) == 0)
        to.data(i)[at] ^= static_cast<std::byte>(1 + random->Below(255));
    }
  }
  return to;
}

// Takes weights along a random walk of deltas, back, and of paths, with teams of every size.
template <typename T>
void ExpectDeltasGiveThePublishedBits(const ModelConfig& config, DType dtype) {
  SplitMix64 random(23);
  TensorSet now = *InitWeights(config, 3, dtype);
  Team alone(1, "sluice-test"), three(3, "sluice-test");
  const auto made = PackedWeights<T>::Create(config, now.specs());
  ASSERT_TRUE(made.ok()) << made.status();
  (*made)->Pack(now, &alone);
  std::unique_ptr<DecodeWeights> other = *(*made)->Copy();
  std::vector<Fingerprint> folded = TensorFingerprints(now);

  for (int step = 0; step < 12; ++step) {
    TensorSet next = Change(now, &random, 1 + random.Below(30));
    WeightDelta delta;
    if (step % 3 == 0) {
      delta = Backward(MakeDelta(next, now), now, next);
    } else {
      delta = MakeDelta(now, next);
    }
    if (step % 4 == 1) {
      const TensorSet last = Change(next, &random, 20);
      for (SignedChunk& part : MakeDelta(next, last).chunks) delta.chunks.push_back(part);
      ASSERT_TRUE(MayOverlap(delta));
      delta = Merge(delta, now.specs());
      next = last;
    }
    ASSERT_FALSE(MayOverlap(delta));

    const std::vector<Fingerprint> sums = (*made)->Apply(delta, +1, &alone);
    EXPECT_EQ(other->Apply(delta, +1, &three), sums) << "the number of threads changes nothing";
    for (size_t i = 0; i < sums.size(); ++i) folded[i] += sums[i];
    ASSERT_EQ((*made)->Unpack()->buffer(), next.buffer()) << DTypeName(dtype) << ", " << step;
    ASSERT_EQ(other->Unpack()->buffer(), next.buffer());
    EXPECT_EQ(folded, TensorFingerprints(next));
    EXPECT_EQ((*made)->Fingerprints(&three), folded);

    // Backward it is found again in every bit.
    (*made)->Apply(delta, -1, &three);
    ASSERT_EQ((*made)->Unpack()->buffer(), now.buffer());
    (*made)->Apply(delta, +1, &three);
    now = next;
  }
}

TEST(PackedWeightsTest, DeltasInPlaceGiveThePublishedBitsForwardBackwardAndMerged) {
  for (const ModelConfig& config : {SomeConfig(), SomeExperts()}) {
    ExpectDeltasGiveThePublishedBits<float>(config, DType::kF32);
    ExpectDeltasGiveThePublishedBits<uint16_t>(config, DType::kBF16);
    ExpectDeltasGiveThePublishedBits<float>(config, DType::kF16);
    ExpectDeltasGiveThePublishedBits<float>(config, DType::kBF16);
  }
}

TEST(PackedWeightsTest, OnlyTheTensorsThatAreAskedForAreRead) {
  const ModelConfig config = SomeConfig();
  const TensorSet weights = *InitWeights(config, 3);
  Team team(2, "sluice-test");
  const auto packed = *PackedWeights<float>::Create(config, weights.specs());
  packed->Pack(weights, &team);
  packed->FlipBit();
  const std::vector<Fingerprint> wanted = TensorFingerprints(weights);
  const int64_t flipped = weights.Find("model.layers.0.self_attn.q_proj.weight");
  for (int64_t i = 0; i < static_cast<int64_t>(wanted.size()); ++i) {
    const std::vector<Fingerprint> found = packed->Fingerprints({i, 0}, &team);
    EXPECT_EQ(found[0] == wanted[static_cast<size_t>(i)], i != flipped) << i;
    EXPECT_EQ(found[1], wanted[0]);
  }
}

}  // namespace
}  // namespace sluice
