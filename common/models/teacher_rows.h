#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace sluice {

// What a frozen teacher gives for N rows of a batch: q = softmax(hidden head^T / temperature) is
// its distribution over the V tokens of the vocabulary. Without gradients, in fp32.
struct TeacherRows {
  at::Tensor hidden;  // [N, H'] the last hidden states.
  at::Tensor head;    // [V, H'] the output head.
  // The distributions of policy and teacher are compared on this many tokens, those that are most
  // likely under q, and both are renormalised on them. 0, or V and more: on all tokens.
  int64_t top_k = 0;
};

}  // namespace sluice
