#include "common/models/packed_weights.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/models/number_ops.h"
#include "kernels/decoder/op.h"

namespace sluice {
namespace {

// Numbers that a weight [n, k] takes up when packed.
template <typename T>
int64_t PackedSize(int64_t n, int64_t k) {
  return RoundUpToLanes(n) * NumberOps<T>::PackedInputs(k);
}

// Rows of a tensor in the type that is packed: the tensor's own, or widened in `room`.
const float* RowsOf(const TensorSet& weights, int64_t tensor, int64_t first, int64_t n,
                    std::vector<float>* room) {
  const DType dtype = weights.spec(tensor).dtype;
  const std::byte* from = weights.data(tensor) + first * static_cast<int64_t>(DTypeBytes(dtype));
  if (dtype == DType::kF32) return reinterpret_cast<const float*>(from);
  room->resize(n);
  // DecodeModel::Create() saw the dtype.
  SLUICE_CHECK(ConvertElements(dtype, from, DType::kF32, room->data(), n).ok());
  return room->data();
}
const uint16_t* RowsOf(const TensorSet& weights, int64_t tensor, int64_t first, int64_t,
                       std::vector<uint16_t>*) {
  return reinterpret_cast<const uint16_t*>(weights.data(tensor)) + first;
}

}  // namespace

template <typename T>
absl::Status PackedWeights<T>::Create(const ModelConfig& config, const TensorSet* weights) {
  weights_ = weights;
  const int64_t h = config.hidden_size, q = config.num_heads * config.head_dim,
                kv = config.num_kv_heads * config.head_dim;
  const int64_t f = config.num_experts > 0 ? config.expert_size : config.intermediate_size,
                gate_up = 2 * RoundUpToLanes(f);
  const int64_t qkv_size = PackedSize<T>(q + 2 * kv, h), o_size = PackedSize<T>(h, q);
  const int64_t gate_up_size = PackedSize<T>(gate_up, h), down_size = PackedSize<T>(h, f);
  const int64_t router_size = PackedSize<T>(config.num_experts, h),
                mlps = std::max<int64_t>(1, config.num_experts);
  const int64_t total =
      config.num_layers * (qkv_size + o_size + router_size + mlps * (gate_up_size + down_size)) +
      PackedSize<T>(config.vocab_size, h);
  SLUICE_ASSIGN_OR_RETURN(
      buffer_, HugeBuffer::Create(total * static_cast<int64_t>(sizeof(T)), "the packed weights"));
  T* next = reinterpret_cast<T*>(buffer_.data());
  const auto take = [&](int64_t size) { return std::exchange(next, next + size); };
  layers_.resize(config.num_layers);
  for (int64_t i = 0; i < config.num_layers; ++i) {
    Layer& layer = layers_[i];
    const std::string p = absl::StrCat("model.layers.", i, ".");
    layer.qkv = take(qkv_size), layer.o = take(o_size);
    Take(p + "input_layernorm.weight", &layer.input_norm);
    Take(p + "post_attention_layernorm.weight", &layer.post_norm);
    if (config.qk_norm) Take(p + "self_attn.q_norm.weight", &layer.q_norm);
    if (config.qk_norm) Take(p + "self_attn.k_norm.weight", &layer.k_norm);
    if (config.qkv_bias) {
      for (const char* part : {"q", "k", "v"})
        Take(absl::StrCat(p, "self_attn.", part, "_proj.bias"), &layer.qkv_bias);
    }
    Take(p + "self_attn.q_proj.weight", 0, kDecoderLanes, layer.qkv);
    Take(p + "self_attn.k_proj.weight", q, kDecoderLanes, layer.qkv);
    Take(p + "self_attn.v_proj.weight", q + kv, kDecoderLanes, layer.qkv);
    Take(p + "self_attn.o_proj.weight", 0, kDecoderLanes, layer.o);
    if (config.o_bias) Take(p + "self_attn.o_proj.bias", &layer.o_bias);
    if (config.mlp_bias) {
      Take(p + "mlp.gate_proj.bias", &layer.gate_bias),
          Take(p + "mlp.up_proj.bias", &layer.up_bias),
          Take(p + "mlp.down_proj.bias", &layer.down_bias);
    }
    if (config.num_experts == 0) {
      layer.gate_up = take(gate_up_size), layer.down = take(down_size);
      TakeMlp(p + "mlp.", layer.gate_up, layer.down);
      continue;
    }
    layer.gate_up = nullptr, layer.down = nullptr;
    layer.router = take(router_size);
    Take(p + "mlp.gate.weight", 0, kDecoderLanes, layer.router);
    for (int64_t e = 0; e < config.num_experts; ++e) {
      layer.experts.push_back({take(gate_up_size), take(down_size)});
      TakeMlp(absl::StrCat(p, "mlp.experts.", e, "."), layer.experts.back().gate_up,
              layer.experts.back().down);
    }
  }
  Take("model.norm.weight", &final_norm_);
  head_ = take(PackedSize<T>(config.vocab_size, h));
  Take(config.tie_word_embeddings ? "model.embed_tokens.weight" : "lm_head.weight", 0,
       kDecoderLanes, head_);
  return absl::OkStatus();
}

template <typename T>
void PackedWeights<T>::TakeMlp(const std::string& prefix, T* gate_up, T* down) {
  Take(prefix + "gate_proj.weight", 0, 2 * kDecoderLanes, gate_up);
  Take(prefix + "up_proj.weight", kDecoderLanes, 2 * kDecoderLanes, gate_up);
  Take(prefix + "down_proj.weight", 0, kDecoderLanes, down);
}

// Each 16 rows of the tensor begin `stride` outputs after those before.
template <typename T>
void PackedWeights<T>::Take(const std::string& name, int64_t first, int64_t stride, T* to) {
  const int64_t tensor = weights_->Find(name), rows = weights_->spec(tensor).shape[0];
  for (int64_t row = 0; row < rows; row += kDecoderLanes) {
    strips_.push_back({tensor, row, std::min(kDecoderLanes, rows - row),
                       first + row / kDecoderLanes * stride, to});
  }
}

template <typename T>
void PackedWeights<T>::Take(const std::string& name, std::vector<float>* to) {
  const int64_t tensor = weights_->Find(name), first = static_cast<int64_t>(to->size());
  vectors_.push_back({tensor, to, first});
  to->resize(first + weights_->elements(tensor));
}

template <typename T>
void PackedWeights<T>::Pack(const TensorSet* weights, Team* team) {
  weights_ = weights;
  team->Run([&](int) {
    std::vector<T> room;
    team->Share(static_cast<int64_t>(strips_.size()), [&](int64_t i) {
      const Strip& strip = strips_[i];
      const int64_t k = weights_->spec(strip.tensor).shape[1];
      PackRows(RowsOf(*weights_, strip.tensor, strip.row * k, strip.rows * k, &room), strip.rows, k,
               strip.first, strip.to);
    });
  });
  for (const Vector& v : vectors_) {
    const DType dtype = weights_->spec(v.tensor).dtype;
    SLUICE_CHECK(ConvertElements(dtype, weights_->data(v.tensor), DType::kF32,
                                 v.to->data() + v.first, weights_->elements(v.tensor))
                     .ok());
  }
}

template <typename T>
Fingerprint PackedWeights<T>::FingerprintOfStrip(const Strip& strip) const {
  thread_local std::vector<T> rows;
  const TensorSpec& spec = weights_->spec(strip.tensor);
  const int64_t k = spec.shape[1], n = strip.rows * k;
  rows.resize(n);
  UnpackRows(strip.to, strip.rows, k, strip.first, rows.data());
  return FingerprintOfElements(spec, NumberOps<T>::kDType, rows.data(), strip.row * k, n);
}

template <typename T>
std::vector<Fingerprint> PackedWeights<T>::Fingerprints(Team* team) const {
  constexpr int64_t kPiece = 1 << 14;
  const int64_t embed = weights_->Find("model.embed_tokens.weight"),
                strips = static_cast<int64_t>(strips_.size());
  const bool loose = std::none_of(strips_.begin(), strips_.end(),
                                  [&](const Strip& strip) { return strip.tensor == embed; });
  const int64_t pieces = loose ? (weights_->elements(embed) + kPiece - 1) / kPiece : 0;
  std::vector<Fingerprint> parts(strips + pieces), sums(weights_->size());
  team->Run([&](int) {
    team->Share(strips + pieces, [&](int64_t i) {
      if (i < strips) {
        parts[i] = FingerprintOfStrip(strips_[i]);
        return;
      }
      const TensorSpec& spec = weights_->spec(embed);
      const int64_t first = (i - strips) * kPiece;
      parts[i] = FingerprintOfElements(
          spec, spec.dtype,
          weights_->data(embed) + first * static_cast<int64_t>(DTypeBytes(spec.dtype)), first,
          std::min(kPiece, weights_->elements(embed) - first));
    });
  });
  for (int64_t i = 0; i < strips + pieces; ++i)
    sums[i < strips ? strips_[i].tensor : embed] += parts[i];
  for (const Vector& v : vectors_) {
    sums[v.tensor] +=
        FingerprintOfElements(weights_->spec(v.tensor), DType::kF32, v.to->data() + v.first, 0,
                              weights_->elements(v.tensor));
  }
  return sums;
}

template class PackedWeights<float>;
template class PackedWeights<uint16_t>;

}  // namespace sluice
