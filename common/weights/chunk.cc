#include "common/weights/chunk.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/checkpoint/tensor_set.h"
#include "common/weights/chunk_format.h"

namespace sluice {
namespace {

std::string Assemble(const TensorSet& weights, const std::vector<ChunkRun>& runs, uint64_t body) {
  std::string chunk;
  chunk.reserve(sizeof(ChunkHeader) + runs.size() * sizeof(ChunkRun) + body);
  ChunkHeader header;
  header.runs = static_cast<uint16_t>(runs.size());
  header.body = static_cast<uint32_t>(body);
  chunk.append(reinterpret_cast<const char*>(&header), sizeof header);
  for (const ChunkRun& run : runs) chunk.append(reinterpret_cast<const char*>(&run), sizeof run);
  for (const ChunkRun& run : runs) {
    const uint64_t width = DTypeBytes(weights.spec(run.tensor).dtype);
    chunk.append(reinterpret_cast<const char*>(weights.data(run.tensor)) + run.first * width,
                 run.count * width);
  }
  return chunk;
}

}  // namespace

void EncodeFullChunks(const TensorSet& weights, uint64_t target,
                      const std::function<void(std::string chunk)>& emit) {
  // The runs of the chunk being built, and the bytes of their elements.
  std::vector<ChunkRun> runs;
  uint64_t body = 0;
  const auto close = [&] {
    if (!runs.empty()) emit(Assemble(weights, runs, body));
    runs.clear();
    body = 0;
  };
  for (size_t tensor = 0; tensor < weights.size(); ++tensor) {
    const uint64_t width = DTypeBytes(weights.spec(tensor).dtype);
    const uint64_t elements = static_cast<uint64_t>(weights.elements(tensor));
    // Large tensors are split into runs, and small ones share a chunk.
    for (uint64_t first = 0; first < elements;) {
      if (body + width > target || runs.size() == UINT16_MAX) close();
      const uint64_t count =
          std::min(elements - first, std::max<uint64_t>(1, (target - body) / width));
      runs.push_back({.tensor = static_cast<uint32_t>(tensor), .first = first, .count = count});
      body += count * width;
      first += count;
    }
  }
  close();
}

absl::Status DecodeFullChunk(absl::string_view chunk, TensorSet* weights, uint64_t* written) {
  const auto bad = [&](absl::string_view what) {
    return absl::DataLossError(absl::StrCat(ChunkName(chunk), ": ", what));
  };

  ChunkHeader header;
  if (chunk.size() < sizeof header ||
      chunk.size() > kMaxChunkBytes + sizeof header + UINT16_MAX * sizeof(ChunkRun))
    return bad(absl::StrCat("its size of ", chunk.size(), " bytes is out of range"));
  std::memcpy(&header, chunk.data(), sizeof header);
  if (!header.HasMagic()) return bad("it does not begin with SLW1");
  if (header.codec != 0)
    return bad(absl::StrCat("it has codec ", header.codec, ", but a full chunk has 0"));
  if (header.tile_log2 != 0 || header.tiles != 0) return bad("codec 0 has no tiles");
  const uint64_t runs_bytes = uint64_t{header.runs} * sizeof(ChunkRun);
  if (chunk.size() != sizeof header + runs_bytes + header.body) {
    return bad(absl::StrCat("it has ", chunk.size(), " bytes, but its header, ", header.runs,
                            " runs and a body of ", header.body, " bytes need ",
                            sizeof header + runs_bytes + header.body));
  }

  std::vector<ChunkRun> runs(header.runs);
  std::memcpy(runs.data(), chunk.data() + sizeof header, runs_bytes);
  uint64_t need = 0;
  for (const ChunkRun& run : runs) {  // Check everything before the first byte is written.
    if (run.tensor >= weights->size())
      return bad(
          absl::StrCat("a run names tensor ", run.tensor, ", but there are ", weights->size()));
    const absl::string_view name = weights->spec(run.tensor).name;
    const uint64_t elements = static_cast<uint64_t>(weights->elements(run.tensor));
    if (run.tiles != 0 || run.row_len != 1 || run.row_stride != 1 || run.start != 0)
      return bad(absl::StrCat(name, ": a run is not contiguous, as codec 0 requires"));
    if (run.first > elements || run.count > elements - run.first)
      return bad(absl::StrCat(name, ": a run of ", run.count, " elements from ", run.first,
                              " on does not fit in ", elements));
    need += run.count * DTypeBytes(weights->spec(run.tensor).dtype);
  }
  if (need != header.body)
    return bad(absl::StrCat("the runs have ", need, " bytes, but the body has ", header.body));

  const char* from = chunk.data() + sizeof header + runs_bytes;
  for (const ChunkRun& run : runs) {
    const uint64_t width = DTypeBytes(weights->spec(run.tensor).dtype);
    std::memcpy(weights->data(run.tensor) + run.first * width, from, run.count * width);
    from += run.count * width;
  }
  *written += need;
  return absl::OkStatus();
}

}  // namespace sluice
