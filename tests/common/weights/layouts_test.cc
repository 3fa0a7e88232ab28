// Trainers and engines that cut the same tensors in different ways: by FSDP x TP x EP. The slow
// model is the whole tensors, and fingerprints that are computed of all of them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "common/base/splitmix.h"
#include "common/weights/delta_chunk.h"
#include "common/weights/weight_delta.h"

namespace sluice {
namespace {

// Between two tensors of a set there may be bytes that belong to none.
bool SameTensors(const TensorSet& a, const TensorSet& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::memcmp(a.data(i), b.data(i), static_cast<size_t>(a.bytes(i))) != 0) return false;
  }
  return true;
}

// How the ranks of one side share a model.
struct Mesh {
  uint64_t fsdp = 1, tp = 1, ep = 1;
  uint64_t ranks() const { return fsdp * tp * ep; }
};
Mesh RandomMesh(SplitMix64* random) {
  return {1 + random->Below(4), 1 + random->Below(3), 1 + random->Below(3)};
}

TensorSet LayoutWeights(SplitMix64* random) {
  TensorSet set = *TensorSet::Create({{"experts.weight", DType::kF8E4M3, {7, 11, 13}},
                                      {"k.weight", DType::kBF16, {60, 24}},
                                      {"norm.weight", DType::kF32, {50}},
                                      {"o.weight", DType::kBF16, {40, 37}}});
  for (std::byte& b : set.buffer()) b = static_cast<std::byte>(random->Next());
  return set;
}

// Part `i` of `parts` of n things.
std::pair<uint64_t, uint64_t> PartOf(uint64_t n, uint64_t i, uint64_t parts) {
  return {n * i / parts, n * (i + 1) / parts};
}

// What a rank holds of a tensor, and whether it counts it in the fingerprint.
struct Held {
  uint32_t tensor;
  kernels::DeltaShard shard;
  bool owner;
};

// The parts of rank (f, t, e). Rows of k are cut by TP and then by FSDP, columns of o by TP and its
// rows by FSDP, and whole experts by EP; norm is the same on all ranks of TP. Where a tensor is not
// cut by EP or TP, the first rank counts it.
std::vector<Held> HeldBy(const TensorSet& layout, const Mesh& mesh, uint64_t rank) {
  const uint64_t f = rank % mesh.fsdp, t = rank / mesh.fsdp % mesh.tp,
                 e = rank / mesh.fsdp / mesh.tp;
  std::vector<Held> held;
  for (uint32_t i = 0; i < layout.size(); ++i) {
    const TensorSpec& spec = layout.spec(i);
    const auto rows = static_cast<uint64_t>(spec.shape[0]);
    const uint64_t row = static_cast<uint64_t>(layout.elements(i)) / rows;
    kernels::DeltaShard shard{.tid = TensorKey(spec.name)};
    if (spec.name == "o.weight") {
      const auto [left, right] = PartOf(row, t, mesh.tp);
      const auto [top, bottom] = PartOf(rows, f, mesh.fsdp);
      shard.first = top * row + left;
      shard.row_len = right - left;
      shard.row_stride = row;
      shard.count = (bottom - top) * (right - left);
    } else {
      const bool by_expert = spec.name == "experts.weight", by_tp = spec.name == "k.weight";
      const auto [top, bottom] = by_expert ? PartOf(rows, e, mesh.ep)
                                 : by_tp   ? PartOf(rows, t, mesh.tp)
                                           : PartOf(rows, 0, 1);
      const auto [from, to] = PartOf((bottom - top) * row, f, mesh.fsdp);
      shard.first = top * row + from;
      shard.count = to - from;
    }
    const bool by_expert = spec.name == "experts.weight", whole = spec.name == "norm.weight";
    const bool owner = by_expert ? t == 0 : e == 0 && (!whole || t == 0);
    if (shard.count > 0) held.push_back({i, shard, owner});
  }
  return held;
}

// Calls `visit` with the offsets of each element of a shard: in its memory, and in the tensor.
template <typename F>
void ForEachElement(const Held& held, size_t width, const F& visit) {
  const kernels::DeltaShard& shard = held.shard;
  for (uint64_t l = 0; l < shard.count; ++l) {
    const uint64_t index = shard.first + l / shard.row_len * shard.row_stride + l % shard.row_len;
    visit(l * width, index * width);
  }
}

using Memory = std::vector<std::byte>;
Memory CutOut(const TensorSet& whole, const Held& held) {
  const size_t width = DTypeBytes(whole.spec(held.tensor).dtype);
  Memory part(held.shard.count * width);
  ForEachElement(held, width, [&](uint64_t to, uint64_t from) {
    std::memcpy(&part[to], whole.data(held.tensor) + from, width);
  });
  return part;
}

void RunInOrder(int64_t n, absl::FunctionRef<void(int64_t)> work) {
  for (int64_t i = 0; i < n; ++i) work(i);
}

// What the ranks of a trainer send, and what they add to the fingerprint together.
struct Sent {
  std::vector<SignedChunk> chunks;
  Fingerprint sum;
};
Sent SendFrom(const Mesh& mesh, const TensorSet& old, const TensorSet& now, uint64_t target) {
  Sent sent;
  for (uint64_t rank = 0; rank < mesh.ranks(); ++rank) {
    std::vector<std::pair<Memory, Memory>> memory;
    std::vector<DeltaInput> inputs;
    const std::vector<Held> all = HeldBy(now, mesh, rank);
    memory.reserve(all.size());
    for (const Held& held : all) {
      if (!held.owner) continue;
      auto& [after, shadow] = memory.emplace_back(CutOut(now, held), CutOut(old, held));
      inputs.push_back({held.tensor,
                        static_cast<int>(DTypeBytes(now.spec(held.tensor).dtype)),
                        {held.shard, after.data(), shadow.data()}});
    }
    std::vector<Fingerprint> sums(inputs.size());
    EncodeDeltaChunks(
        inputs, {.target_bytes = target}, RunInOrder,
        [&](std::string bytes) {
          absl::StatusOr<DeltaChunk> chunk = DeltaChunk::Parse(std::move(bytes), now.specs());
          ASSERT_TRUE(chunk.ok()) << chunk.status();
          sent.chunks.push_back({*std::move(chunk), +1});
        },
        absl::MakeSpan(sums));
    sent.sum += Sum(sums);
  }
  return sent;
}

// The ranks of an engine. The fingerprint is folded from what they find as they apply deltas.
class Replica {
 public:
  Replica(const Mesh& mesh, const TensorSet& weights)
      : mesh_(mesh), layout_(weights), folded_(FingerprintOf(weights)) {
    for (uint64_t rank = 0; rank < mesh.ranks(); ++rank) {
      for (const Held& held : HeldBy(weights, mesh, rank))
        ranks_.push_back({rank, held, CutOut(weights, held)});
    }
  }
  void Apply(const std::vector<SignedChunk>& chunks, int sign) {
    for (Part& part : ranks_) {
      const DeltaTarget target = {part.held.tensor, part.held.shard, part.memory.data()};
      std::vector<Fingerprint> sums(layout_.size());
      for (const SignedChunk& chunk : chunks)
        chunk.chunk.Apply(sign * chunk.sign, {&target, 1}, absl::MakeSpan(sums));
      if (part.held.owner) folded_ += Sum(sums);
    }
  }
  const Fingerprint& folded() const { return folded_; }
  // All ranks together; those that hold the same elements must hold the same bits.
  TensorSet Gather() const {
    TensorSet whole = layout_;
    for (const bool owners : {true, false}) {
      for (const Part& part : ranks_) {
        if (part.held.owner != owners) continue;
        if (owners) {
          const size_t width = DTypeBytes(layout_.spec(part.held.tensor).dtype);
          ForEachElement(part.held, width, [&](uint64_t from, uint64_t to) {
            std::memcpy(whole.data(part.held.tensor) + to, &part.memory[from], width);
          });
        } else {
          EXPECT_EQ(part.memory, CutOut(whole, part.held)) << "rank " << part.rank;
        }
      }
    }
    return whole;
  }

 private:
  struct Part {
    uint64_t rank;
    Held held;
    Memory memory;
  };
  Mesh mesh_;
  TensorSet layout_;
  std::vector<Part> ranks_;
  Fingerprint folded_;
};

TensorSet ChangeSome(const TensorSet& from, SplitMix64* random) {
  TensorSet to = from;
  const uint64_t odds = 1 + random->Below(30);
  for (std::byte& b : to.buffer()) {
    if (random->Below(odds) == 0) b ^= static_cast<std::byte>(1 + random->Below(255));
  }
  return to;
}

TEST(LayoutsTest, W02TheFoldedFingerprintIsThatOfAllWeightsAfterAnyWayInAnyLayouts) {
  int merges = 0, rewinds = 0, reshards = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(seed);
    SplitMix64 random(seed);
    std::vector<TensorSet> states = {LayoutWeights(&random)};
    std::vector<Sent> sent;  // From each state to the next.
    size_t at = 0;           // The state that the replica holds.
    Replica replica(RandomMesh(&random), states[0]);
    for (int step = 0; step < 12; ++step) {
      switch (random.Below(4)) {
        case 0: {  // Over several deltas at once, back or forward.
          const size_t to = random.Below(states.size());
          std::vector<SignedChunk> chunks, merged;
          for (size_t i = std::min(at, to); i < std::max(at, to); ++i)
            chunks.insert(chunks.end(), sent[i].chunks.begin(), sent[i].chunks.end());
          MergeDeltas(chunks, states[0].specs(), {}, [&](std::string bytes) {
            merged.push_back({*DeltaChunk::Parse(std::move(bytes), states[0].specs()), +1});
          });
          replica.Apply(merged, to < at ? -1 : +1);
          at = to, ++merges;
          break;
        }
        case 1:  // Back.
          if (at == 0) break;
          replica.Apply(sent[--at].chunks, -1);
          ++rewinds;
          break;
        case 2:
          replica = Replica(RandomMesh(&random), replica.Gather());
          ++reshards;
          break;
        default: {  // A new state takes the place of those that were rewound.
          states.resize(at + 1);
          sent.resize(at);
          states.push_back(ChangeSome(states[at], &random));
          sent.push_back(
              SendFrom(RandomMesh(&random), states[at], states[at + 1], 1 + random.Below(3000)));
          Fingerprint expected = FingerprintOf(states[at]);
          expected += sent[at].sum;
          EXPECT_EQ(expected, FingerprintOf(states[at + 1])) << "what the trainer's ranks found";
          replica.Apply(sent[at++].chunks, +1);
        }
      }
      const TensorSet held = replica.Gather();
      ASSERT_TRUE(SameTensors(held, states[at])) << step;
      ASSERT_EQ(replica.folded(), FingerprintOf(held)) << step;
    }
  }
  EXPECT_GT(merges, 50);
  EXPECT_GT(rewinds, 50);
  EXPECT_GT(reshards, 50);
}

}  // namespace
}  // namespace sluice
