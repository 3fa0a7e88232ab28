#include "common/weights/weight_delta.h"

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>

#include "common/base/status.h"
#include "kernels/weight_delta/bits.h"

namespace sluice {

uint64_t WeightDelta::changed() const {
  uint64_t sum = 0;
  for (const SignedChunk& part : chunks) sum += part.chunk.changed();
  return sum;
}

uint64_t WeightDelta::bytes() const {
  uint64_t sum = 0;
  for (const SignedChunk& part : chunks) sum += part.chunk.bytes().size();
  return sum;
}

bool MayOverlap(const WeightDelta& delta) {
  // From the first to the last index of each run, which for columns holds those of others too.
  std::vector<std::tuple<uint32_t, uint64_t, uint64_t>> spans;
  for (const SignedChunk& part : delta.chunks) {
    for (const DeltaChunk::Run& run : part.chunk.runs()) {
      spans.emplace_back(run.tensor, kernels::IndexInTensor(run.shard, run.start),
                         kernels::IndexInTensor(run.shard, run.shard.count - 1));
    }
  }
  std::sort(spans.begin(), spans.end());
  for (size_t i = 1; i < spans.size(); ++i) {
    const auto& [tensor, first, last] = spans[i];
    if (std::get<0>(spans[i - 1]) == tensor && std::get<2>(spans[i - 1]) >= first) return true;
  }
  return false;
}

WeightDelta Merge(const WeightDelta& delta, absl::Span<const TensorSpec> layout) {
  WeightDelta merged{.base = delta.base, .chunks = {}, .tensor_states = delta.tensor_states};
  MergeDeltas(delta.chunks, layout, {}, [&](std::string bytes) {
    absl::StatusOr<DeltaChunk> chunk = DeltaChunk::Parse(std::move(bytes), layout);
    SLUICE_CHECK_MSG(chunk.ok(), chunk.status().ToString());  // MergeDeltas() has written it.
    merged.chunks.push_back({*std::move(chunk), +1});
  });
  return merged;
}

std::vector<DeltaPiece> CutIntoPieces(const WeightDelta& delta, uint32_t tiles) {
  std::vector<DeltaPiece> pieces;
  for (const SignedChunk& part : delta.chunks) {
    for (const DeltaChunk::Run& run : part.chunk.runs()) {
      for (uint32_t begin = 0; begin < run.tiles; begin += tiles)
        pieces.push_back({&part, &run, begin, std::min(run.tiles, begin + tiles)});
    }
  }
  return pieces;
}

}  // namespace sluice
