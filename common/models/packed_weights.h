#pragma once

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

// A decoder's weights as kernels/decoder wants them, T = float or uint16_t for bf16: matrices in
// panels, q, k and v as one, gate and up in panels that alternate; vectors widened to fp32. H
// hidden, Q query and KV key/value widths (heads x D), F feed-forward width, E experts.
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
    T* qkv;                                    // [Q + 2 KV, H]
    T* o;                                      // [H, Q]
    T* gate_up;                                // [2 F rounded up to panels, H]; null with experts.
    T* down;                                   // [H, F]; likewise.
    // [H], [F], [F], [H]; empty without them.
    std::vector<float> o_bias, gate_bias, up_bias, down_bias;
    T* router = nullptr;          // [E, H]
    std::vector<Expert> experts;  // [E]; empty without experts.
  };

  // Room for `weights`, which have the parameters of `config`. RESOURCE_EXHAUSTED: no memory.
  absl::Status Create(const ModelConfig& config, const TensorSet* weights);
  // Packs `weights`, of the layout that Create() saw, by all threads of the team. They outlive
  // this, or the next Pack().
  void Pack(const TensorSet* weights, Team* team);
  // Of each tensor, from the packed numbers; of an embedding that is not packed, for it is not
  // tied, from the weights. By all threads of the team.
  std::vector<Fingerprint> Fingerprints(Team* team) const;
#ifdef SLUICE_FAILPOINTS
  void FlipBit() { buffer_.data()[0] ^= std::byte{1}; }  // Of the first layer's q_proj.
#endif

  const std::vector<Layer>& layers() const { return layers_; }
  const std::vector<float>& final_norm() const { return final_norm_; }
  const T* head() const { return head_; }  // [V, H]
  int64_t bytes() const { return buffer_.bytes(); }

 private:
  // 16 or fewer rows of a tensor, which become outputs first .. of a matrix.
  struct Strip {
    int64_t tensor, row, rows, first;
    T* to;
  };
  struct Vector {
    int64_t tensor;
    std::vector<float>* to;
    int64_t first;  // Where its numbers begin there.
  };
  void Take(const std::string& name, int64_t first, int64_t stride, T* to);
  void Take(const std::string& name, std::vector<float>* to);
  void TakeMlp(const std::string& prefix, T* gate_up, T* down);
  Fingerprint FingerprintOfStrip(const Strip& strip) const;

  const TensorSet* weights_ = nullptr;
  HugeBuffer buffer_;
  std::vector<Layer> layers_;
  std::vector<float> final_norm_;
  T* head_ = nullptr;
  std::vector<Strip> strips_;
  std::vector<Vector> vectors_;
};

}  // namespace sluice
