#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/checkpoint/model_config.h"

namespace sluice {

// A low-rank change of a model's matrices (LoRA, arXiv:2106.09685): where the model computes W x, a
// sequence with the adapter gets W x + scale B (A x), with A [r, in], B [out, r] and scale =
// lora_alpha / r, or lora_alpha / sqrt(r) with use_rslora (arXiv:2312.03732).
//
// Sums are fp32 in an order of their own for each output, so a row depends on itself alone.
// Immutable; thread-safe.
class Adapter {
 public:
  enum Target : uint8_t { kQ, kK, kV, kO, kGate, kUp, kDown };
  static constexpr int kTargets = 7;
  static constexpr int64_t kMaxRank = 512;

  // Reads a directory as PEFT writes it: adapter_config.json (at most 1 MiB) and
  // adapter_model.safetensors, for any of q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj and
  // down_proj, in F32, BF16 or F16. It comes from outside and is believed in nothing.
  //
  // INVALID_ARGUMENT: malformed, of another model's shapes, a tensor too few or too many, a number
  // or its product with the scale that is not finite. UNIMPLEMENTED: a setting that changes what is
  // computed and that this build does not have; the message names it and a way around it.
  static absl::StatusOr<std::shared_ptr<const Adapter>> Read(const std::string& dir,
                                                             const ModelConfig& config);

  const std::string& path() const { return path_; }
  int64_t rank() const { return rank_; }
  float scale() const { return scale_; }
  const std::string& digest() const { return digest_; }  // 32 bytes, of all that it computes with.

  // Whether it was read for a model of these shapes.
  bool Fits(const ModelConfig& config) const;

  // y [out] += scale B (A x), of one matrix of one layer; nothing where the adapter leaves the
  // matrix alone. T: float, or uint16_t for bf16.
  template <typename T>
  void Add(int64_t layer, Target target, const T* x, float* y) const;

 private:
  struct Matrix {
    int64_t in = 0, out = 0;
    std::vector<float> a;  // [r, in]; empty: the matrix is left alone.
    std::vector<float> b;  // [r, out]: B turned, scale within.
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
