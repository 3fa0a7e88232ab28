#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/digest.h"
#include "common/base/id.h"

namespace sluice {

// The header and the runs of a weight chunk, as on the wire: little-endian and packed. After them
// come the directory, if the codec has tiles, and the body.
struct ChunkHeader {
  char magic[4] = {'S', 'L', 'W', '1'};
  uint8_t codec = 0;
  uint8_t tile_log2 = 0;
  uint16_t runs = 0;
  uint32_t tiles = 0;
  uint32_t body = 0;  // Bytes.

  bool HasMagic() const { return absl::string_view(magic, 4) == "SLW1"; }
};
// Element l of the run, start <= l < start + count, has the flat index first + (l div row_len)
// row_stride + l mod row_len in its tensor.
struct ChunkRun {
  uint32_t tensor = 0;  // Its number in the layout.
  uint32_t tiles = 0;
  uint64_t first = 0;
  uint64_t row_len = 1;
  uint64_t row_stride = 1;
  uint64_t start = 0;
  uint64_t count = 0;
};
static_assert(sizeof(ChunkHeader) == 16 && sizeof(ChunkRun) == 48);

// For messages: the beginning of a chunk's name, which is its SHA-256.
inline std::string ChunkName(absl::string_view chunk) {
  return absl::StrCat("weight chunk ", ToHex(Sha256(chunk)).substr(0, 16));
}

}  // namespace sluice
