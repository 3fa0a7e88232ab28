#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/checkpoint/model_config.h"
#include "common/checkpoint/tensor_set.h"
#include "common/models/huge_buffer.h"
#include "common/models/team.h"
#include "common/weights/fingerprint.h"

namespace sluice {

// The weights of a decoder in the form that kernels/decoder takes, as one piece of memory. T is
// float, or uint16_t for bf16. Matrices are in panels of 16 outputs. q, k and v are one matrix, so
// that one product computes all three; the panels of gate and up alternate, so that SwiGLU finds
// both sides of an output next to each other. Vectors are fp32.
//
// H hidden, Q query and KV key/value widths (heads x D), F feed-forward width, E experts, V
// vocabulary.
//
// One thread calls it; Pack() and Fingerprints() share their work with a team.
template <typename T>
class PackedWeights {
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

  PackedWeights() = default;
  // The list of vectors points into the layers.
  PackedWeights(const PackedWeights&) = delete;
  PackedWeights& operator=(const PackedWeights&) = delete;

  // Makes room for `weights`, which have the parameters of `config`. RESOURCE_EXHAUSTED: there is
  // not enough memory.
  absl::Status Create(const ModelConfig& config, const TensorSet* weights);

  // Packs `weights`, which have the layout that Create() saw. They must live as long as this
  // object, or until the next Pack() has returned.
  void Pack(const TensorSet* weights, Team* team);

  // Returns the fingerprint of each tensor, computed from the packed numbers. That of the embedding
  // is computed from `weights`, where a step reads it. If the embedding is also the output head, a
  // change of either copy changes its fingerprint.
  std::vector<Fingerprint> Fingerprints(Team* team) const;

  // For the failpoint rollout.activate.bitflip: changes a bit of the first layer's q_proj.
  void FlipBit() { buffer_.data()[0] ^= std::byte{1}; }

  const std::vector<Layer>& layers() const { return layers_; }
  const std::vector<float>& final_norm() const { return final_norm_; }
  const T* head() const { return head_; }  // [V, H]
  int64_t bytes() const { return buffer_.bytes(); }

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

  // These list what Pack() copies. `prefix` ends with a dot.
  void AddAttention(const ModelConfig& config, const std::string& prefix, Layer* layer);
  void AddDenseMlp(const ModelConfig& config, const std::string& prefix, Layer* layer);
  void AddMlpMatrices(const std::string& prefix, T* gate_up, T* down);
  void AddMatrix(const std::string& name, int64_t first, int64_t stride, T* to);
  void AddVector(const std::string& name, std::vector<float>* to);

  Fingerprint FingerprintOfStrip(const Strip& strip) const;
  // Returns the fingerprint of elements [first, first + n) of a tensor of the weights.
  Fingerprint FingerprintOfTensorPart(int64_t tensor, int64_t first, int64_t n) const;

  const TensorSet* weights_ = nullptr;
  HugeBuffer buffer_;
  std::vector<Layer> layers_;
  std::vector<float> final_norm_;
  T* head_ = nullptr;
  std::vector<Strip> strips_;
  std::vector<Vector> vectors_;
};

}  // namespace sluice
