// Fuzzes the decoder of weight deltas with any bytes as a chunk.
//
// Input: a byte of flags, then the chunk. With flag 1 the header is corrected first: magic, codec,
// and the numbers of runs, tiles and bytes as far as the input allows, so that the code after these
// checks is reached. Flag 2 asks for long tiles then.
//
// Promises: the chunk is refused with DATA_LOSS, or it can be applied: the fingerprint that is
// folded on the way equals that of the weights; going back gives the old weights; merging the chunk
// with nothing gives a delta to the same weights.
#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/splitmix.h"
#include "common/base/status.h"
#include "common/weights/delta_chunk.h"
#include "tests/fuzz/target.h"

namespace sluice::fuzz {
namespace {

TensorSet StartWeights() {
  TensorSet set = *TensorSet::Create({{"bytes", DType::kF8E4M3, {3, 50}},
                                      {"floats", DType::kF32, {9000}},
                                      {"halves", DType::kBF16, {130, 70}}});
  SplitMix64 random(1);
  for (std::byte& b : set.buffer()) b = static_cast<std::byte>(random.Next());
  return set;
}

std::string CorrectHeader(std::string chunk, bool long_tiles) {
  ChunkHeader header;
  if (chunk.size() < sizeof header) return chunk;
  std::memcpy(&header, chunk.data(), sizeof header);
  const ChunkHeader right;
  std::memcpy(header.magic, right.magic, sizeof header.magic);
  header.codec = 1;
  header.tile_log2 = long_tiles ? 16 : 13;
  size_t rest = chunk.size() - sizeof header;
  header.runs = static_cast<uint16_t>(std::min(header.runs % size_t{4}, rest / sizeof(ChunkRun)));
  rest -= header.runs * sizeof(ChunkRun);
  header.tiles = static_cast<uint32_t>(std::min(header.tiles % size_t{8}, rest / 8));
  header.body = static_cast<uint32_t>(rest - header.tiles * 8);
  std::memcpy(chunk.data(), &header, sizeof header);
  return chunk;
}

bool SameBits(const TensorSet& a, const TensorSet& b) {
  return std::equal(a.buffer().begin(), a.buffer().end(), b.buffer().begin(), b.buffer().end());
}

// Applies a chunk and checks that the folded fingerprint is right.
void Apply(const DeltaChunk& chunk, int sign, TensorSet* weights) {
  std::vector<Fingerprint> states = TensorFingerprints(*weights);
  const std::vector<DeltaTarget> targets = WholeTensors(weights);
  chunk.Apply(sign, targets, absl::MakeSpan(states));
  SLUICE_CHECK(states == TensorFingerprints(*weights));
}

}  // namespace

void Run(absl::string_view input) {
  if (input.empty()) return;
  std::string bytes(input.substr(1));
  if ((input[0] & 1) != 0) bytes = CorrectHeader(std::move(bytes), (input[0] & 2) != 0);
  static const TensorSet& start = *new TensorSet(StartWeights());
  const absl::StatusOr<DeltaChunk> chunk = DeltaChunk::Parse(bytes, start.specs());
  if (!chunk.ok()) {
    SLUICE_CHECK(chunk.status().code() == absl::StatusCode::kDataLoss);
    return;
  }

  TensorSet weights = start;
  Apply(*chunk, +1, &weights);
  const TensorSet after = weights;
  Apply(*chunk, -1, &weights);
  SLUICE_CHECK(SameBits(weights, start));

  const SignedChunk part{*chunk, +1};
  MergeDeltas({&part, 1}, start.specs(), {.target_bytes = 2000}, [&](std::string merged) {
    const absl::StatusOr<DeltaChunk> parsed = DeltaChunk::Parse(std::move(merged), start.specs());
    SLUICE_CHECK_MSG(parsed.ok(), parsed.status().ToString());
    Apply(*parsed, +1, &weights);
  });
  SLUICE_CHECK(SameBits(weights, after));
}

std::vector<std::string> Seeds() {
  std::vector<std::string> seeds;
  SplitMix64 random(2);
  for (const double odds : {0.001, 0.03, 0.3, 1.0}) {
    for (const int tile_log2 : {kernels::kDeltaTileLog2, kernels::kLongDeltaTileLog2}) {
      TensorSet shadow = StartWeights(), now = shadow;
      std::vector<DeltaInput> inputs;
      for (uint32_t i = 0; i < now.size(); ++i) {
        const auto width = static_cast<int>(DTypeBytes(now.spec(i).dtype));
        for (int64_t b = 0; b < now.bytes(i); b += width) {
          if (random.Uniform() < odds) now.data(i)[b] ^= std::byte{1};
        }
        const auto count = static_cast<uint64_t>(now.elements(i));
        inputs.push_back({i, width, {{.count = count}, now.data(i), shadow.data(i)}});
      }
      std::vector<Fingerprint> sums(inputs.size());
      EncodeDeltaChunks(
          inputs, {tile_log2, 4000},
          [](int64_t n, absl::FunctionRef<void(int64_t)> work) {
            for (int64_t i = 0; i < n; ++i) work(i);
          },
          [&](const std::string& chunk) {
            seeds.push_back(absl::StrCat(absl::string_view("\0", 1), chunk));
            seeds.push_back(absl::StrCat(tile_log2 == 13 ? "\1" : "\3", chunk));
          },
          absl::MakeSpan(sums));
    }
  }
  return seeds;
}

}  // namespace sluice::fuzz
