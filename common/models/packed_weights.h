#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/checkpoint/model_config.h"
#include "common/checkpoint/tensor_set.h"
#include "common/models/decode_weights.h"
#include "common/models/huge_buffer.h"
#include "common/models/team.h"
#include "common/weights/fingerprint.h"
#include "kernels/weight_delta/op.h"

namespace sluice {

// The weights of a decoder in the form that kernels/decoder takes. T is float, or uint16_t for
// bf16. Matrices are in panels of 16 outputs, as one piece of memory. q, k and v are one matrix, so
// that one product computes all three; the panels of gate and up alternate, so that SwiGLU finds
// both sides of an output next to each other. Vectors are fp32. An embedding that is also the
// output head is there once, as the head, and its rows are gathered from the panels; another
// embedding has its rows as they are published.
//
// H hidden, Q query and KV key/value widths (heads x D), F feed-forward width, E experts, V
// vocabulary.
template <typename T>
class PackedWeights final : public DecodeWeights {
 public:
  struct Expert {
    T* gate_up;  // [2 F rounded up to panels, H]
    T* down;     // [H, F]
  };
  struct Layer {
    std::vector<float> input_norm, post_norm;  // [H]
    std::vector<float> q_norm, k_norm;         // [D]; empty without qk_norm.
    std::vector<float> qkv_bias;               // [Q + 2 KV]; empty without one.
    T* qkv = nullptr;                          // [Q + 2 KV, H]
    T* o = nullptr;                            // [H, Q]
    std::vector<float> o_bias;                 // [H]; empty without one.

    // A dense model: null or empty with experts.
    T* gate_up = nullptr;                   // [2 F rounded up to panels, H]
    T* down = nullptr;                      // [H, F]
    std::vector<float> gate_bias, up_bias;  // [F]; empty without them.
    std::vector<float> down_bias;           // [H]; likewise.

    // A mixture of experts: null or empty without experts.
    T* router = nullptr;          // [E, H]
    std::vector<Expert> experts;  // [E]
  };

  // Makes room for weights with the layout `specs`, which has the parameters of `config`. All
  // numbers are zero. RESOURCE_EXHAUSTED: there is not enough memory.
  static absl::StatusOr<std::unique_ptr<PackedWeights>> Create(const ModelConfig& config,
                                                               absl::Span<const TensorSpec> specs);
  // The places of the tensors point into this object.
  PackedWeights(const PackedWeights&) = delete;
  PackedWeights& operator=(const PackedWeights&) = delete;

  // Packs `weights`, which have the layout that Create() saw.
  void Pack(const TensorSet& weights, Team* team);

  absl::Span<const TensorSpec> specs() const override { return specs_; }
  int64_t bytes() const override { return buffer_.bytes() + embedding_.bytes(); }
  std::vector<Fingerprint> Apply(const WeightDelta& delta, int sign, Team* team) override;
  using DecodeWeights::Fingerprints;
  std::vector<Fingerprint> Fingerprints(absl::Span<const int64_t> tensors,
                                        Team* team) const override;
  absl::StatusOr<std::unique_ptr<DecodeWeights>> Copy() const override;
  absl::StatusOr<TensorSet> Unpack() const override;
  // It is a bit of the first layer's q_proj.
  void FlipBit() override { buffer_.data()[0] ^= std::byte{1}; }

  // Writes the embedding [H] of a token in fp32.
  void ReadEmbedding(int64_t token, float* x) const;

  const std::vector<Layer>& layers() const { return layers_; }
  const std::vector<float>& final_norm() const { return final_norm_; }
  const T* head() const { return head_; }  // [V, H]
  // Rows of the embedding as they are published; null if the head is the embedding.
  const std::byte* embedding_rows() const { return embedding_.data(); }
  // Bytes of the matrices, which a step reads.
  int64_t matrix_bytes() const { return buffer_.bytes(); }

 private:
  // Up to 16 rows of a tensor. They become outputs first .. first + rows - 1 of a packed matrix.
  struct Strip {
    int64_t tensor, row, rows, first;
    T* to;
  };
  // A tensor that becomes the elements from `first` on of a vector.
  struct Vector {
    int64_t tensor;
    std::vector<float>* to;
    int64_t first;
  };

  PackedWeights(ModelConfig config, absl::Span<const TensorSpec> specs);
  absl::Status Allocate();

  // These list what Pack() copies, and where each tensor lies. `prefix` ends with a dot.
  void AddAttention(const std::string& prefix, Layer* layer);
  void AddDenseMlp(const std::string& prefix, Layer* layer);
  void AddMlpMatrices(const std::string& prefix, T* gate_up, T* down);
  void AddMatrix(const std::string& name, int64_t first, int64_t stride, T* to);
  void AddVector(const std::string& name, std::vector<float>* to);

  int64_t Find(const std::string& name) const;
  int64_t ElementsOf(int64_t tensor) const;
  bool has_own_embedding() const { return embedding_.bytes() > 0; }
  Fingerprint FingerprintOfStrip(const Strip& strip) const;
  Fingerprint FingerprintOfVector(const Vector& vector) const;
  // Of elements [first, first + n) of the embedding's own rows.
  Fingerprint FingerprintOfEmbedding(int64_t first, int64_t n) const;

  const ModelConfig config_;
  const std::vector<TensorSpec> specs_;
  HugeBuffer buffer_;     // The matrices.
  HugeBuffer embedding_;  // [V, H] in its own type; empty if the head is the embedding.
  int64_t embedding_tensor_ = -1;
  std::vector<Layer> layers_;
  std::vector<float> final_norm_;
  T* head_ = nullptr;
  std::vector<Strip> strips_;
  std::vector<Vector> vectors_;
  std::vector<kernels::DeltaPlace> places_;  // By tensor.
};

}  // namespace sluice
