#include "common/models/packed_weights.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/base/status.h"
#include "common/models/number_ops.h"
#include "kernels/decoder/op.h"

namespace sluice {
namespace {

// How much of the embedding one thread fingerprints at a time.
constexpr int64_t kFingerprintElements = 1 << 14;

constexpr char kEmbedding[] = "model.embed_tokens.weight";

// Numbers that a weight [n, k] takes up when packed.
template <typename T>
int64_t PackedSize(int64_t n, int64_t k) {
  return RoundUpToLanes(n) * NumberOps<T>::PackedInputs(k);
}

// Returns elements [first, first + n) of a tensor in the type that is packed. If the tensor has
// another type, they are widened into `room`.
const float* ReadElements(const TensorSet& weights, int64_t tensor, int64_t first, int64_t n,
                          std::vector<float>* room) {
  const DType dtype = weights.spec(tensor).dtype;
  const std::byte* from = weights.data(tensor) + first * static_cast<int64_t>(DTypeBytes(dtype));
  if (dtype == DType::kF32) return reinterpret_cast<const float*>(from);

  // DecodeModel::Create() has checked the type.
  room->resize(n);
  SLUICE_CHECK(ConvertElements(dtype, from, DType::kF32, room->data(), n).ok());
  return room->data();
}

// All matrices are bf16 if that is what is packed.
const uint16_t* ReadElements(const TensorSet& weights, int64_t tensor, int64_t first, int64_t,
                             std::vector<uint16_t>*) {
  return reinterpret_cast<const uint16_t*>(weights.data(tensor)) + first;
}

// Sizes of the packed matrices, in numbers.
struct PackedSizes {
  int64_t qkv, o, gate_up, down, router, head, total;
};

template <typename T>
PackedSizes ComputeSizes(const ModelConfig& config) {
  const int64_t h = config.hidden_size, q = config.num_heads * config.head_dim,
                kv = config.num_kv_heads * config.head_dim;
  const int64_t f = config.num_experts > 0 ? config.expert_size : config.intermediate_size;
  const int64_t mlps = std::max<int64_t>(1, config.num_experts);

  PackedSizes sizes{.qkv = PackedSize<T>(q + 2 * kv, h),
                    .o = PackedSize<T>(h, q),
                    .gate_up = PackedSize<T>(2 * RoundUpToLanes(f), h),
                    .down = PackedSize<T>(h, f),
                    .router = PackedSize<T>(config.num_experts, h),
                    .head = PackedSize<T>(config.vocab_size, h),
                    .total = 0};
  const int64_t layer = sizes.qkv + sizes.o + sizes.router + mlps * (sizes.gate_up + sizes.down);
  sizes.total = config.num_layers * layer + sizes.head;
  return sizes;
}

}  // namespace

template <typename T>
absl::Status PackedWeights<T>::Create(const ModelConfig& config, const TensorSet* weights) {
  weights_ = weights;
  const PackedSizes sizes = ComputeSizes<T>(config);
  SLUICE_ASSIGN_OR_RETURN(buffer_, HugeBuffer::Create(sizes.total * static_cast<int64_t>(sizeof(T)),
                                                      "the packed weights; use a machine with more "
                                                      "memory, or a smaller model"));

  // Matrices lie in the order in which a step reads them.
  T* next = reinterpret_cast<T*>(buffer_.data());
  const auto reserve = [&](int64_t size) { return std::exchange(next, next + size); };

  layers_.resize(config.num_layers);
  for (int64_t i = 0; i < config.num_layers; ++i) {
    Layer& layer = layers_[i];
    const std::string prefix = absl::StrCat("model.layers.", i, ".");
    AddVector(prefix + "input_layernorm.weight", &layer.input_norm);
    AddVector(prefix + "post_attention_layernorm.weight", &layer.post_norm);
    layer.qkv = reserve(sizes.qkv);
    layer.o = reserve(sizes.o);
    AddAttention(config, prefix + "self_attn.", &layer);

    if (config.num_experts == 0) {
      layer.gate_up = reserve(sizes.gate_up);
      layer.down = reserve(sizes.down);
      AddDenseMlp(config, prefix + "mlp.", &layer);
      continue;
    }

    layer.router = reserve(sizes.router);
    AddMatrix(prefix + "mlp.gate.weight", 0, kDecoderLanes, layer.router);
    for (int64_t e = 0; e < config.num_experts; ++e) {
      T* const gate_up = reserve(sizes.gate_up);
      T* const down = reserve(sizes.down);
      layer.experts.push_back({gate_up, down});
      AddMlpMatrices(absl::StrCat(prefix, "mlp.experts.", e, "."), gate_up, down);
    }
  }

  AddVector("model.norm.weight", &final_norm_);
  head_ = reserve(sizes.head);
  AddMatrix(config.tie_word_embeddings ? kEmbedding : "lm_head.weight", 0, kDecoderLanes, head_);

  // ComputeSizes() and this function must count the same matrices.
  SLUICE_CHECK(next == reinterpret_cast<T*>(buffer_.data()) + sizes.total);
  return absl::OkStatus();
}

template <typename T>
void PackedWeights<T>::AddAttention(const ModelConfig& config, const std::string& prefix,
                                    Layer* layer) {
  const int64_t q = config.num_heads * config.head_dim, kv = config.num_kv_heads * config.head_dim;
  AddMatrix(prefix + "q_proj.weight", 0, kDecoderLanes, layer->qkv);
  AddMatrix(prefix + "k_proj.weight", q, kDecoderLanes, layer->qkv);
  AddMatrix(prefix + "v_proj.weight", q + kv, kDecoderLanes, layer->qkv);
  AddMatrix(prefix + "o_proj.weight", 0, kDecoderLanes, layer->o);

  if (config.qk_norm) {
    AddVector(prefix + "q_norm.weight", &layer->q_norm);
    AddVector(prefix + "k_norm.weight", &layer->k_norm);
  }
  if (config.qkv_bias) {
    for (const char* part : {"q", "k", "v"})
      AddVector(absl::StrCat(prefix, part, "_proj.bias"), &layer->qkv_bias);
  }
  if (config.o_bias) AddVector(prefix + "o_proj.bias", &layer->o_bias);
}

template <typename T>
void PackedWeights<T>::AddDenseMlp(const ModelConfig& config, const std::string& prefix,
                                   Layer* layer) {
  AddMlpMatrices(prefix, layer->gate_up, layer->down);
  if (!config.mlp_bias) return;

  AddVector(prefix + "gate_proj.bias", &layer->gate_bias);
  AddVector(prefix + "up_proj.bias", &layer->up_bias);
  AddVector(prefix + "down_proj.bias", &layer->down_bias);
}

template <typename T>
void PackedWeights<T>::AddMlpMatrices(const std::string& prefix, T* gate_up, T* down) {
  AddMatrix(prefix + "gate_proj.weight", 0, 2 * kDecoderLanes, gate_up);
  AddMatrix(prefix + "up_proj.weight", kDecoderLanes, 2 * kDecoderLanes, gate_up);
  AddMatrix(prefix + "down_proj.weight", 0, kDecoderLanes, down);
}

// The first 16 rows of the tensor become outputs from `first` on of the matrix `to`. Each next 16
// begin `stride` outputs later.
template <typename T>
void PackedWeights<T>::AddMatrix(const std::string& name, int64_t first, int64_t stride, T* to) {
  const int64_t tensor = weights_->Find(name), rows = weights_->spec(tensor).shape[0];
  for (int64_t row = 0; row < rows; row += kDecoderLanes) {
    strips_.push_back({.tensor = tensor,
                       .row = row,
                       .rows = std::min(kDecoderLanes, rows - row),
                       .first = first + row / kDecoderLanes * stride,
                       .to = to});
  }
}

// The tensor becomes the next elements of `to`.
template <typename T>
void PackedWeights<T>::AddVector(const std::string& name, std::vector<float>* to) {
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
      const T* rows = ReadElements(*weights_, strip.tensor, strip.row * k, strip.rows * k, &room);
      PackRows(rows, strip.rows, k, strip.first, strip.to);
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
Fingerprint PackedWeights<T>::FingerprintOfTensorPart(int64_t tensor, int64_t first,
                                                      int64_t n) const {
  const TensorSpec& spec = weights_->spec(tensor);
  const std::byte* from =
      weights_->data(tensor) + first * static_cast<int64_t>(DTypeBytes(spec.dtype));
  return FingerprintOfElements(spec, spec.dtype, from, first, n);
}

template <typename T>
std::vector<Fingerprint> PackedWeights<T>::Fingerprints(Team* team) const {
  const int64_t embedding = weights_->Find(kEmbedding), elements = weights_->elements(embedding);

  // The units of work: all strips, then the pieces of the embedding.
  const int64_t strips = static_cast<int64_t>(strips_.size());
  const int64_t pieces = (elements + kFingerprintElements - 1) / kFingerprintElements;
  std::vector<Fingerprint> parts(strips + pieces);
  team->Run([&](int) {
    team->Share(strips + pieces, [&](int64_t i) {
      const int64_t first = (i - strips) * kFingerprintElements;
      parts[i] = i < strips
                     ? FingerprintOfStrip(strips_[i])
                     : FingerprintOfTensorPart(embedding, first,
                                               std::min(kFingerprintElements, elements - first));
    });
  });

  std::vector<Fingerprint> sums(weights_->size());
  for (int64_t i = 0; i < strips; ++i) sums[strips_[i].tensor] += parts[i];

  // An embedding that is also the head has two copies. If they differ, one is wrong: add them, so
  // that the sum is the fingerprint of neither. Without a packed copy there is nothing to compare.
  const Fingerprint read = Sum(absl::MakeConstSpan(parts).subspan(strips));
  if (!(sums[embedding] == read)) sums[embedding] += read;

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
