#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/checkpoint/model_config.h"
#include "common/checkpoint/tensor_set.h"
#include "common/models/adapter.h"
#include "kernels/decoder/op.h"

namespace sluice {

// A decoder written the obvious way, as an oracle for DecodeModel: one sequence, one token at a
// time, one matrix at a time, one thread. It calls the same kernels, whose results depend on one
// row alone, so DecodeModel must give the same bits on every CPU.
//
// T is float, or uint16_t for a model in bf16, and is the type of all the model's weights. In bf16
// the input of a matrix product is rounded to bf16, except for the products with the matrices of q,
// k, v and the router.
template <typename T>
class PlainModel {
 public:
  // `weights` outlive the model.
  PlainModel(const ModelConfig& config, const TensorSet* weights);

  // Computes the next token of the sequence and returns its logits [V]. `adapter` may be null.
  std::vector<float> Next(int32_t token, const Adapter* adapter);

  // The experts of the last token: [layers, experts_per_token].
  const std::vector<uint16_t>& routing() const { return routing_; }

 private:
  using Floats = std::vector<float>;

  const T* TensorData(const std::string& name) const;
  Floats Vector(const std::string& name) const;
  std::vector<T> Round(const Floats& x) const;
  // Returns W x for the matrix `name` + ".weight", without a bias. X is T or float.
  template <typename X>
  Floats Multiply(const std::string& name, std::vector<X> x);
  Floats Norm(const Floats& x, const std::string& name) const;
  void NormAndRotateHead(const std::string& norm, float* head) const;

  Floats Attend(int64_t layer, const Floats& normed, const Adapter* adapter);
  Floats ComputeMlp(int64_t layer, const Floats& normed, const Adapter* adapter);
  Floats ComputeExperts(int64_t layer, const Floats& normed);

  const ModelConfig config_;
  const TensorSet& weights_;
  const DecoderOps& ops_ = BestDecoderOps();
  std::map<std::string, std::vector<T>> packed_;  // By name of a matrix, packed at its first use.
  int64_t position_ = 0;
  std::vector<int32_t> blocks_;        // 0, 1, ..: the blocks of a head lie in order.
  std::vector<std::vector<T>> cache_;  // By layer and KV head: blocks of keys and values.
  std::vector<uint16_t> routing_;
};

}  // namespace sluice
