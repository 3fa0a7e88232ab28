#include <algorithm>

#include "kernels/weight_delta/op.h"
#include "tests/kernels/cuda/check.h"

namespace sluice {
namespace {

using cuda_check::Measure;
using cuda_check::OnDevice;
using cuda_check::Small;
using kernels::DeltaCudaPiece;
using kernels::DeltaCudaSource;
using kernels::DeltaShard;
using kernels::DeltaTile;
using kernels::kDeltaPadding;

using Bytes = std::vector<uint8_t>;

uint64_t TilesOf(uint64_t elements, int tile_log2) {
  return (elements + (uint64_t{1} << tile_log2) - 1) >> tile_log2;
}

// The old and the new elements of a shard. Each changes with odds of `per_mille`, in three of four
// cases by one place.
struct States {
  DeltaShard shard;
  int width;
  Bytes old, now;
  size_t skipped = 0;  // Elements before the shard in the arrays, so that it can be misaligned.

  States(uint32_t seed, const DeltaShard& shard, int width, uint32_t per_mille, size_t skipped = 0)
      : shard(shard), width(width), skipped(skipped) {
    std::mt19937 random(seed);
    old.resize((shard.count + skipped) * static_cast<size_t>(width));
    for (uint8_t& byte : old) byte = static_cast<uint8_t>(random());
    now = old;
    for (uint64_t i = skipped; i < shard.count + skipped; ++i) {
      if (random() % 1000 >= per_mille) continue;
      uint8_t* const element = &now[i * static_cast<uint64_t>(width)];
      uint32_t bits = 0;
      std::memcpy(&bits, element, static_cast<size_t>(width));
      switch (random() % 8) {
        case 0: bits = static_cast<uint32_t>(random()); break;
        case 1: bits += static_cast<uint32_t>(random() % 200); break;
        default: bits += random() % 2 == 0 ? 1u : ~0u;
      }
      std::memcpy(element, &bits, static_cast<size_t>(width));
    }
  }
  size_t offset() const { return skipped * static_cast<size_t>(width); }
};

struct Delta {
  std::vector<DeltaTile> tiles;
  Bytes bodies;
  std::vector<uint64_t> sums;  // [sources][2]
  std::vector<Bytes> shadows;
};

Delta EncodeOnCpu(const std::vector<States>& all, int tile_log2) {
  Delta delta;
  delta.sums.resize(2 * all.size(), 3);  // They are added to.
  for (size_t i = 0; i < all.size(); ++i) {
    const States& states = all[i];
    delta.shadows.push_back(states.old);
    kernels::EncodeDelta({states.shard, states.now.data() + states.offset(),
                          delta.shadows.back().data() + states.offset()},
                         states.width, tile_log2, 0, TilesOf(states.shard.count, tile_log2),
                         &delta.tiles, &delta.bodies, &delta.sums[2 * i]);
  }
  return delta;
}

// Encodes on the device, with room for `capacity` bytes of bodies.
Delta EncodeOnDevice(const std::vector<States>& all, int tile_log2, uint64_t capacity,
                     uint64_t* bytes) {
  std::vector<std::unique_ptr<OnDevice<uint8_t>>> arrays;
  std::vector<DeltaCudaSource> sources;
  uint64_t tiles = 0;
  for (const States& states : all) {
    arrays.push_back(std::make_unique<OnDevice<uint8_t>>(states.now));
    arrays.push_back(std::make_unique<OnDevice<uint8_t>>(states.old));
    const DeltaCudaSource source = {{states.shard, arrays.end()[-2]->data() + states.offset(),
                                     arrays.end()[-1]->data() + states.offset()},
                                    tiles};
    sources.push_back(source);
    tiles += TilesOf(states.shard.count, tile_log2);
  }
  OnDevice<DeltaCudaSource> table(sources);
  OnDevice<DeltaTile> entries(tiles);
  OnDevice<uint8_t> bodies(Bytes(capacity, 0xee)), workspace(kernels::EncodeDeltaWorkspace(tiles));
  OnDevice<uint64_t> length(1), sums(std::vector<uint64_t>(2 * all.size(), 3));

  kernels::EncodeDeltaCuda(table.data(), static_cast<int>(all.size()), tiles, all[0].width,
                           tile_log2, entries.data(), bodies.data(), capacity, length.data(),
                           sums.data(), workspace.data(), nullptr);
  CUDA_OK(cudaGetLastError());

  Delta delta;
  *bytes = length.CopyToHost()[0];
  delta.tiles = entries.CopyToHost();
  delta.bodies = bodies.CopyToHost();
  delta.sums = sums.CopyToHost();
  for (size_t i = 0; i < all.size(); ++i) delta.shadows.push_back(arrays[2 * i + 1]->CopyToHost());
  return delta;
}

void CheckEncode(const std::vector<States>& all, int tile_log2, const std::string& what) {
  const Delta expected = EncodeOnCpu(all, tile_log2);
  uint64_t bytes = 0;
  // One byte more than needed shows that nothing is written beyond.
  const Delta delta = EncodeOnDevice(all, tile_log2, expected.bodies.size() + 1, &bytes);

  CUDA_EXPECT(bytes == expected.bodies.size())
      << what << ": " << bytes << " bytes, not " << expected.bodies.size();
  for (size_t t = 0; t < expected.tiles.size(); ++t) {
    const DeltaTile &a = delta.tiles[t], &b = expected.tiles[t];
    CUDA_EXPECT(a == b) << what << ": tile " << t << " ends at " << a.end << ", not " << b.end
                        << ", mode " << int(a.mode) << ", not " << int(b.mode) << ", k " << int(a.k)
                        << ", not " << int(b.k) << ", changed " << a.changed_less_one << ", not "
                        << b.changed_less_one;
    if (!(a == b)) return;
  }
  const auto differs =
      std::mismatch(expected.bodies.begin(), expected.bodies.end(), delta.bodies.begin());
  CUDA_EXPECT(differs.first == expected.bodies.end())
      << what << ": byte " << differs.first - expected.bodies.begin();
  CUDA_EXPECT(delta.bodies.back() == 0xee) << what;
  CUDA_EXPECT(delta.sums == expected.sums) << what;
  CUDA_EXPECT(delta.shadows == expected.shadows) << what;
}

DeltaShard Range(uint64_t first, uint64_t count) {
  return {.tid = 0x1234567890abcdef + first, .first = first, .count = count};
}
DeltaShard Columns(uint64_t column, uint64_t columns, uint64_t all, uint64_t rows) {
  return {
      .tid = 99, .first = column, .row_len = columns, .row_stride = all, .count = columns * rows};
}

std::string Describe(int width, uint32_t per_mille) {
  return "width " + std::to_string(width) + ", " + std::to_string(per_mille) + " of 1000";
}

CUDA_CASE(TilesOfEveryDensityHaveTheBytesOfTheReference) {
  for (const int width : {1, 2, 4}) {
    for (const uint32_t per_mille : {0, 1, 10, 100, 240, 260, 700, 1000}) {
      if (Small() && (per_mille == 1 || per_mille == 700)) continue;
      CheckEncode({States(per_mille, Range(0, 8192 + 77), width, per_mille)}, 13,
                  Describe(width, per_mille));
    }
  }
}

CUDA_CASE(LongTilesHaveTheBytesOfTheReference) {
  for (const int width : {1, 2, 4}) {
    for (const uint32_t per_mille : {2, 200, 400}) {
      if (Small() && per_mille == 200 && width != 2) continue;
      CheckEncode({States(per_mille, Range(0, Small() ? 20'000 : 150'000), width, per_mille)}, 16,
                  Describe(width, per_mille));
    }
  }
}

// Unaligned, short and empty sources, and columns. Tile 0 of a source follows the last of another.
CUDA_CASE(SourcesOfAnyShapeHaveTheBytesOfTheReference) {
  for (const int width : {1, 2, 4}) {
    std::vector<States> all;
    all.emplace_back(1, Range(5, 1), width, 1000);
    all.emplace_back(2, Range(1000, 9000), width, 30, 1);
    all.emplace_back(3, Columns(7, 33, 100, 300), width, 50);
    all.emplace_back(4, Range(0, 8192), width, 0);
    all.emplace_back(5, Range(3, 1001), width, 500, 3);
    CheckEncode(all, 13, Describe(width, 0));
  }
}

// Changes of nearly all fp32 elements by hundreds of places, as of an optimizer without rounding.
CUDA_CASE(DenseTilesOfFloatsHaveTheBytesOfTheReference) {
  for (const int bits : {3, 9, 14, 20}) {
    States states(static_cast<uint32_t>(bits), Range(0, 8192), 4, 0);
    std::mt19937 random(7);
    for (size_t i = 0; i < states.now.size(); i += 4) {
      uint32_t x;
      std::memcpy(&x, &states.now[i], 4);
      x += static_cast<uint32_t>(random()) % (2u << bits) - (1u << bits);
      std::memcpy(&states.now[i], &x, 4);
    }
    CheckEncode({states}, 13, "bits " + std::to_string(bits));
  }
}

// Enough tiles that a look-back passes several windows of 32.
CUDA_CASE(ManyTilesAreInOrder) {
  const uint64_t tiles = Small() ? 70 : 3000;
  std::vector<States> all;
  if (Small()) {
    for (uint64_t t = 0; t < tiles; ++t)
      all.emplace_back(static_cast<uint32_t>(t), Range(t, 40), 2, 100);
  } else {
    all.emplace_back(1, Range(0, tiles * 8192 - 5), 2, 10);
  }
  CheckEncode(all, 13, "many tiles");
}

CUDA_CASE(BodiesBeyondTheCapacityAreNotWritten) {
  const std::vector<States> all = {States(1, Range(0, 3 * 8192), 2, 100)};
  const Delta expected = EncodeOnCpu(all, 13);
  uint64_t bytes = 0;
  const Delta delta = EncodeOnDevice(all, 13, expected.bodies.size() - 1, &bytes);

  CUDA_EXPECT(bytes == expected.bodies.size()) << bytes;
  CUDA_EXPECT(delta.bodies.back() == 0xee);
  CUDA_EXPECT(delta.shadows == expected.shadows);
  CUDA_EXPECT(delta.sums == expected.sums);
}

CUDA_CASE(NoTilesAreZeroBytes) {
  OnDevice<uint64_t> bytes(std::vector<uint64_t>{5});
  kernels::EncodeDeltaCuda(nullptr, 0, 0, 2, 13, nullptr, nullptr, 0, bytes.data(), nullptr,
                           nullptr, nullptr);
  kernels::ApplyDeltaCuda(nullptr, 0, 0, 2, 13, +1, nullptr, nullptr);
  CUDA_OK(cudaGetLastError());
  CUDA_EXPECT(bytes.CopyToHost()[0] == 0);
}

// Applies the delta of `states` to a receiver that holds the shard `to` of the same tensor, forward
// and backward, on the CPU and on the device.
void CheckApply(const States& states, int tile_log2, const DeltaShard& to, const Bytes& before,
                const std::string& what) {
  const Delta delta = EncodeOnCpu({states}, tile_log2);
  Bytes expected = before, padded = delta.bodies;
  padded.resize(padded.size() + kDeltaPadding);
  OnDevice<uint8_t> bodies(padded), weights(before);
  OnDevice<DeltaTile> tiles(delta.tiles);
  const DeltaCudaPiece piece = {.from = states.shard,
                                .to = to,
                                .weights = weights.data(),
                                .tiles = tiles.data(),
                                .body = bodies.data()};
  OnDevice<DeltaCudaPiece> table(std::vector<DeltaCudaPiece>{piece});

  for (const int sign : {+1, -1}) {
    std::vector<uint64_t> sum = {1, 2};
    OnDevice<uint64_t> sums(sum);
    uint32_t begin = 0;
    kernels::DeltaChanges changes;
    for (size_t t = 0; t < delta.tiles.size(); ++t) {
      const uint64_t start = uint64_t{t} << tile_log2;
      const auto n =
          static_cast<uint32_t>(std::min(states.shard.count - start, uint64_t{1} << tile_log2));
      const uint32_t end = delta.tiles[t].end;
      CUDA_EXPECT(kernels::DecodeDeltaTile(states.width, tile_log2, n, delta.tiles[t],
                                           std::span(delta.bodies).subspan(begin, end - begin),
                                           &changes) == nullptr)
          << what;
      kernels::ApplyDelta(states.shard, start, changes, sign, to, states.width, expected.data(),
                          sum.data());
      begin = end;
    }

    kernels::ApplyDeltaCuda(table.data(), 1, delta.tiles.size(), states.width, tile_log2, sign,
                            sums.data(), nullptr);
    CUDA_OK(cudaGetLastError());

    CUDA_EXPECT(weights.CopyToHost() == expected) << what << ", sign " << sign;
    CUDA_EXPECT(sums.CopyToHost() == sum) << what << ", sign " << sign;
  }
}

CUDA_CASE(AppliedDeltasGiveTheWeightsAndSumsOfTheReference) {
  for (const int width : {1, 2, 4}) {
    for (const int tile_log2 : {13, 16}) {
      for (const uint32_t per_mille : {0, 10, 100, 240, 500, 1000}) {
        if (Small() && tile_log2 == 16 && per_mille != 100) continue;
        const DeltaShard shard = Range(300, 8192 + 1500);
        const States states(per_mille, shard, width, per_mille);
        CheckApply(states, tile_log2, shard, states.old,
                   Describe(width, per_mille) + ", tiles of 2^" + std::to_string(tile_log2));
      }
    }
  }
}

CUDA_CASE(AReceiverTakesOnlyWhatItsShardHolds) {
  const DeltaShard shards[] = {Columns(0, 40, 64, 200),
                               Columns(24, 40, 64, 200),
                               {.tid = 99, .count = 64 * 200},
                               {.tid = 99, .first = 64 * 17 + 3, .count = 5000}};
  for (const DeltaShard& from : shards) {
    for (const DeltaShard& to : shards) {
      const Bytes before = States(8, to, 2, 0).old;
      CheckApply(States(9, from, 2, 80), 13, to, before, "other shards");
    }
  }
}

// Two chunks with a directory of their own each; the second begins in the middle of a shard.
CUDA_CASE(PiecesBeginWithinTheirChunks) {
  const States states(11, Range(0, 5 * 8192), 2, 30);
  const Delta delta = EncodeOnCpu({states}, 13);
  Bytes padded = delta.bodies;
  padded.resize(padded.size() + kDeltaPadding);
  OnDevice<uint8_t> bodies(padded), weights(states.old);
  OnDevice<DeltaTile> tiles(delta.tiles);
  DeltaShard first = states.shard;
  first.count = 2 * 8192;
  const std::vector<DeltaCudaPiece> pieces = {
      {first, states.shard, 0, weights.data(), tiles.data(), bodies.data(), 0, 0},
      {states.shard, states.shard, 2 * 8192, weights.data(), tiles.data() + 2, bodies.data(),
       delta.tiles[1].end, 2}};
  OnDevice<DeltaCudaPiece> table(pieces);
  OnDevice<uint64_t> sums(std::vector<uint64_t>(4));

  kernels::ApplyDeltaCuda(table.data(), 2, 5, 2, 13, +1, sums.data(), nullptr);
  CUDA_OK(cudaGetLastError());

  CUDA_EXPECT(weights.CopyToHost() == states.now);
  const std::vector<uint64_t> parts = sums.CopyToHost();
  CUDA_EXPECT(parts[0] + parts[2] == delta.sums[0] - 3);
  CUDA_EXPECT(parts[1] + parts[3] == delta.sums[1] - 3);
}

// ---- Speed. Bytes are those that a plain copy of the model moves, read and written: "of copy"
// compares with it directly. A delta of the design's 8.2 G parameters is 61 of these.

struct Model {
  uint64_t count;
  int width;
  OnDevice<uint8_t> before, after, shadow;

  // `changed` of 1000 elements differ by one place, or all by up to 512 places.
  Model(uint64_t count, int width, uint32_t changed)
      : Model(count, width, Elements(count, width), changed) {}
  Model(uint64_t count, int width, const Bytes& elements, uint32_t changed)
      : count(count),
        width(width),
        before(elements),
        after(Changed(elements, width, changed)),
        shadow(elements) {}

  double copied() const { return 2.0 * static_cast<double>(count) * width; }
  static Bytes Elements(uint64_t count, int width) {
    Bytes bytes(count * static_cast<uint64_t>(width));
    std::mt19937_64 random(1);
    for (size_t i = 0; i + 8 <= bytes.size(); i += 8) {
      const uint64_t bits = random();
      std::memcpy(&bytes[i], &bits, 8);
    }
    return bytes;
  }
  static Bytes Changed(Bytes bytes, int width, uint32_t changed) {
    uint64_t state = 1;
    for (size_t i = 0; i < bytes.size(); i += static_cast<size_t>(width)) {
      state = state * 6364136223846793005 + 1442695040888963407;
      const auto draw = static_cast<uint32_t>(state >> 33);
      if (draw % 1000 >= changed) continue;
      uint32_t x = 0;
      std::memcpy(&x, &bytes[i], static_cast<size_t>(width));
      x += width == 4 ? (draw >> 10) % 1024 - 512 : (draw >> 20) % 2 == 0 ? 1u : ~0u;
      std::memcpy(&bytes[i], &x, static_cast<size_t>(width));
    }
    return bytes;
  }
};

void MeasureBoth(int width, int tile_log2, uint32_t per_mille) {
  const uint64_t bytes = Small() ? 4 * 8192 : uint64_t{256} << 20;
  Model model(bytes / static_cast<uint64_t>(width), width, per_mille);
  const uint64_t tiles = TilesOf(model.count, tile_log2), capacity = bytes;
  const DeltaShard shard = Range(0, model.count);
  const auto source = [&](uint8_t* now) {
    return std::vector<DeltaCudaSource>{{{shard, now, model.shadow.data()}, 0}};
  };
  OnDevice<DeltaCudaSource> to_after(source(model.after.data())),
      to_before(source(model.before.data()));
  OnDevice<DeltaTile> entries(tiles);
  OnDevice<uint8_t> bodies(Bytes(capacity + kDeltaPadding)),
      workspace(kernels::EncodeDeltaWorkspace(tiles));
  OnDevice<uint64_t> length(1), sums(std::vector<uint64_t>(2));
  const std::string what = " of " + std::to_string(8 * width) + " bits, " +
                           std::to_string(per_mille / 10) + "." + std::to_string(per_mille % 10) +
                           " % changed" + (tile_log2 == 16 ? ", long tiles" : "");

  // Each launch finds the shadow at the state that the last one left there.
  bool forward = false;
  Measure("encode" + what, model.copied(), 0, [&] {
    forward = !forward;
    kernels::EncodeDeltaCuda(forward ? to_after.data() : to_before.data(), 1, tiles, width,
                             tile_log2, entries.data(), bodies.data(), capacity, length.data(),
                             sums.data(), workspace.data(), nullptr);
  });
  if (!forward) {  // The entries are of the way back; the weights are to start at the other end.
    CUDA_OK(cudaMemcpy(model.before.data(), model.after.data(), bytes, cudaMemcpyDeviceToDevice));
  }
  OnDevice<DeltaCudaPiece> piece(std::vector<DeltaCudaPiece>{
      {shard, shard, 0, model.before.data(), entries.data(), bodies.data(), 0, 0}});
  int sign = -1;
  Measure("apply" + what, model.copied(), 0, [&] {
    sign = -sign;
    kernels::ApplyDeltaCuda(piece.data(), 1, tiles, width, tile_log2, sign, sums.data(), nullptr);
  });
  CUDA_OK(cudaGetLastError());
}

CUDA_BENCH(SpeedOfSixteenBits) {
  for (const uint32_t per_mille : {1, 10, 100}) MeasureBoth(2, 13, per_mille);
  MeasureBoth(2, 16, 2);
}
CUDA_BENCH(SpeedOfEightBits) { MeasureBoth(1, 13, 10); }
CUDA_BENCH(SpeedOfDenseFloats) { MeasureBoth(4, 13, 1000); }

}  // namespace
}  // namespace sluice
