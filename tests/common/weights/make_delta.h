#pragma once

#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/checkpoint/tensor_set.h"
#include "common/weights/weight_delta.h"

namespace sluice {

// The way from one set of weights to another of the same layout.
inline WeightDelta MakeDelta(TensorSet from, const TensorSet& to) {
  WeightDelta delta{.base = FingerprintOf(from)};
  std::vector<DeltaInput> inputs;
  for (size_t i = 0; i < to.size(); ++i) {
    inputs.push_back({.tensor = static_cast<uint32_t>(i),
                      .width = static_cast<int>(DTypeBytes(to.spec(i).dtype)),
                      .source = {.shard = {.tid = TensorKey(to.spec(i).name),
                                           .count = static_cast<uint64_t>(to.elements(i))},
                                 .now = to.data(i),
                                 .shadow = from.data(i)}});
  }
  delta.tensor_states = TensorFingerprints(from);
  EncodeDeltaChunks(
      inputs, {},
      [](int64_t n, absl::FunctionRef<void(int64_t)> work) {
        for (int64_t i = 0; i < n; ++i) work(i);
      },
      [&](std::string bytes) {
        absl::StatusOr<DeltaChunk> chunk = DeltaChunk::Parse(std::move(bytes), to.specs());
        SLUICE_CHECK_MSG(chunk.ok(), chunk.status().ToString());
        delta.chunks.push_back({*std::move(chunk), +1});
      },
      absl::MakeSpan(delta.tensor_states));
  return delta;
}

// The same way taken backward: from `to` to weights with these tensors.
inline WeightDelta Backward(WeightDelta delta, const TensorSet& to, const TensorSet& from) {
  delta.base = FingerprintOf(to);
  delta.tensor_states = TensorFingerprints(from);
  for (SignedChunk& part : delta.chunks) part.sign = -part.sign;
  return delta;
}

}  // namespace sluice
