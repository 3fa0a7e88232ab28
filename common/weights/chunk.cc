#include "common/weights/chunk.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/digest.h"
#include "common/base/id.h"
#include "common/base/status.h"
#include "common/checkpoint/tensor_set.h"

namespace sluice {
namespace {

#pragma pack(push, 1)
struct Header {
  char magic[4] = {'S', 'L', 'W', '1'};
  uint8_t codec = 0;
  uint8_t tile_log2 = 0;
  uint16_t runs = 0;
  uint32_t tiles = 0;
  uint32_t body = 0;
};
struct Run {
  uint32_t tensor = 0;
  uint32_t tiles = 0;
  uint64_t first = 0;
  uint64_t row_len = 1;
  uint64_t row_stride = 1;
  uint64_t start = 0;
  uint64_t count = 0;
};
#pragma pack(pop)
static_assert(sizeof(Header) == 16 && sizeof(Run) == 48);

std::string Assemble(const TensorSet& weights, const std::vector<Run>& runs, uint64_t body) {
  std::string chunk;
  chunk.reserve(sizeof(Header) + runs.size() * sizeof(Run) + body);
  Header header;
  header.runs = static_cast<uint16_t>(runs.size());
  header.body = static_cast<uint32_t>(body);
  chunk.append(reinterpret_cast<const char*>(&header), sizeof header);
  for (const Run& run : runs) chunk.append(reinterpret_cast<const char*>(&run), sizeof run);
  for (const Run& run : runs) {
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
  std::vector<Run> runs;
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
    return absl::DataLossError(
        absl::StrCat("weight chunk ", ToHex(Sha256(chunk)).substr(0, 16), ": ", what));
  };

  Header header;
  if (chunk.size() < sizeof header ||
      chunk.size() > kMaxChunkBytes + sizeof header + UINT16_MAX * sizeof(Run))
    return bad(absl::StrCat("its size of ", chunk.size(), " bytes is out of range"));
  std::memcpy(&header, chunk.data(), sizeof header);
  if (std::memcmp(header.magic, "SLW1", 4) != 0) return bad("it does not begin with SLW1");
  if (header.codec != 0)
    return bad(absl::StrCat("it has codec ", header.codec, "; this build reads 0"));
  if (header.tile_log2 != 0 || header.tiles != 0) return bad("codec 0 has no tiles");
  const uint64_t runs_bytes = uint64_t{header.runs} * sizeof(Run);
  if (chunk.size() != sizeof header + runs_bytes + header.body) {
    return bad(absl::StrCat("it has ", chunk.size(), " bytes, but its header, ", header.runs,
                            " runs and a body of ", header.body, " bytes need ",
                            sizeof header + runs_bytes + header.body));
  }

  std::vector<Run> runs(header.runs);
  std::memcpy(runs.data(), chunk.data() + sizeof header, runs_bytes);
  uint64_t need = 0;
  for (const Run& run : runs) {  // Check everything before the first byte is written.
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
  for (const Run& run : runs) {
    const uint64_t width = DTypeBytes(weights->spec(run.tensor).dtype);
    std::memcpy(weights->data(run.tensor) + run.first * width, from, run.count * width);
    from += run.count * width;
  }
  *written += need;
  return absl::OkStatus();
}

}  // namespace sluice
