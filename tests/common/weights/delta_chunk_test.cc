#include "common/weights/delta_chunk.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "common/base/digest.h"
#include "common/base/id.h"
#include "common/base/splitmix.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;

bool SameBits(const TensorSet& a, const TensorSet& b) {
  return std::equal(a.buffer().begin(), a.buffer().end(), b.buffer().begin(), b.buffer().end());
}

TensorSet Weights(uint64_t seed) {
  TensorSet set = *TensorSet::Create({{"attn.weight", DType::kBF16, {300, 96}},
                                      {"bias", DType::kF32, {77}},
                                      {"empty", DType::kF32, {0, 3}},
                                      {"experts.weight", DType::kF8E4M3, {5, 4001}},
                                      {"scale", DType::kBF16, {}},
                                      {"same.weight", DType::kBF16, {9000}}});
  SplitMix64 random(seed);
  for (size_t i = 0; i < set.size(); ++i) {
    for (int64_t b = 0; b < set.bytes(i); ++b)
      set.data(i)[b] = static_cast<std::byte>(random.Next());
  }
  return set;
}

// Changes elements with the given odds, most by one place; never those of same.weight.
TensorSet Step(const TensorSet& from, uint64_t seed, double odds) {
  TensorSet to = from;
  SplitMix64 random(seed);
  for (size_t i = 0; i < to.size(); ++i) {
    const size_t width = DTypeBytes(to.spec(i).dtype);
    if (to.spec(i).name == "same.weight") continue;
    for (int64_t e = 0; e < to.elements(i); ++e) {
      if (random.Uniform() >= odds) continue;
      uint32_t bits = 0;
      std::byte* const element = to.data(i) + static_cast<size_t>(e) * width;
      std::memcpy(&bits, element, width);
      bits = random.Below(5) == 0 ? static_cast<uint32_t>(random.Next())
                                  : bits + (random.Below(2) == 0 ? 1 : ~0u);
      std::memcpy(element, &bits, width);
    }
  }
  return to;
}

void InOrder(int64_t n, absl::FunctionRef<void(int64_t)> work) {
  for (int64_t i = 0; i < n; ++i) work(i);
}
// Jobs in turn on three threads.
void OnThreads(int64_t n, absl::FunctionRef<void(int64_t)> work) {
  std::vector<std::thread> threads;
  for (int64_t t = 0; t < 3; ++t) {
    threads.emplace_back([=] {
      for (int64_t i = t; i < n; i += 3) work(i);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// A whole tensor as one input.
DeltaInput WholeInput(const TensorSet& now, TensorSet* shadow, uint32_t tensor) {
  return {.tensor = tensor,
          .width = static_cast<int>(DTypeBytes(now.spec(tensor).dtype)),
          .source = {{.tid = TensorKey(now.spec(tensor).name),
                      .count = static_cast<uint64_t>(now.elements(tensor))},
                     now.data(tensor),
                     shadow->data(tensor)}};
}

struct Published {
  std::vector<std::string> chunks;
  Fingerprint sum;  // What the change adds to the fingerprint of all.
};
Published Publish(const TensorSet& old, const TensorSet& now, const DeltaChunkOptions& options = {},
                  ForEachIndex for_each = InOrder) {
  TensorSet shadow = old;
  std::vector<DeltaInput> inputs;
  for (uint32_t i = 0; i < now.size(); ++i) inputs.push_back(WholeInput(now, &shadow, i));
  Published published;
  std::vector<Fingerprint> sums(inputs.size());
  EncodeDeltaChunks(
      inputs, options, for_each,
      [&](std::string chunk) { published.chunks.push_back(std::move(chunk)); },
      absl::MakeSpan(sums));
  EXPECT_TRUE(SameBits(shadow, now));
  published.sum = Sum(sums);
  return published;
}

DeltaChunk ParseOrDie(const std::string& chunk, const TensorSet& layout) {
  absl::StatusOr<DeltaChunk> parsed = DeltaChunk::Parse(chunk, layout.specs());
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return *std::move(parsed);
}

// Applies chunks in any order and checks the sums against a whole pass over the weights.
void Apply(const std::vector<std::string>& chunks, int sign, TensorSet* weights) {
  std::vector<Fingerprint> states = TensorFingerprints(*weights);
  const std::vector<DeltaTarget> targets = WholeTensors(weights);
  for (const std::string& chunk : chunks)
    ParseOrDie(chunk, *weights).Apply(sign, targets, absl::MakeSpan(states));
  EXPECT_EQ(states, TensorFingerprints(*weights));
}

// ---- The vectors of the design.

constexpr char kExampleChunk[] =
    "534c5731010d01000100000006000000"
    "00000000010000000000000000000000010000000000000001000000000000000000000000000000"
    "1000000000000000"
    "0600000003000101"
    "113d12054180";

TensorSet ExampleWeights(bool after) {
  TensorSet set = *TensorSet::Create({{"w", DType::kBF16, {16}}});
  const absl::Span<uint16_t> w = set.as<uint16_t>(0);
  std::fill(w.begin(), w.end(), 0x3c00);
  w[1] = after ? 0x0000 : 0x8000;
  w[2] = after ? 0xbf81 : 0xbf80;
  w[9] = after ? 0x3c05 : 0x3c00;
  w[14] = after ? 0x0001 : 0x7fc0;
  return set;
}

TEST(DeltaChunkTest, TheExampleOfTheDesignHasItsBytes) {
  const TensorSet old = ExampleWeights(false), now = ExampleWeights(true);
  const Published published = Publish(old, now);

  ASSERT_EQ(published.chunks.size(), 1u);
  const std::string& chunk = published.chunks[0];
  EXPECT_EQ(absl::BytesToHexString(chunk), kExampleChunk);
  EXPECT_EQ(chunk.size(), 78u);
  EXPECT_EQ(absl::BytesToHexString(Sha256(chunk)),
            "6637194c04016d2900e0356d1140f43762cd35a62fb0e482b5858b32a4a9f090");
  EXPECT_EQ(Crc32c(chunk), 0x9d523cc1u);

  Fingerprint state = FingerprintOf(old);
  EXPECT_EQ(state.hex(), "e615397115fa6440b4e2ae93599b2440");
  state += published.sum;
  EXPECT_EQ(state.hex(), "7671c7f1d731e4d356cf74184d7c49db");
  TensorSet weights = old;
  Apply(published.chunks, +1, &weights);
  EXPECT_TRUE(SameBits(weights, now));
  Apply(published.chunks, -1, &weights);
  EXPECT_TRUE(SameBits(weights, old));
}

TEST(DeltaChunkTest, TheSecondVectorOfTheDesignIsReachedFromZeros) {
  const TensorSet zeros = *TensorSet::Create({{"model.embed_tokens.weight", DType::kBF16, {700, 3}},
                                              {"model.norm.weight", DType::kF32, {3}},
                                              {"lm_head.weight", DType::kF8E4M3, {2}}});
  TensorSet set = zeros;
  const absl::Span<uint16_t> embed =
      set.as<uint16_t>(static_cast<size_t>(set.Find("model.embed_tokens.weight")));
  for (uint32_t i = 0; i < embed.size(); ++i)
    embed[i] = static_cast<uint16_t>((2654435761u * i) >> 7);
  const uint32_t norm[] = {0x3f800000, 0x80000000, 0x7fc00001};
  const uint8_t head[] = {0x38, 0xb8};
  std::memcpy(set.data(static_cast<size_t>(set.Find("model.norm.weight"))), norm, sizeof norm);
  std::memcpy(set.data(static_cast<size_t>(set.Find("lm_head.weight"))), head, sizeof head);

  TensorSet weights = zeros;
  const Published published = Publish(zeros, set);
  Apply(published.chunks, +1, &weights);

  // The fingerprint of zeros is zero.
  EXPECT_EQ(published.sum.hex(), "3cca44bd8576b4f991bcb02f9df828eb");
  EXPECT_EQ(FingerprintOf(weights).hex(), "3cca44bd8576b4f991bcb02f9df828eb");
}

// ---- Round trips.

// Codec 2, the simplest that could work: tiles hold offsets and new values. Cannot go back.
std::string EncodeCodec2(const TensorSet& old, const TensorSet& now) {
  ChunkHeader header = {.codec = 2, .tile_log2 = 13};
  std::string runs, directory, body;
  for (uint32_t i = 0; i < now.size(); ++i) {
    const size_t width = DTypeBytes(now.spec(i).dtype);
    const auto count = static_cast<uint64_t>(now.elements(i));
    if (count == 0) continue;
    ChunkRun run = {.tensor = i, .count = count};
    for (uint64_t start = 0; start < count; start += 8192, ++run.tiles) {
      const uint64_t n = std::min<uint64_t>(8192, count - start);
      const std::byte* const from = now.data(i) + start * width;
      std::string offsets, values;
      for (uint64_t e = 0; e < n; ++e) {
        const std::byte* const before = old.data(i) + (start + e) * width;
        if (std::memcmp(from + e * width, before, width) == 0) continue;
        const auto offset = static_cast<uint16_t>(e);
        offsets.append(reinterpret_cast<const char*>(&offset), 2);
        values.append(reinterpret_cast<const char*>(from + e * width), width);
      }
      kernels::DeltaTile tile;
      if (!offsets.empty()) {
        tile.changed_less_one = static_cast<uint16_t>(offsets.size() / 2 - 1);
        tile.mode = offsets.size() + values.size() < n * width ? kernels::DeltaMode::kSparse
                                                               : kernels::DeltaMode::kPlain;
        if (tile.mode == kernels::DeltaMode::kSparse) {
          body += offsets + values;
        } else {
          body.append(reinterpret_cast<const char*>(from), n * width);
        }
      }
      tile.end = static_cast<uint32_t>(body.size());
      directory.append(reinterpret_cast<const char*>(&tile), sizeof tile);
    }
    header.runs += 1;
    header.tiles += run.tiles;
    runs.append(reinterpret_cast<const char*>(&run), sizeof run);
  }
  header.body = static_cast<uint32_t>(body.size());
  return std::string(reinterpret_cast<const char*>(&header), sizeof header) + runs + directory +
         body;
}
void ApplyCodec2(const std::string& chunk, TensorSet* weights) {
  ChunkHeader header;
  std::memcpy(&header, chunk.data(), sizeof header);
  const char* next_run = chunk.data() + sizeof header;
  const char* next_tile = next_run + header.runs * sizeof(ChunkRun);
  const char* const body = next_tile + header.tiles * sizeof(kernels::DeltaTile);
  const char* at = body;
  for (int r = 0; r < header.runs; ++r, next_run += sizeof(ChunkRun)) {
    ChunkRun run;
    std::memcpy(&run, next_run, sizeof run);
    const size_t width = DTypeBytes(weights->spec(run.tensor).dtype);
    for (uint64_t start = 0; start < run.count; start += 8192, next_tile += sizeof(uint64_t)) {
      kernels::DeltaTile tile;
      std::memcpy(&tile, next_tile, sizeof tile);
      std::byte* const to = weights->data(run.tensor) + start * width;
      const size_t changed = tile.changed_less_one + size_t{1};
      if (tile.mode == kernels::DeltaMode::kSparse) {
        for (size_t c = 0; c < changed; ++c) {
          uint16_t offset;
          std::memcpy(&offset, at + 2 * c, 2);
          std::memcpy(to + offset * width, at + 2 * changed + c * width, width);
        }
      } else if (tile.mode == kernels::DeltaMode::kPlain) {
        std::memcpy(to, at, static_cast<size_t>(body + tile.end - at));
      }
      at = body + tile.end;
    }
  }
}

TEST(DeltaChunkTest, W01WeightsComeBackAtEveryDensityAndChunkSize) {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    for (const double odds : {0.0, 0.001, 0.02, 0.2, 0.6, 1.0}) {
      const TensorSet old = Weights(seed), now = Step(old, seed + 50, odds);
      TensorSet oracle = old;
      ApplyCodec2(EncodeCodec2(old, now), &oracle);
      ASSERT_TRUE(SameBits(oracle, now));
      for (const uint64_t target : {uint64_t{1}, uint64_t{3000}, kChunkTargetBytes}) {
        for (const int tile_log2 : {13, 16}) {
          SCOPED_TRACE(absl::StrCat("seed ", seed, ", odds ", odds, ", target ", target, ", tiles ",
                                    tile_log2));
          Published published = Publish(old, now, {tile_log2, target});
          TensorSet weights = old;
          // Chunks may come in any order.
          std::reverse(published.chunks.begin(), published.chunks.end());
          Apply(published.chunks, +1, &weights);
          EXPECT_TRUE(SameBits(weights, oracle));
          Apply(published.chunks, -1, &weights);
          EXPECT_TRUE(SameBits(weights, old));
        }
      }
    }
  }
}

TEST(DeltaChunkTest, W08TheBytesDoNotDependOnTheThreads) {
  TensorSet old = *TensorSet::Create({{"a", DType::kBF16, {300, 8192}}, {"b", DType::kF32, {5}}});
  const TensorSet now = Step(old, 3, 0.01);
  const Published one = Publish(old, now, {}, InOrder), three = Publish(old, now, {}, OnThreads);
  EXPECT_EQ(one.chunks, three.chunks);
  EXPECT_EQ(one.sum, three.sum);
}

TEST(DeltaChunkTest, AChunkClosesBeforeTheTileThatWouldPassTheTargetButHoldsOne) {
  const TensorSet old = Weights(1), now = Step(old, 2, 0.5);
  const std::vector<std::string> whole = Publish(old, now).chunks;
  ASSERT_EQ(whole.size(), 1u);
  const size_t size = whole[0].size();

  EXPECT_EQ(Publish(old, now, {.target_bytes = size}).chunks, whole);
  EXPECT_EQ(Publish(old, now, {.target_bytes = size - 1}).chunks.size(), 2u);
  const std::vector<std::string> single = Publish(old, now, {.target_bytes = 1}).chunks;
  for (const std::string& chunk : single) EXPECT_EQ(ParseOrDie(chunk, old).tiles().size(), 1u);
  for (const std::string& chunk : Publish(old, now, {.target_bytes = 30'000}).chunks)
    EXPECT_LE(chunk.size(), 30'000u);
}

// As EncodeDeltaCuda() does: one row of tiles and bodies for all shards.
TEST(DeltaChunkTest, ShardsThatWereEncodedTogetherAreCutTheSame) {
  const TensorSet old = Weights(1), now = Step(old, 2, 0.1);
  const DeltaChunkOptions options = {.target_bytes = 5000};
  TensorSet shadow = old;
  std::vector<kernels::DeltaTile> tiles;
  std::vector<uint8_t> bodies;
  std::vector<size_t> ends = {0};  // Of the tensors, in tiles.
  for (uint32_t i = 0; i < now.size(); ++i) {
    const DeltaInput input = WholeInput(now, &shadow, i);
    uint64_t sum[2] = {0, 0};
    kernels::EncodeDelta(input.source, input.width, 13, 0, (input.source.shard.count + 8191) / 8192,
                         &tiles, &bodies, sum);
    ends.push_back(tiles.size());
  }

  std::vector<std::string> chunks;
  DeltaChunkWriter writer(options, [&](std::string chunk) { chunks.push_back(std::move(chunk)); });
  for (uint32_t i = 0; i < now.size(); ++i) {
    const uint32_t before = ends[i] == 0 ? 0 : tiles[ends[i] - 1].end;
    writer.Add(i, {.count = static_cast<uint64_t>(now.elements(i))},
               absl::MakeConstSpan(tiles).subspan(ends[i], ends[i + 1] - ends[i]),
               absl::MakeConstSpan(bodies).subspan(before), before);
  }
  writer.Finish();

  EXPECT_EQ(chunks, Publish(old, now, options).chunks);
}

TEST(DeltaChunkTest, TensorsWithoutChangeAreLeftOut) {
  const TensorSet old = Weights(1);
  EXPECT_TRUE(Publish(old, old).chunks.empty());

  const TensorSet now = Step(old, 2, 1.0);
  for (const std::string& chunk : Publish(old, now).chunks) {
    const DeltaChunk parsed = ParseOrDie(chunk, old);
    for (const DeltaChunk::Run& run : parsed.runs())
      EXPECT_NE(old.spec(run.tensor).name, "same.weight");
  }
}

// Raw + 8 B per tile + 48 B per run + 16 B per chunk.
TEST(DeltaChunkTest, W09NoDeltaIsMuchLongerThanTheWeights) {
  const TensorSet old = Weights(1), now = Weights(2);
  for (const uint64_t target : {uint64_t{1}, kChunkTargetBytes}) {
    size_t bytes = 0, bound = 0;
    for (const std::string& chunk : Publish(old, now, {.target_bytes = target}).chunks) {
      const DeltaChunk parsed = ParseOrDie(chunk, old);
      bytes += chunk.size();
      bound += 16 + 48 * parsed.runs().size() + 8 * parsed.tiles().size();
    }
    for (size_t i = 0; i < old.size(); ++i) bound += static_cast<size_t>(old.bytes(i));
    EXPECT_LE(bytes, bound);
  }
}

// A trainer sends columns of a matrix; receivers hold rows, columns or all.
TEST(DeltaChunkTest, ShardsOfColumnsReachReceiversWithOtherShards) {
  constexpr uint64_t kRows = 300, kColumns = 96;
  const TensorSet old = Weights(4), now = Step(old, 5, 0.1);
  const auto tensor = static_cast<uint32_t>(old.Find("attn.weight"));
  const auto columns = [](uint64_t from, uint64_t to) {
    return kernels::DeltaShard{.tid = TensorKey("attn.weight"),
                               .first = from,
                               .row_len = to - from,
                               .row_stride = kColumns,
                               .count = kRows * (to - from)};
  };
  const auto cut = [&](const TensorSet& set, const kernels::DeltaShard& shard) {
    std::vector<uint16_t> part;
    for (uint64_t l = 0; l < shard.count; ++l)
      part.push_back(set.as<uint16_t>(
          tensor)[shard.first + l / shard.row_len * shard.row_stride + l % shard.row_len]);
    return part;
  };

  std::vector<std::vector<uint16_t>> memory;
  std::vector<DeltaInput> inputs;
  for (const auto& [from, to] : {std::pair{0, 31}, {31, 32}, {32, 96}}) {
    const kernels::DeltaShard shard =
        columns(static_cast<uint64_t>(from), static_cast<uint64_t>(to));
    memory.push_back(cut(now, shard)), memory.push_back(cut(old, shard));
    inputs.push_back({tensor, 2, {shard, memory.end()[-2].data(), memory.end()[-1].data()}});
  }
  std::vector<std::string> chunks;
  std::vector<Fingerprint> sums(inputs.size());
  EncodeDeltaChunks(
      inputs, {.target_bytes = 1}, InOrder,
      [&](std::string chunk) { chunks.push_back(std::move(chunk)); }, absl::MakeSpan(sums));
  EXPECT_EQ(chunks.size(), 6u);  // Some begin in the middle of a shard.

  Fingerprint expected = FingerprintOfTensor(old, tensor);
  expected += Sum(sums);
  EXPECT_EQ(expected, FingerprintOfTensor(now, tensor));
  for (const kernels::DeltaShard& held :
       {columns(0, 96), columns(40, 50), kernels::DeltaShard{.first = 700, .count = 9999}}) {
    std::vector<uint16_t> weights = cut(old, held);
    const DeltaTarget target = {tensor, held, weights.data()};
    std::vector<Fingerprint> folded(old.size());
    for (const std::string& chunk : chunks)
      ParseOrDie(chunk, old).Apply(+1, {&target, 1}, absl::MakeSpan(folded));
    EXPECT_EQ(weights, cut(now, held));
  }
}

TEST(DeltaChunkTest, W01MergedDeltasGoFromTheFirstStateToTheLast) {
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    std::vector<TensorSet> states = {Weights(seed)};
    std::vector<SignedChunk> chunks;
    SplitMix64 random(seed);
    for (int step = 0; step < 4; ++step) {
      states.push_back(Step(states.back(), random.Next(), random.Uniform() * 0.1));
      const DeltaChunkOptions options = {random.Below(2) == 0 ? 13 : 16, 1 + random.Below(20'000)};
      for (const std::string& chunk : Publish(states.end()[-2], states.back(), options).chunks)
        chunks.push_back({ParseOrDie(chunk, states[0]), +1});
    }
    std::vector<std::string> merged;
    MergeDeltas(chunks, states[0].specs(), {},
                [&](std::string chunk) { merged.push_back(std::move(chunk)); });

    EXPECT_EQ(merged, Publish(states[0], states.back()).chunks) << seed;
    TensorSet weights = states.back();
    Apply(merged, -1, &weights);
    EXPECT_TRUE(SameBits(weights, states[0]));
  }
}

TEST(DeltaChunkTest, AWayAndItsWayBackMergeToNothing) {
  const TensorSet old = Weights(1), now = Step(old, 2, 0.3);
  std::vector<SignedChunk> chunks;
  for (const std::string& chunk : Publish(old, now).chunks)
    chunks.push_back({ParseOrDie(chunk, old), +1});
  for (const std::string& chunk : Publish(now, old).chunks)
    chunks.push_back({ParseOrDie(chunk, old), +1});
  MergeDeltas(chunks, old.specs(), {}, [](std::string) { ADD_FAILURE() << "a chunk came"; });
}

// ---- In the memory that is computed with.

// All patterns of 16 bits, NaN and denormals too, as the fp32 numbers of the same values.
TEST(DeltaChunkTest, W01EveryPatternOf16BitsIsTakenInPlaceAsF32) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    const TensorSet layout = *TensorSet::Create({{"w", dtype, {65536}}});
    TensorSet old = layout, now = layout;
    SplitMix64 random(5);
    for (uint32_t i = 0; i < 65536; ++i) {
      old.as<uint16_t>(0)[i] = static_cast<uint16_t>(i);
      now.as<uint16_t>(0)[i] = static_cast<uint16_t>(random.Next());
    }
    std::vector<float> memory(65536);
    ASSERT_TRUE(ConvertElements(dtype, old.data(0), DType::kF32, memory.data(), 65536).ok());
    const std::vector<float> before = memory;
    std::vector<float> wanted(65536);
    ASSERT_TRUE(ConvertElements(dtype, now.data(0), DType::kF32, wanted.data(), 65536).ok());

    const kernels::DeltaPlace place = {.memory = memory.data(),
                                       .form = dtype == DType::kBF16
                                                   ? kernels::DeltaForm::kBf16AsF32
                                                   : kernels::DeltaForm::kF16AsF32};
    Fingerprint sum = FingerprintOf(old);
    const auto apply = [&](int sign) {
      for (const std::string& bytes : Publish(old, now).chunks) {
        const DeltaChunk chunk = ParseOrDie(bytes, layout);
        for (const DeltaChunk::Run& run : chunk.runs()) {
          chunk.ForEachTile(run, [&](uint64_t start, const kernels::DeltaChanges& changes) {
            kernels::ApplyDeltaInPlace(run.shard, start, changes, sign, place, 2, sum.f);
          });
        }
      }
    };
    const size_t bytes = memory.size() * sizeof(float);
    apply(+1);
    EXPECT_EQ(std::memcmp(memory.data(), wanted.data(), bytes), 0) << DTypeName(dtype);
    EXPECT_EQ(sum, FingerprintOf(now));
    apply(-1);
    EXPECT_EQ(std::memcmp(memory.data(), before.data(), bytes), 0) << DTypeName(dtype);
    EXPECT_EQ(sum, FingerprintOf(old));
  }
}

// ---- What is refused.

std::string Refusal(const std::string& chunk, const TensorSet& layout) {
  const absl::StatusOr<DeltaChunk> parsed = DeltaChunk::Parse(chunk, layout.specs());
  EXPECT_EQ(parsed.status().code(), absl::StatusCode::kDataLoss);
  return std::string(parsed.status().message());
}
// The example with an integer of its header, run or directory replaced.
template <typename T>
std::string WithField(size_t offset, T value) {
  std::string chunk = absl::HexStringToBytes(kExampleChunk);
  std::memcpy(&chunk[offset], &value, sizeof value);
  return chunk;
}

TEST(DeltaChunkTest, EveryFieldThatDoesNotFitIsRefusedByName) {
  const TensorSet layout = ExampleWeights(false);
  const std::string good = absl::HexStringToBytes(kExampleChunk);
  EXPECT_TRUE(DeltaChunk::Parse(good, layout.specs()).ok());

  EXPECT_THAT(Refusal("", layout), HasSubstr("size of 0 bytes"));
  EXPECT_THAT(Refusal(std::string(kMaxChunkBytes + 1, 'S'), layout), HasSubstr("size of"));
  EXPECT_THAT(Refusal(WithField(0, 'X'), layout), HasSubstr("SLW1"));
  EXPECT_THAT(Refusal(WithField<uint8_t>(4, 0), layout), HasSubstr("codec 0"));
  EXPECT_THAT(Refusal(WithField<uint8_t>(5, 12), layout), HasSubstr("2^12"));
  for (const size_t offset : {6, 8, 12})  // Runs, tiles, body.
    EXPECT_THAT(Refusal(WithField<uint16_t>(offset, 2), layout), HasSubstr("bytes need"));
  EXPECT_THAT(Refusal(good + "x", layout), HasSubstr("bytes need"));

  EXPECT_THAT(Refusal(WithField<uint32_t>(16, 1), layout), HasSubstr("names tensor 1"));
  EXPECT_THAT(Refusal(WithField<uint32_t>(20, 2), layout), HasSubstr("has 1 tiles, not 2"));
  for (const uint64_t value : {uint64_t{1}, uint64_t{1} << 62, ~uint64_t{0}}) {
    EXPECT_THAT(Refusal(WithField(24, value), layout), HasSubstr("does not fit in 16"));
    EXPECT_THAT(Refusal(WithField(48, value), layout), HasSubstr("does not fit in 16"));
    EXPECT_THAT(Refusal(WithField(56, value << 5), layout), HasSubstr("elements"));
  }
  EXPECT_THAT(Refusal(WithField<uint64_t>(32, 0), layout), HasSubstr("rows of 0"));
  EXPECT_THAT(Refusal(WithField<uint64_t>(32, 2), layout), HasSubstr("one every 1"));
  EXPECT_THAT(Refusal(WithField<uint64_t>(40, 2), layout), HasSubstr("does not fit"));
  EXPECT_THAT(Refusal(WithField<uint64_t>(40, ~uint64_t{0}), layout), HasSubstr("one every"));

  EXPECT_THAT(Refusal(WithField<uint32_t>(64, 5), layout), HasSubstr("do not end with its body"));
  EXPECT_THAT(Refusal(WithField<uint16_t>(68, 4), layout), HasSubstr("w, tile 0: "));
  EXPECT_THAT(Refusal(WithField<uint8_t>(70, 2), layout), HasSubstr("w, tile 0: "));
  EXPECT_THAT(Refusal(WithField<uint8_t>(71, 2), layout), HasSubstr("w, tile 0: "));
  EXPECT_THAT(Refusal(WithField<uint8_t>(73, 0xbd), layout), HasSubstr("padding is not zero"));

  const TensorSet wide = *TensorSet::Create({{"w", DType::kI64, {16}}});
  EXPECT_THAT(Refusal(good, wide), HasSubstr("no deltas of I64"));
  // The chunk is named by its SHA-256.
  EXPECT_THAT(Refusal(WithField<uint8_t>(4, 0), layout),
              HasSubstr(ToHex(Sha256(WithField<uint8_t>(4, 0))).substr(0, 16)));
}

TEST(DeltaChunkTest, ATileThatEndsBeforeItBeginsIsRefused) {
  const TensorSet old = Weights(1);
  std::string chunk = Publish(old, Step(old, 2, 0.1)).chunks[0];
  const DeltaChunk good = ParseOrDie(chunk, old);
  ASSERT_GT(good.runs()[0].tiles, 2u);
  const uint32_t end = good.tiles()[0].end - 1;
  std::memcpy(&chunk[16 + 48 * good.runs().size() + 8], &end, sizeof end);  // Of tile 1.
  EXPECT_THAT(Refusal(chunk, old), HasSubstr("attn.weight, tile 1: its body is not within"));
}

// The index of the last element is 2^128 + 2^32, which is inside if it wraps around.
TEST(DeltaChunkTest, ARunWhoseIndexesWrapAroundIsRefused) {
  const std::vector<TensorSpec> layout = {{"w", DType::kBF16, {int64_t{1} << 33}}};
  const ChunkRun run = {.tiles = 65537,
                        .row_stride = ~uint64_t{0} - 0xfffffffe,
                        .start = ~uint64_t{0},
                        .count = (uint64_t{1} << 32) + 2};
  const ChunkHeader header = {.codec = 1, .tile_log2 = 16, .runs = 1, .tiles = run.tiles};
  std::string chunk(reinterpret_cast<const char*>(&header), sizeof header);
  chunk.append(reinterpret_cast<const char*>(&run), sizeof run);
  chunk.append(8 * run.tiles, '\0');
  const absl::Status status = DeltaChunk::Parse(chunk, layout).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
}

TEST(DeltaChunkTest, AChunkWithoutRunsChangesNothing) {
  TensorSet weights = ExampleWeights(false);
  std::string chunk = absl::HexStringToBytes(kExampleChunk).substr(0, 16);
  std::memset(&chunk[6], 0, 10);
  Apply({chunk}, +1, &weights);
  EXPECT_TRUE(SameBits(weights, ExampleWeights(false)));
}

// Whatever is damaged, the result is DATA_LOSS or changes within the tiles. AddressSanitizer
// reports a write outside.
TEST(DeltaChunkTest, W11DamagedChunksNeitherWriteOutsideNorCrash) {
  const TensorSet old = Weights(1);
  for (const double odds : {0.01, 0.4}) {
    const std::string chunk = Publish(old, Step(old, 2, odds)).chunks[0];
    const uint64_t directory = 16 + 48 * ParseOrDie(chunk, old).runs().size();
    SplitMix64 random(3);
    int taken = 0;
    for (int i = 0; i < 3000; ++i) {
      std::string bad = chunk;
      const uint64_t where = random.Below(3) == 0 ? directory : bad.size();
      for (uint64_t flips = 1 + random.Below(3); flips > 0; --flips)
        bad[random.Below(where)] = static_cast<char>(random.Next());
      if (random.Below(4) == 0) bad.resize(random.Below(bad.size()));
      const absl::StatusOr<DeltaChunk> parsed = DeltaChunk::Parse(bad, old.specs());
      if (!parsed.ok()) {
        EXPECT_EQ(parsed.status().code(), absl::StatusCode::kDataLoss);
        continue;
      }
      ++taken;
      TensorSet weights = old;
      std::vector<Fingerprint> states = TensorFingerprints(weights);
      const std::vector<DeltaTarget> targets = WholeTensors(&weights);
      parsed->Apply(+1, targets, absl::MakeSpan(states));
      EXPECT_EQ(states, TensorFingerprints(weights));
      parsed->Apply(-1, targets, absl::MakeSpan(states));
      EXPECT_TRUE(SameBits(weights, old));
    }
    EXPECT_GT(taken, 0);
  }
}

// A tensor of more than 2^32 elements, none of which is in memory but one tile.
TEST(DeltaChunkTest, W01ElementsBeyondFourBillionAreReached) {
  const std::vector<TensorSpec> layout = {{"large", DType::kBF16, {3, int64_t{1} << 32}}};
  const uint64_t first = (uint64_t{2} << 32) + 12345;
  std::vector<uint16_t> old(5000, 0x3f80), now = old, weights = old;
  now[4999] = 0x3f81;
  const kernels::DeltaShard shard = {.tid = TensorKey("large"), .first = first, .count = 5000};
  const DeltaInput input = {0, 2, {shard, now.data(), old.data()}};
  const DeltaTarget target = {0, shard, weights.data()};
  Fingerprint sum, folded;
  EncodeDeltaChunks({&input, 1}, {}, InOrder,
                    [&](std::string chunk) {
                      const absl::StatusOr<DeltaChunk> parsed = DeltaChunk::Parse(chunk, layout);
                      ASSERT_TRUE(parsed.ok()) << parsed.status();
                      parsed->Apply(+1, {&target, 1}, {&folded, 1});
                    },
                    {&sum, 1});
  EXPECT_EQ(weights, now);
  EXPECT_EQ(sum, folded);
  EXPECT_EQ(sum, [&] {
    Fingerprint part = FingerprintOfElements(layout[0], DType::kBF16, &now[4999], first + 4999, 1);
    const uint16_t before = 0x3f80;
    const Fingerprint minus =
        FingerprintOfElements(layout[0], DType::kBF16, &before, first + 4999, 1);
    for (int lane = 0; lane < 2; ++lane) part.f[lane] -= minus.f[lane];
    return part;
  }());
}

}  // namespace
}  // namespace sluice
