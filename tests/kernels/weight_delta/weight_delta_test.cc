#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "common/base/splitmix.h"
#include "kernels/fingerprint/op.h"
#include "kernels/weight_delta/bits.h"
#include "kernels/weight_delta/op.h"
#include "tests/kernels/weight_delta/slow.h"

namespace sluice::kernels {
namespace {

using Bytes = std::vector<uint8_t>;

Bytes Pack(const slow::Elements& elements, int width) {
  Bytes bytes(elements.size() * static_cast<size_t>(width));
  for (size_t i = 0; i < elements.size(); ++i)
    std::memcpy(&bytes[i * static_cast<size_t>(width)], &elements[i], static_cast<size_t>(width));
  return bytes;
}

// Two states of the same elements.
struct States {
  int width;
  slow::Elements old, now;

  slow::Elements Differences() const {
    slow::Elements d;
    for (size_t i = 0; i < now.size(); ++i)
      d.push_back(slow::Difference(now[i], old[i], 8 * width));
    return d;
  }
};

// Bit patterns at which a float or the arithmetic of ord changes its kind: zeros, ones, subnormals,
// infinities, NaN payloads.
slow::Elements EdgePatterns(int width) {
  const uint64_t top = uint64_t{1} << (8 * width - 1), mask = 2 * top - 1;
  slow::Elements edges;
  const slow::Elements middles =
      width == 1   ? slow::Elements{0, 0x08, 0x38, 0x78, 0x7c}
      : width == 2 ? slow::Elements{0, 0x0080, 0x0400, 0x3c00, 0x3f80, 0x7c00, 0x7f80, 0x7fc0}
                   : slow::Elements{0, 0x00800000, 0x3f800000, 0x7f800000, 0x7fc00000};
  for (const uint64_t middle : middles) {
    for (const uint64_t sign : {uint64_t{0}, top}) {
      for (const int64_t step : {-2, -1, 0, 1, 2})
        edges.push_back(((middle | sign) + static_cast<uint64_t>(step)) & mask);
    }
  }
  return edges;
}

// Random states of n elements, each of which changes with the given odds: most by one place, some
// by more, a few to an edge pattern.
States RandomStates(SplitMix64& random, int width, uint32_t n, double odds) {
  States states{.width = width};
  const uint64_t mask = (uint64_t{1} << (8 * width)) - 1;
  const slow::Elements edges = EdgePatterns(width);
  for (uint32_t i = 0; i < n; ++i) {
    uint64_t old = random.Next() & mask;
    if (random.Below(20) == 0) old = edges[random.Below(edges.size())];
    uint64_t now = old;
    if (random.Uniform() < odds) {
      switch (random.Below(8)) {
        case 0: now = random.Next() & mask; break;
        case 1: now = edges[random.Below(edges.size())]; break;
        case 2: now = (old + random.Below(400) - 200) & mask; break;
        default: now = (old + (random.Below(2) == 0 ? 1 : mask)) & mask;
      }
    }
    states.old.push_back(old);
    states.now.push_back(now);
  }
  return states;
}

struct Sum {
  uint64_t f[2] = {0, 0};
  bool operator==(const Sum&) const = default;
};
Sum Fingerprint(const DeltaShard& shard, const Bytes& elements, int width) {
  Sum sum;
  AddFingerprint(shard.tid, elements.data(), width, shard.first, shard.count, sum.f);
  return sum;
}

struct Delta {
  std::vector<DeltaTile> tiles;
  Bytes bodies;
  Sum sum;  // What the change adds to the fingerprint.
};

// Encodes the whole shard and leaves `shadow` equal to `now`.
Delta Encode(const DeltaShard& shard, int width, int tile_log2, const Bytes& now, Bytes* shadow) {
  Delta delta;
  const uint64_t tiles = (shard.count + (uint64_t{1} << tile_log2) - 1) >> tile_log2;
  EncodeDelta({shard, now.data(), shadow->data()}, width, tile_log2, 0, tiles, &delta.tiles,
              &delta.bodies, delta.sum.f);
  return delta;
}

// Applies a delta of `from` to weights that hold `to`. Returns what is wrong with it, or "".
std::string Apply(const Delta& delta, const DeltaShard& from, int width, int tile_log2, int sign,
                  const DeltaShard& to, Bytes* weights, Sum* sum) {
  DeltaChanges changes;
  uint32_t begin = 0;
  for (size_t t = 0; t < delta.tiles.size(); ++t) {
    const uint64_t start = t << tile_log2;
    const auto n = static_cast<uint32_t>(std::min(from.count - start, uint64_t{1} << tile_log2));
    const DeltaTile& tile = delta.tiles[t];
    const char* const wrong =
        DecodeDeltaTile(width, tile_log2, n, tile,
                        std::span(delta.bodies).subspan(begin, tile.end - begin), &changes);
    if (wrong != nullptr) return std::string(wrong) + ", in tile " + std::to_string(t);
    ApplyDelta(from, start, changes, sign, to, width, weights->data(), sum->f);
    begin = tile.end;
  }
  return begin == delta.bodies.size() ? "" : "bytes are left";
}

// Compares one tile with the slow codec, and takes it forward, backward and apart.
void CheckTile(const States& states, int tile_log2, const std::string& what) {
  SCOPED_TRACE(what);
  const DeltaShard shard = {.tid = 77, .first = 1000, .count = states.now.size()};
  const Bytes old = Pack(states.old, states.width), now = Pack(states.now, states.width);
  Bytes shadow = old;
  const Delta delta = Encode(shard, states.width, tile_log2, now, &shadow);
  ASSERT_EQ(shadow, now);

  const slow::Encoded expected = slow::Encode(states.Differences(), 8 * states.width, tile_log2);
  ASSERT_EQ(delta.tiles.size(), 1u);
  EXPECT_EQ(delta.tiles[0].mode, expected.tile.mode);
  EXPECT_EQ(delta.tiles[0].k, expected.tile.k);
  EXPECT_EQ(delta.tiles[0], expected.tile);
  ASSERT_EQ(delta.bodies, expected.body);
  EXPECT_LE(delta.bodies.size(), now.size());

  Bytes weights = old;
  Sum sum = Fingerprint(shard, old, states.width);
  ASSERT_EQ(Apply(delta, shard, states.width, tile_log2, +1, shard, &weights, &sum), "");
  EXPECT_EQ(weights, now);
  EXPECT_EQ(sum, Fingerprint(shard, now, states.width));
  ASSERT_EQ(Apply(delta, shard, states.width, tile_log2, -1, shard, &weights, &sum), "");
  EXPECT_EQ(weights, old);
  EXPECT_EQ(sum, Fingerprint(shard, old, states.width));
}

TEST(WeightDeltaTest, OrdPutsFloatsInOrderAndIsABijectionOfAllSixteenBitPatterns) {
  std::vector<bool> seen(1 << 16);
  for (uint32_t x = 0; x < 1 << 16; ++x) {
    const uint16_t ord = ToOrd(static_cast<uint16_t>(x));
    EXPECT_FALSE(seen[ord]);
    seen[ord] = true;
    EXPECT_EQ(FromOrd(ord), x);
    EXPECT_EQ(UnZigZag(ZigZag(static_cast<uint16_t>(x))), x);
  }
  EXPECT_EQ(Difference<uint16_t>(0x0000, 0x8000), 1);  // -0 lies one below +0.
  EXPECT_EQ(Difference<uint16_t>(0xbf81, 0xbf80), 0xffff);
  EXPECT_EQ(Difference<uint32_t>(0x3f800001, 0x3f800000), 1u);
  EXPECT_EQ(Difference<uint8_t>(0x00, 0x80), 1);
}

TEST(WeightDeltaTest, W01EveryPatternOfSixteenBitsComesBackFromEachOfManyOthers) {
  SplitMix64 random(1);
  for (int round = 0; round < 4; ++round) {
    States states{.width = 2};
    // Every pattern occurs once as the old and once as the new one.
    for (uint64_t x = 0; x < 1 << 16; ++x) states.old.push_back(x);
    const uint64_t stride = random.Next() | 1, first = random.Next();
    for (uint64_t x = 0; x < 1 << 16; ++x) states.now.push_back((first + x * stride) & 0xffff);
    CheckTile(states, kLongDeltaTileLog2, "round " + std::to_string(round));
  }
}

TEST(WeightDeltaTest, W01EveryPairOfEdgePatternsComesBack) {
  for (const int width : {1, 2, 4}) {
    const slow::Elements edges = EdgePatterns(width);
    States dense{.width = width}, sparse{.width = width};
    for (const uint64_t old : edges) {
      for (const uint64_t now : edges) {
        dense.old.push_back(old), dense.now.push_back(now);
        sparse.old.insert(sparse.old.end(), {old, old, old, old});
        sparse.now.insert(sparse.now.end(), {old, old, now, old});
      }
    }
    dense.old.resize(std::min<size_t>(dense.old.size(), 8192));
    dense.now.resize(dense.old.size());
    CheckTile(dense, kDeltaTileLog2, "dense, width " + std::to_string(width));
    CheckTile(sparse, kLongDeltaTileLog2, "sparse, width " + std::to_string(width));
  }
}

TEST(WeightDeltaTest, W01W09TilesOfAnyDensityAndLengthHaveTheBytesOfTheSlowCodec) {
  constexpr double kOdds[] = {0, 0.0003, 0.002, 0.01, 0.03, 0.1, 0.24, 0.26, 0.5, 0.9, 1};
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    SplitMix64 random(seed);
    for (const int width : {1, 2, 4}) {
      for (const double odds : kOdds) {
        const auto n = static_cast<uint32_t>(seed == 1 ? 8192 : 1 + random.Below(8192));
        CheckTile(RandomStates(random, width, n, odds), kDeltaTileLog2,
                  "seed " + std::to_string(seed) + " width " + std::to_string(width) + " odds " +
                      std::to_string(odds) + " n " + std::to_string(n));
      }
    }
  }
}

TEST(WeightDeltaTest, LongTilesHaveTheBytesOfTheSlowCodec) {
  SplitMix64 random(9);
  for (const int width : {1, 2, 4}) {
    for (const double odds : {0.0, 0.0001, 0.002, 0.05, 0.24, 0.3, 1.0}) {
      for (const uint32_t n : {65536u, 40001u}) {
        CheckTile(RandomStates(random, width, n, odds), kLongDeltaTileLog2,
                  "width " + std::to_string(width) + " odds " + std::to_string(odds));
      }
    }
  }
}

TEST(WeightDeltaTest, TinyTilesHaveTheBytesOfTheSlowCodec) {
  SplitMix64 random(3);
  for (const int width : {1, 2, 4}) {
    for (uint32_t n = 1; n <= 20; ++n) {
      for (const double odds : {0.0, 0.1, 0.3, 1.0}) {
        for (const int tile_log2 : {kDeltaTileLog2, kLongDeltaTileLog2})
          CheckTile(RandomStates(random, width, n, odds), tile_log2, "n " + std::to_string(n));
      }
    }
  }
}

// The optimizer's usual change of fp32 weights: nearly every element, by hundreds of places.
TEST(WeightDeltaTest, ChangesOfNearlyAllFloatsAreDense) {
  for (const int bits : {4, 9, 14, 20}) {
    SplitMix64 random(static_cast<uint64_t>(bits));
    States states{.width = 4};
    for (int i = 0; i < 8192; ++i) {
      states.old.push_back(0x3c000000 + random.Below(1 << 22));
      states.now.push_back(states.old.back() + random.Below(2 << bits) - (uint64_t{1} << bits));
    }
    CheckTile(states, kDeltaTileLog2, "bits " + std::to_string(bits));
    const slow::Encoded encoded = slow::Encode(states.Differences(), 32, kDeltaTileLog2);
    EXPECT_EQ(encoded.tile.mode, DeltaMode::kDense);
  }
}

TEST(WeightDeltaTest, TheDenseExampleOfTheDesignHasItsBytes) {
  const slow::Elements d = {3, 0xfffffffe, 0, 1, 0, 0xffffffff, 1000000, 2};
  DeltaChanges changes;
  for (size_t i = 0; i < d.size(); ++i) {
    if (d[i] == 0) continue;
    changes.offset[changes.count] = static_cast<uint16_t>(i);
    changes.d[changes.count++] = static_cast<uint32_t>(d[i]);
  }
  Bytes body;
  const DeltaTile tile = EncodeDeltaTile(4, kDeltaTileLog2, 8, changes, &body);

  EXPECT_EQ(tile, (DeltaTile{.end = 10, .changed_less_one = 5, .k = 0, .mode = DeltaMode::kDense}));
  EXPECT_EQ(body, (Bytes{0x40, 0xcc, 0x02, 0x00, 0x00, 0x84, 0x80, 0x84, 0x1e, 0x00}));
}

// All detectors store whole vectors, so no more than count changes are compared.
TEST(WeightDeltaTest, W08EveryInstructionSetFindsTheSameChanges) {
  SplitMix64 random(5);
  ASSERT_STREQ(DeltaDetectors().back().name, "scalar");
  for (const int width : {1, 2, 4}) {
    for (const double odds : {0.0, 0.01, 0.3, 1.0}) {
      for (const uint32_t n : {1u, 15u, 64u, 1000u, 8192u, 65536u}) {
        const States states = RandomStates(random, width, n, odds);
        const Bytes old = Pack(states.old, width), now = Pack(states.now, width);
        DeltaChanges expected;
        DeltaDetectors().back().detect(width, now.data(), old.data(), n, &expected);
        for (const DeltaDetector& detector : DeltaDetectors()) {
          SCOPED_TRACE(detector.name);
          DeltaChanges changes;
          detector.detect(width, now.data(), old.data(), n, &changes);
          ASSERT_EQ(changes.count, expected.count);
          EXPECT_TRUE(std::equal(&changes.d[0], &changes.d[0] + changes.count, &expected.d[0]));
          EXPECT_TRUE(std::equal(&changes.offset[0], &changes.offset[0] + changes.count,
                                 &expected.offset[0]));
        }
      }
    }
  }
}

TEST(WeightDeltaTest, W08RangesOfTilesJoinedInOrderGiveTheBytesOfTheWhole) {
  SplitMix64 random(6);
  const States states = RandomStates(random, 2, 10 * 8192 + 77, 0.02);
  const DeltaShard shard = {.tid = 5, .count = states.now.size()};
  const Bytes now = Pack(states.now, 2);
  Bytes shadow = Pack(states.old, 2), other = shadow;
  const Delta whole = Encode(shard, 2, kDeltaTileLog2, now, &shadow);

  Delta joined;
  for (const auto& [begin, end] : {std::pair{0, 3}, {3, 4}, {4, 11}}) {
    Delta part;
    EncodeDelta({shard, now.data(), other.data()}, 2, kDeltaTileLog2, static_cast<uint64_t>(begin),
                static_cast<uint64_t>(end), &part.tiles, &part.bodies, joined.sum.f);
    for (DeltaTile& tile : part.tiles) {
      tile.end += static_cast<uint32_t>(joined.bodies.size());
      joined.tiles.push_back(tile);
    }
    joined.bodies.insert(joined.bodies.end(), part.bodies.begin(), part.bodies.end());
  }

  EXPECT_EQ(joined.tiles, whole.tiles);
  EXPECT_EQ(joined.bodies, whole.bodies);
  EXPECT_EQ(joined.sum, whole.sum);
}

// The shard of `columns` columns from `column` on, of a matrix with `all` columns.
DeltaShard Columns(uint64_t rows, uint64_t all, uint64_t column, uint64_t columns) {
  return {
      .tid = 9, .first = column, .row_len = columns, .row_stride = all, .count = rows * columns};
}

TEST(WeightDeltaTest, ShardsOfColumnsReachWhateverShardsTheReceiverHolds) {
  constexpr uint64_t kRows = 300, kAll = 96;
  SplitMix64 random(8);
  const States states = RandomStates(random, 2, kRows * kAll, 0.05);
  const Bytes old = Pack(states.old, 2), now = Pack(states.now, 2);
  const auto cut = [&](const DeltaShard& shard, const Bytes& whole) {
    Bytes part;
    for (uint64_t l = 0; l < shard.count; ++l) {
      const uint64_t index = shard.first + l / shard.row_len * shard.row_stride + l % shard.row_len;
      part.insert(part.end(), {whole[2 * index], whole[2 * index + 1]});
    }
    return part;
  };
  const DeltaShard receivers[] = {{.tid = 9, .count = kRows * kAll},
                                  {.tid = 9, .first = 5 * kAll, .count = 77 * kAll},
                                  Columns(kRows, kAll, 40, 33),
                                  Columns(kRows, kAll, 0, 1)};

  std::vector<Bytes> held;
  std::vector<Sum> sums(std::size(receivers));
  for (const DeltaShard& receiver : receivers) held.push_back(cut(receiver, old));
  for (const auto& [column, columns] : {std::pair{0, 31}, {31, 1}, {32, 64}}) {
    const DeltaShard sender =
        Columns(kRows, kAll, static_cast<uint64_t>(column), static_cast<uint64_t>(columns));
    Bytes shadow = cut(sender, old);
    const Delta delta = Encode(sender, 2, kDeltaTileLog2, cut(sender, now), &shadow);
    for (size_t i = 0; i < held.size(); ++i)
      ASSERT_EQ(Apply(delta, sender, 2, kDeltaTileLog2, +1, receivers[i], &held[i], &sums[i]), "");
  }

  for (size_t i = 0; i < held.size(); ++i) EXPECT_EQ(held[i], cut(receivers[i], now)) << i;
  Sum whole = Fingerprint(receivers[0], old, 2);
  for (int lane = 0; lane < 2; ++lane) whole.f[lane] += sums[0].f[lane];
  EXPECT_EQ(whole, Fingerprint(receivers[0], now, 2));
}

// ---- What a decoder refuses.

struct Tile {
  int width = 2, tile_log2 = kDeltaTileLog2;
  uint32_t n = 16;
  DeltaTile entry;
  Bytes body;
};
std::string Decode(const Tile& tile) {
  DeltaChanges changes;
  const char* const wrong =
      DecodeDeltaTile(tile.width, tile.tile_log2, tile.n, tile.entry, tile.body, &changes);
  return wrong == nullptr ? "" : wrong;
}
Tile Sparse(int k, uint16_t changed, slow::Bits bits, std::initializer_list<uint8_t> escapes = {}) {
  bits.PadToByte();
  Tile tile;
  tile.body = bits.Bytes();
  tile.body.insert(tile.body.end(), escapes);
  tile.entry = {.end = static_cast<uint32_t>(tile.body.size()),
                .changed_less_one = static_cast<uint16_t>(changed - 1),
                .k = static_cast<uint8_t>(k),
                .mode = DeltaMode::kSparse};
  return tile;
}
slow::Bits OneChange(uint64_t gap, int k, uint64_t code) {
  slow::Bits bits;
  bits.Field(gap, k);
  bits.Field(code, 2);
  bits.Unary(gap >> k);
  return bits;
}

TEST(WeightDeltaTest, AnyKInRangeAndAnyCodeThatFitsIsTaken) {
  for (int k = 0; k <= 15; ++k) EXPECT_EQ(Decode(Sparse(k, 1, OneChange(15, k, 0))), "") << k;
  EXPECT_EQ(Decode(Sparse(1, 1, OneChange(0, 1, 2), {1})), "");     // +1 as a byte.
  EXPECT_EQ(Decode(Sparse(1, 1, OneChange(0, 1, 3), {1, 0})), "");  // +1 as a word.
}

TEST(WeightDeltaTest, ATileThatIsNoDifferenceOfItsElementsIsRefused) {
  EXPECT_EQ(Decode(Sparse(1, 1, OneChange(16, 1, 0))), "a change lies beyond its end");
  EXPECT_EQ(Decode(Sparse(1, 1, OneChange(0, 1, 2), {0})), "it has a difference of zero");
  EXPECT_EQ(Decode(Sparse(1, 1, OneChange(0, 1, 3), {0, 0})), "it has a difference of zero");
  EXPECT_NE(Decode(Sparse(16, 1, OneChange(0, 16, 0))), "");
  EXPECT_NE(Decode(Sparse(1, 17, OneChange(0, 1, 0))), "");
  EXPECT_NE(Decode(Sparse(1, 1, OneChange(0, 1, 2))), "");          // No escape.
  EXPECT_NE(Decode(Sparse(1, 1, OneChange(0, 1, 2), {1, 1})), "");  // Two.
  Tile eight = Sparse(1, 1, OneChange(0, 1, 2), {1});
  eight.width = 1;
  EXPECT_NE(Decode(eight), "");

  Tile padded = Sparse(1, 1, OneChange(0, 1, 0));
  padded.body.back() |= 0x80;
  EXPECT_EQ(Decode(padded), "its padding is not zero");
  Tile empty = Sparse(1, 1, {});
  EXPECT_EQ(Decode(empty), "its body ends too early");

  EXPECT_NE(Decode({.entry = {.changed_less_one = 1}}), "");  // SAME with a change,
  EXPECT_NE(Decode({.body = {0}}), "");                       // and with a body.
  EXPECT_NE(Decode({.entry = {.mode = static_cast<DeltaMode>(4)}}), "");

  Tile plain = {.n = 2, .entry = {.mode = DeltaMode::kPlain}, .body = {1, 0, 0, 0}};
  EXPECT_EQ(Decode(plain), "");
  plain.entry.changed_less_one = 1;
  EXPECT_NE(Decode(plain), "");
  plain = {.n = 2, .entry = {.mode = DeltaMode::kPlain}, .body = {1, 0, 0}};
  EXPECT_NE(Decode(plain), "");
}

TEST(WeightDeltaTest, ADenseTileThatIsNoDifferenceOfItsElementsIsRefused) {
  const auto dense = [](int k, std::vector<uint64_t> unary, std::vector<uint8_t> escapes) {
    slow::Bits bits;
    for (size_t i = 0; i < unary.size(); ++i) bits.Field(1, k);
    for (const uint64_t q : unary) bits.Unary(q);
    bits.PadToByte();
    Tile tile{.n = static_cast<uint32_t>(unary.size()), .body = bits.Bytes()};
    tile.body.insert(tile.body.end(), escapes.begin(), escapes.end());
    tile.entry = {.changed_less_one = static_cast<uint16_t>(unary.size() - 1),
                  .k = static_cast<uint8_t>(k),
                  .mode = DeltaMode::kDense};
    return tile;
  };
  EXPECT_EQ(Decode(dense(1, {0, 3, 24}, {30, 0})), "");
  EXPECT_EQ(Decode(dense(1, {0, 3, 24}, {3, 0})), "");  // An escape that was not needed.
  EXPECT_EQ(Decode(dense(1, {0, 3, 25}, {})), "a unary number is above 24");
  EXPECT_NE(Decode(dense(1, {0, 3, 24}, {30})), "");
  EXPECT_NE(Decode(dense(1, {0, 3, 24}, {0, 0x80})), "");  // 17 bits.
  EXPECT_NE(Decode(dense(15, {0, 3}, {})), "");            // 3 << 15 has 17 bits too.
  EXPECT_NE(Decode(dense(16, {0}, {})), "");
  EXPECT_NE(Decode(dense(0, {0, 1}, {})), "");  // One of the two did not change.
  Tile longer = dense(1, {0, 3}, {});
  longer.tile_log2 = kLongDeltaTileLog2;
  EXPECT_NE(Decode(longer), "");
}

// Every cut of a body, and every flipped bit, is refused or gives changes within the tile.
TEST(WeightDeltaTest, W11DamagedBodiesNeverGiveChangesOutsideTheTile) {
  for (const int width : {1, 2, 4}) {
    for (const double odds : {0.01, 0.2, 0.8}) {
      SplitMix64 random(4);
      const States states = RandomStates(random, width, 700, odds);
      const DeltaShard shard = {.tid = 1, .count = 700};
      Bytes shadow = Pack(states.old, width);
      const Delta delta = Encode(shard, width, kDeltaTileLog2, Pack(states.now, width), &shadow);
      DeltaChanges changes;
      for (size_t bit = 0; bit < 8 * delta.bodies.size(); ++bit) {
        Bytes body = delta.bodies;
        body[bit / 8] = static_cast<uint8_t>(body[bit / 8] ^ 1 << bit % 8);
        if (DecodeDeltaTile(width, kDeltaTileLog2, 700, delta.tiles[0], body, &changes)) continue;
        ASSERT_EQ(changes.count, delta.tiles[0].changed_less_one + 1u);
        int last = -1;
        for (uint32_t r = 0; r < changes.count; ++r) {
          ASSERT_GT(changes.offset[r], last);
          ASSERT_LT(changes.offset[r], 700);
          ASSERT_NE(changes.d[r], 0u);
          last = changes.offset[r];
        }
      }
      for (size_t size = 0; size < delta.bodies.size(); ++size) {
        const std::span<const uint8_t> body(delta.bodies.data(), size);
        EXPECT_NE(DecodeDeltaTile(width, kDeltaTileLog2, 700, delta.tiles[0], body, &changes),
                  nullptr);
      }
    }
  }
}

}  // namespace
}  // namespace sluice::kernels
