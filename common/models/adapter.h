#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/checkpoint/model_config.h"

namespace sluice {

// A low-rank change of a model's weight matrices (LoRA, arXiv:2106.09685). Where the model computes
// W x, a sequence that uses the adapter gets W x + scale B (A x). A is [r, in] and B is [out, r].
// The scale is lora_alpha / r, or lora_alpha / sqrt(r) with use_rslora (arXiv:2312.03732).
//
// Sums are computed in fp32. The order of a sum depends only on the shapes, so the result of a row
// does not depend on the other rows of its batch.
//
// Immutable, so thread-safe.
class Adapter {
 public:
  enum Target : uint8_t { kQ, kK, kV, kO, kGate, kUp, kDown };
  static constexpr int kTargets = 7;
  static constexpr int64_t kMaxRank = 512;

  // Reads a directory that PEFT has written: adapter_config.json (at most 1 MiB) and
  // adapter_model.safetensors, with tensors in F32, BF16 or F16. The adapter may change any of
  // q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj and down_proj. The files are untrusted, so
  // everything in them is checked.
  //
  // INVALID_ARGUMENT: a file is malformed; a tensor is missing, unknown or of the wrong shape; or a
  // number, or its product with the scale, is not finite.
  // UNIMPLEMENTED: a setting changes the computation in a way that this build does not have. The
  // message names the setting and a way around it.
  static absl::StatusOr<std::shared_ptr<const Adapter>> Read(const std::string& dir,
                                                             const ModelConfig& config);

  const std::string& path() const { return path_; }
  int64_t rank() const { return rank_; }
  float scale() const { return scale_; }
  // SHA-256 of rank, scale and tensors: 32 bytes.
  const std::string& digest() const { return digest_; }

  // Whether a model with this config has the shapes for which the adapter was read.
  bool Fits(const ModelConfig& config) const;

  // Adds the adapter's part of one matrix of one layer: y [out] += scale B (A x), with x [in]. Does
  // nothing if the adapter does not change this matrix. T is float, or uint16_t for bf16.
  template <typename T>
  void Add(int64_t layer, Target target, const T* x, float* y) const;

 private:
  struct Matrix {
    int64_t in = 0, out = 0;
    std::vector<float> a;  // [r, in]. Empty: the adapter does not change this matrix.
    std::vector<float> b;  // [r, out]: the transpose of B, multiplied by the scale.
  };

  Adapter() = default;
  absl::Status ReadConfig(const std::string& file, std::array<bool, kTargets>* targets);
  absl::Status ReadTensors(const std::string& file, const std::array<bool, kTargets>& targets);

  std::string path_, digest_;
  int64_t rank_ = 0;
  float scale_ = 0;
  std::vector<std::array<Matrix, kTargets>> layers_;
};

}  // namespace sluice
