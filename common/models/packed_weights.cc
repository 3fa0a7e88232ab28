#include "common/models/packed_weights.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/base/status.h"
#include "common/models/number_ops.h"
#include "common/weights/weight_delta.h"
#include "kernels/decoder/op.h"

namespace sluice {
namespace {

// How much of the embedding one thread fingerprints at a time.
constexpr int64_t kFingerprintElements = 1 << 14;
// How much of a delta one thread applies at a time: some hundred microseconds of work.
constexpr uint32_t kTilesPerPiece = 16;

constexpr char kEmbedding[] = "model.embed_tokens.weight";

// Numbers that a weight [n, k] takes up when packed.
template <typename T>
int64_t PackedSize(int64_t n, int64_t k) {
  return RoundUpToLanes(n) * NumberOps<T>::PackedInputs(k);
}

// How elements of type `published` are stored as numbers of type `stored`.
kernels::DeltaForm FormOf(DType published, DType stored) {
  if (published == stored) return kernels::DeltaForm::kAsPublished;
  return published == DType::kBF16 ? kernels::DeltaForm::kBf16AsF32 : kernels::DeltaForm::kF16AsF32;
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
absl::StatusOr<std::unique_ptr<PackedWeights<T>>> PackedWeights<T>::Create(
    const ModelConfig& config, absl::Span<const TensorSpec> specs) {
  std::unique_ptr<PackedWeights> weights(new PackedWeights(config, specs));
  SLUICE_RETURN_IF_ERROR(weights->Allocate());
  return weights;
}

template <typename T>
PackedWeights<T>::PackedWeights(ModelConfig config, absl::Span<const TensorSpec> specs)
    : config_(std::move(config)),
      specs_(specs.begin(), specs.end()),
      embedding_tensor_(Find(kEmbedding)),
      places_(specs_.size()) {}

template <typename T>
absl::Status PackedWeights<T>::Allocate() {
  constexpr char kWhat[] = "the packed weights; use a machine with more memory, or a smaller model";
  const ModelConfig& config = config_;
  const PackedSizes sizes = ComputeSizes<T>(config);
  SLUICE_ASSIGN_OR_RETURN(buffer_,
                          HugeBuffer::Create(sizes.total * static_cast<int64_t>(sizeof(T)), kWhat));
  if (!config.tie_word_embeddings) {
    SLUICE_ASSIGN_OR_RETURN(const int64_t bytes, NumBytes(specs_[embedding_tensor_]));
    SLUICE_ASSIGN_OR_RETURN(embedding_, HugeBuffer::Create(bytes, kWhat));
    places_[embedding_tensor_] = {.memory = embedding_.data()};
  }

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
    AddAttention(prefix + "self_attn.", &layer);

    if (config.num_experts == 0) {
      layer.gate_up = reserve(sizes.gate_up);
      layer.down = reserve(sizes.down);
      AddDenseMlp(prefix + "mlp.", &layer);
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

  // The vectors grow no more, so their elements stay where they are.
  for (const Vector& v : vectors_) {
    places_[v.tensor] = {.memory = v.to->data() + v.first,
                         .form = FormOf(specs_[v.tensor].dtype, DType::kF32)};
  }
  return absl::OkStatus();
}

template <typename T>
void PackedWeights<T>::AddAttention(const std::string& prefix, Layer* layer) {
  const ModelConfig& config = config_;
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
void PackedWeights<T>::AddDenseMlp(const std::string& prefix, Layer* layer) {
  AddMlpMatrices(prefix, layer->gate_up, layer->down);
  if (!config_.mlp_bias) return;

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
  const int64_t tensor = Find(name), rows = specs_[tensor].shape[0], k = specs_[tensor].shape[1];
  for (int64_t row = 0; row < rows; row += kDecoderLanes) {
    strips_.push_back({.tensor = tensor,
                       .row = row,
                       .rows = std::min(kDecoderLanes, rows - row),
                       .first = first + row / kDecoderLanes * stride,
                       .to = to});
  }
  places_[tensor] = {.memory = to,
                     .form = FormOf(specs_[tensor].dtype, NumberOps<T>::kDType),
                     .columns = static_cast<uint64_t>(k),
                     .first = static_cast<uint64_t>(first),
                     .stride = static_cast<uint64_t>(stride),
                     .lanes = kDecoderLanes,
                     .panel = static_cast<uint64_t>(PackedSize<T>(kDecoderLanes, k)),
                     .pair = sizeof(float) / sizeof(T)};
}

// The tensor becomes the next elements of `to`.
template <typename T>
void PackedWeights<T>::AddVector(const std::string& name, std::vector<float>* to) {
  const int64_t tensor = Find(name), first = static_cast<int64_t>(to->size());
  vectors_.push_back({tensor, to, first});
  to->resize(first + ElementsOf(tensor));
}

template <typename T>
int64_t PackedWeights<T>::Find(const std::string& name) const {
  const auto it = std::lower_bound(
      specs_.begin(), specs_.end(), name,
      [](const TensorSpec& spec, const std::string& wanted) { return spec.name < wanted; });
  SLUICE_CHECK_MSG(it != specs_.end() && it->name == name, name);  // DecodeModel has checked it.
  return it - specs_.begin();
}

template <typename T>
int64_t PackedWeights<T>::ElementsOf(int64_t tensor) const {
  return *NumElements(specs_[tensor].shape);
}

template <typename T>
void PackedWeights<T>::Pack(const TensorSet& weights, Team* team) {
  team->Run([&](int) {
    std::vector<T> room;
    team->Share(static_cast<int64_t>(strips_.size()), [&](int64_t i) {
      const Strip& strip = strips_[i];
      const int64_t k = specs_[strip.tensor].shape[1];
      const T* rows = ReadElements(weights, strip.tensor, strip.row * k, strip.rows * k, &room);
      PackRows(rows, strip.rows, k, strip.first, strip.to);
    });
  });

  for (const Vector& v : vectors_) {
    SLUICE_CHECK(ConvertElements(specs_[v.tensor].dtype, weights.data(v.tensor), DType::kF32,
                                 v.to->data() + v.first, ElementsOf(v.tensor))
                     .ok());
  }
  if (has_own_embedding())
    std::memcpy(embedding_.data(), weights.data(embedding_tensor_), embedding_.bytes());
}

template <typename T>
std::vector<Fingerprint> PackedWeights<T>::Apply(const WeightDelta& delta, int sign, Team* team) {
  const std::vector<DeltaPiece> pieces = CutIntoPieces(delta, kTilesPerPiece);
  std::vector<Fingerprint> parts(pieces.size());
  team->Run([&](int) {
    kernels::DeltaChanges changes;
    team->Share(static_cast<int64_t>(pieces.size()), [&](int64_t i) {
      const DeltaPiece& piece = pieces[i];
      const DeltaChunk::Run& run = *piece.run;
      piece.chunk->chunk.ForEachTile(run, piece.begin, piece.end, &changes,
                                     [&](uint64_t start, const kernels::DeltaChanges& tile) {
                                       kernels::ApplyDeltaInPlace(
                                           run.shard, start, tile, sign * piece.chunk->sign,
                                           places_[run.tensor], run.width, parts[i].f);
                                     });
    });
  });

  std::vector<Fingerprint> sums(specs_.size());
  for (size_t i = 0; i < pieces.size(); ++i) sums[pieces[i].run->tensor] += parts[i];
  return sums;
}

template <typename T>
Fingerprint PackedWeights<T>::FingerprintOfStrip(const Strip& strip) const {
  thread_local std::vector<T> rows;
  const TensorSpec& spec = specs_[strip.tensor];
  const int64_t k = spec.shape[1], n = strip.rows * k;
  rows.resize(n);
  UnpackRows(strip.to, strip.rows, k, strip.first, rows.data());
  return FingerprintOfElements(spec, NumberOps<T>::kDType, rows.data(), strip.row * k, n);
}

template <typename T>
Fingerprint PackedWeights<T>::FingerprintOfVector(const Vector& vector) const {
  return FingerprintOfElements(specs_[vector.tensor], DType::kF32, vector.to->data() + vector.first,
                               0, ElementsOf(vector.tensor));
}

template <typename T>
Fingerprint PackedWeights<T>::FingerprintOfEmbedding(int64_t first, int64_t n) const {
  const TensorSpec& spec = specs_[embedding_tensor_];
  const std::byte* from = embedding_.data() + first * static_cast<int64_t>(DTypeBytes(spec.dtype));
  return FingerprintOfElements(spec, spec.dtype, from, first, n);
}

template <typename T>
std::vector<Fingerprint> PackedWeights<T>::Fingerprints(absl::Span<const int64_t> tensors,
                                                        Team* team) const {
  std::vector<bool> wanted(specs_.size());
  for (const int64_t tensor : tensors) wanted[tensor] = true;

  // The units of work: strips, pieces of the embedding, and vectors.
  struct Unit {
    int64_t tensor;
    const Strip* strip;
    const Vector* vector;
    int64_t first;  // Of a piece of the embedding.
  };
  std::vector<Unit> units;
  for (const Strip& strip : strips_) {
    if (wanted[strip.tensor]) units.push_back({strip.tensor, &strip, nullptr, 0});
  }
  const int64_t elements = ElementsOf(embedding_tensor_);
  if (has_own_embedding() && wanted[embedding_tensor_]) {
    for (int64_t first = 0; first < elements; first += kFingerprintElements)
      units.push_back({embedding_tensor_, nullptr, nullptr, first});
  }
  for (const Vector& vector : vectors_) {
    if (wanted[vector.tensor]) units.push_back({vector.tensor, nullptr, &vector, 0});
  }

  std::vector<Fingerprint> parts(units.size());
  team->Run([&](int) {
    team->Share(static_cast<int64_t>(units.size()), [&](int64_t i) {
      const Unit& unit = units[i];
      if (unit.strip != nullptr) {
        parts[i] = FingerprintOfStrip(*unit.strip);
      } else if (unit.vector != nullptr) {
        parts[i] = FingerprintOfVector(*unit.vector);
      } else {
        parts[i] = FingerprintOfEmbedding(unit.first,
                                          std::min(kFingerprintElements, elements - unit.first));
      }
    });
  });

  std::vector<Fingerprint> by_tensor(specs_.size()), sums;
  for (size_t i = 0; i < units.size(); ++i) by_tensor[units[i].tensor] += parts[i];
  for (const int64_t tensor : tensors) sums.push_back(by_tensor[tensor]);
  return sums;
}

template <typename T>
absl::StatusOr<std::unique_ptr<DecodeWeights>> PackedWeights<T>::Copy() const {
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<PackedWeights> copy, Create(config_, specs_));
  std::memcpy(copy->buffer_.data(), buffer_.data(), buffer_.bytes());
  if (has_own_embedding())
    std::memcpy(copy->embedding_.data(), embedding_.data(), embedding_.bytes());
  for (size_t i = 0; i < vectors_.size(); ++i) *copy->vectors_[i].to = *vectors_[i].to;
  return copy;
}

template <typename T>
absl::StatusOr<TensorSet> PackedWeights<T>::Unpack() const {
  SLUICE_ASSIGN_OR_RETURN(TensorSet weights, TensorSet::Create(specs_));
  std::vector<T> rows;
  for (const Strip& strip : strips_) {
    const DType dtype = specs_[strip.tensor].dtype;
    const int64_t k = specs_[strip.tensor].shape[1];
    rows.resize(strip.rows * k);
    UnpackRows(strip.to, strip.rows, k, strip.first, rows.data());
    std::byte* const to =
        weights.data(strip.tensor) + strip.row * k * static_cast<int64_t>(DTypeBytes(dtype));
    SLUICE_CHECK(
        ConvertElements(NumberOps<T>::kDType, rows.data(), dtype, to, strip.rows * k).ok());
  }
  for (const Vector& v : vectors_) {
    SLUICE_CHECK(ConvertElements(DType::kF32, v.to->data() + v.first, specs_[v.tensor].dtype,
                                 weights.data(v.tensor), ElementsOf(v.tensor))
                     .ok());
  }
  if (has_own_embedding())
    std::memcpy(weights.data(embedding_tensor_), embedding_.data(), embedding_.bytes());
  return weights;
}

template <typename T>
void PackedWeights<T>::ReadEmbedding(int64_t token, float* x) const {
  const TensorSpec& spec = specs_[embedding_tensor_];
  const int64_t h = spec.shape[1];
  if (!has_own_embedding()) {
    thread_local std::vector<T> row;
    row.resize(h);
    UnpackRows(head_, 1, h, token, row.data());
    SLUICE_CHECK(ConvertElements(NumberOps<T>::kDType, row.data(), DType::kF32, x, h).ok());
    return;
  }
  const std::byte* from =
      embedding_.data() + token * h * static_cast<int64_t>(DTypeBytes(spec.dtype));
  // DecodeModel::Create() has checked the type.
  SLUICE_CHECK(ConvertElements(spec.dtype, from, DType::kF32, x, h).ok());
}

template class PackedWeights<float>;
template class PackedWeights<uint16_t>;

}  // namespace sluice
