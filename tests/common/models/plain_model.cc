#include "tests/common/models/plain_model.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/models/moe.h"

namespace sluice {
namespace {

std::string LayerPrefix(int64_t layer) { return absl::StrCat("model.layers.", layer, "."); }

void AddTo(std::vector<float>* sum, const std::vector<float>& x) {
  for (size_t i = 0; i < x.size(); ++i) (*sum)[i] += x[i];
}

}  // namespace

template <typename T>
PlainModel<T>::PlainModel(const ModelConfig& config, const TensorSet* weights)
    : config_(config), weights_(*weights) {
  const int64_t blocks = (config.max_context + kKvBlockTokens - 1) / kKvBlockTokens;
  for (int64_t b = 0; b < blocks; ++b) blocks_.push_back(static_cast<int32_t>(b));
  cache_.assign(config.num_layers * config.num_kv_heads,
                std::vector<T>(blocks * KvHead<T>::BlockSize(config.head_dim)));
}

template <typename T>
const T* PlainModel<T>::TensorData(const std::string& name) const {
  const int64_t tensor = weights_.Find(name);
  SLUICE_CHECK_MSG(tensor >= 0, name);
  return weights_.as<T>(tensor).data();
}

template <typename T>
std::vector<float> PlainModel<T>::Vector(const std::string& name) const {
  const int64_t tensor = weights_.Find(name);
  SLUICE_CHECK_MSG(tensor >= 0, name);
  Floats out(weights_.elements(tensor));
  const DType dtype = weights_.spec(tensor).dtype;
  SLUICE_CHECK(ConvertElements(dtype, weights_.data(tensor), DType::kF32, out.data(),
                               static_cast<int64_t>(out.size()))
                   .ok());
  return out;
}

template <typename T>
std::vector<T> PlainModel<T>::Round(const Floats& x) const {
  if constexpr (std::is_same_v<T, float>) {
    return x;
  } else {
    std::vector<T> out(x.size());
    ops_.to_bf16(x.data(), static_cast<int64_t>(x.size()), out.data());
    return out;
  }
}

template <typename T>
template <typename X>
std::vector<float> PlainModel<T>::Multiply(const std::string& name, std::vector<X> x) {
  const int64_t n = weights_.spec(weights_.Find(name + ".weight")).shape[0],
                k = static_cast<int64_t>(x.size());
  std::vector<T>& packed = packed_[name];
  if (packed.empty()) {
    packed.resize(RoundUpToLanes(n) * RoundUpToPairs(k));
    PackRows(TensorData(name + ".weight"), n, k, 0, packed.data());
  }

  // In bf16 a product of an odd number of inputs reads a zero behind them.
  x.resize(RoundUpToPairs(k));
  Floats y(n);
  const int64_t ld = RoundUpToPairs(k);
  if constexpr (std::is_same_v<T, float>)
    ops_.gemm(x.data(), ld, packed.data(), 1, n, k, y.data(), n, false);
  else if constexpr (std::is_same_v<X, float>)
    ops_.gemm_mixed(x.data(), ld, packed.data(), 1, n, k, y.data(), n, false);
  else ops_.gemm_bf16(x.data(), ld, packed.data(), 1, n, k, y.data(), n, false);

  return y;
}

template <typename T>
std::vector<float> PlainModel<T>::Norm(const Floats& x, const std::string& name) const {
  Floats y(x.size());
  ops_.rms_norm(x.data(), Vector(name).data(), static_cast<int64_t>(x.size()),
                static_cast<float>(config_.rms_norm_eps), y.data());
  return y;
}

template <typename T>
void PlainModel<T>::NormAndRotateHead(const std::string& norm, float* head) const {
  const int64_t d = config_.head_dim;
  if (config_.qk_norm)
    ops_.rms_norm(head, Vector(norm).data(), d, static_cast<float>(config_.rms_norm_eps), head);

  Floats cos, sin;
  for (const float f : config_.rope.Frequencies(d)) {
    cos.push_back(std::cos(static_cast<float>(position_) * f));
    sin.push_back(std::sin(static_cast<float>(position_) * f));
  }
  ops_.rope(head, cos.data(), sin.data(), 1, d / 2, head);
}

template <typename T>
std::vector<float> PlainModel<T>::Attend(int64_t layer, const Floats& normed,
                                         const Adapter* adapter) {
  const std::string prefix = LayerPrefix(layer) + "self_attn.";
  const int64_t d = config_.head_dim, group = config_.num_heads / config_.num_kv_heads;
  Floats q = Multiply(prefix + "q_proj", normed), k = Multiply(prefix + "k_proj", normed),
         v = Multiply(prefix + "v_proj", normed);
  if (adapter != nullptr) {
    adapter->Add(layer, Adapter::kQ, normed.data(), q.data());
    adapter->Add(layer, Adapter::kK, normed.data(), k.data());
    adapter->Add(layer, Adapter::kV, normed.data(), v.data());
  }
  if (config_.qkv_bias) {
    AddTo(&q, Vector(prefix + "q_proj.bias"));
    AddTo(&k, Vector(prefix + "k_proj.bias"));
    AddTo(&v, Vector(prefix + "v_proj.bias"));
  }

  Floats mixed(q.size());
  for (int64_t head = 0; head < config_.num_heads; ++head) {
    const int64_t kv = head / group;
    std::vector<T>& numbers = cache_[layer * config_.num_kv_heads + kv];
    const KvHead<T> cache{numbers.data(), KvHead<T>::BlockSize(d)};
    if (head % group == 0) {
      NormAndRotateHead(prefix + "k_norm.weight", &k[kv * d]);
      StoreKeyValue(cache, position_ / kKvBlockTokens, position_ % kKvBlockTokens, d, &k[kv * d],
                    &v[kv * d]);
    }

    NormAndRotateHead(prefix + "q_norm.weight", &q[head * d]);
    const AttentionQuery query{&q[head * d], &mixed[head * d],
                               WindowBegin(position_, config_.sliding_window), position_ + 1};
    if constexpr (std::is_same_v<T, float>) ops_.attend(&query, 1, cache, blocks_.data(), d);
    else ops_.attend_f16(&query, 1, cache, blocks_.data(), d);
  }

  return mixed;
}

template <typename T>
std::vector<float> PlainModel<T>::ComputeMlp(int64_t layer, const Floats& normed,
                                             const Adapter* adapter) {
  const std::string prefix = LayerPrefix(layer) + "mlp.";
  const std::vector<T> in = Round(normed);
  Floats gate = Multiply(prefix + "gate_proj", in), up = Multiply(prefix + "up_proj", in);
  if (config_.mlp_bias) {
    AddTo(&gate, Vector(prefix + "gate_proj.bias"));
    AddTo(&up, Vector(prefix + "up_proj.bias"));
  }
  if (adapter != nullptr) {
    adapter->Add(layer, Adapter::kGate, in.data(), gate.data());
    adapter->Add(layer, Adapter::kUp, in.data(), up.data());
  }

  ops_.swiglu(gate.data(), up.data(), static_cast<int64_t>(gate.size()), gate.data());
  return gate;
}

template <typename T>
std::vector<float> PlainModel<T>::ComputeExperts(int64_t layer, const Floats& normed) {
  const std::string prefix = LayerPrefix(layer) + "mlp.";
  const Floats logits = Multiply(prefix + "gate", normed);
  std::vector<uint16_t> ids(config_.experts_per_token);
  PickExperts(logits, absl::MakeSpan(ids));
  Floats weights(ids.size());
  WeighExperts(logits, ids, config_.norm_topk_prob, weights.data());
  routing_.insert(routing_.end(), ids.begin(), ids.end());

  Floats sum(normed.size());
  for (size_t j = 0; j < ids.size(); ++j) {
    const std::string expert = absl::StrCat(prefix, "experts.", ids[j], ".");
    Floats gate = Multiply(expert + "gate_proj", Round(normed));
    const Floats up = Multiply(expert + "up_proj", Round(normed));
    ops_.swiglu(gate.data(), up.data(), static_cast<int64_t>(gate.size()), gate.data());
    const Floats out = Multiply(expert + "down_proj", Round(gate));
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += weights[j] * out[i];
  }

  return sum;
}

template <typename T>
std::vector<float> PlainModel<T>::Next(int32_t token, const Adapter* adapter) {
  SLUICE_CHECK(position_ < config_.max_context);
  routing_.clear();
  const T* embedding = TensorData("model.embed_tokens.weight") + token * config_.hidden_size;
  Floats x(config_.hidden_size);
  SLUICE_CHECK(ConvertElements(std::is_same_v<T, float> ? DType::kF32 : DType::kBF16, embedding,
                               DType::kF32, x.data(), config_.hidden_size)
                   .ok());

  // Adds the product of the matrix `name` and `in` to x. The kernel adds, as in the decoder.
  const auto add_product = [&](const std::string& name, std::vector<T> in) {
    Multiply(name, in);  // Packs the matrix.
    const int64_t k = static_cast<int64_t>(in.size()), n = static_cast<int64_t>(x.size());
    in.resize(RoundUpToPairs(k));
    const T* packed = packed_[name].data();
    if constexpr (std::is_same_v<T, float>)
      ops_.gemm(in.data(), RoundUpToPairs(k), packed, 1, n, k, x.data(), n, true);
    else ops_.gemm_bf16(in.data(), RoundUpToPairs(k), packed, 1, n, k, x.data(), n, true);
  };

  for (int64_t layer = 0; layer < config_.num_layers; ++layer) {
    const std::string prefix = LayerPrefix(layer);
    const Floats mixed = Attend(layer, Norm(x, prefix + "input_layernorm.weight"), adapter);
    add_product(prefix + "self_attn.o_proj", Round(mixed));
    if (adapter != nullptr) adapter->Add(layer, Adapter::kO, mixed.data(), x.data());
    if (config_.o_bias) AddTo(&x, Vector(prefix + "self_attn.o_proj.bias"));

    const Floats normed = Norm(x, prefix + "post_attention_layernorm.weight");
    if (config_.num_experts > 0) {
      AddTo(&x, ComputeExperts(layer, normed));
    } else {
      const std::vector<T> act = Round(ComputeMlp(layer, normed, adapter));
      add_product(prefix + "mlp.down_proj", act);
      if (adapter != nullptr) adapter->Add(layer, Adapter::kDown, act.data(), x.data());
      if (config_.mlp_bias) AddTo(&x, Vector(prefix + "mlp.down_proj.bias"));
    }
  }

  ++position_;
  return Multiply(config_.tie_word_embeddings ? "model.embed_tokens" : "lm_head",
                  Round(Norm(x, "model.norm.weight")));
}

template class PlainModel<float>;
template class PlainModel<uint16_t>;

}  // namespace sluice
