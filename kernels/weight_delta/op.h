#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

// The difference between two states of the weights, as small as it gets without losing a bit, and
// reversible. Elements are bit patterns of W = 8, 16 or 32 bits, whatever their type:
//   ord(x) = ~x if the top bit is set, else x ^ 2^(W-1)       d = ord(new) - ord(old) mod 2^W
// ord puts floats in the order of their values, with -0 one below +0 and a place for each NaN. It
// is a bijection; therefore ord(old) + d gives `new`, ord(new) - d gives `old`, and two differences
// in a row add up to that of both.
//
// A tile is N consecutive elements, of which n changed: 2^tile_log2 elements, the last tile of a
// shard fewer. Bits fill bytes from the least significant one, fields put their low bit first, and
// a unary q is q zeros and a one. The body of a tile has one of these forms:
//   SAME    n = 0: nothing.
//   SPARSE  4 n <= N. k is the largest of 0..15 with 133 n 2^k <= 128 N. For each change, g is the
//           number of unchanged elements since the last one, and its code says how d is stored: 0
//           is d = +1, 1 is d = -1, 2 is a signed number of W/2 bits (not if W = 8), 3 is W bits.
//           n fields of k + 2 bits: the low k bits of g, and the code above them; n unary g >> k;
//           zeros to the byte; the d of code 2; the d of code 3.
//   DENSE   otherwise, if tile_log2 is 13. z = 2 d, or -2 d - 1 if d < 0; q = z >> k. N fields of k
//           bits: the low bits of z; N unary min(q, 24); zeros to the byte; each q >= 24 in W/8
//           bytes. k is the one of 0..W-1 that gives the shortest body, the smallest of several.
//   PLAIN   if tile_log2 is 16, or if the other form is not shorter: N differences of W/8 bytes.
// A body therefore never has more than N W/8 bytes. A decoder takes any k in range and any code
// that fits, but refuses what is not a difference of exactly these N elements.
namespace sluice::kernels {

inline constexpr int kDeltaTileLog2 = 13;      // For most deltas.
inline constexpr int kLongDeltaTileLog2 = 16;  // If very few elements changed.

enum class DeltaMode : uint8_t { kSame, kSparse, kDense, kPlain };

// A tile in the directory of its chunk, in the layout of the wire.
struct DeltaTile {
  uint32_t end = 0;               // Where its body ends: bytes from the start of the first body.
  uint16_t changed_less_one = 0;  // n - 1; 0 of a SAME tile.
  uint8_t k = 0;
  DeltaMode mode = DeltaMode::kSame;

  bool operator==(const DeltaTile&) const = default;
};
static_assert(sizeof(DeltaTile) == 8);

// A part of a tensor that is contiguous in some memory. Element l there, 0 <= l < count, has the
// flat index first + (l div row_len) row_stride + l mod row_len in the tensor. A range of the
// tensor has row_len = row_stride = 1, and columns of a matrix have row_len < row_stride.
struct DeltaShard {
  uint64_t tid = 0;  // The tensor's key in the fingerprint (kernels/fingerprint/op.h).
  uint64_t first = 0;
  uint64_t row_len = 1;
  uint64_t row_stride = 1;
  uint64_t count = 0;
};

// ---- Encoding.

// The weights of a shard now, and what was last published of them, the shadow.
struct DeltaSource {
  DeltaShard shard;
  const void* now = nullptr;
  void* shadow = nullptr;
};

// Encodes tiles [tile_begin, tile_end) of the source: adds one entry per tile to `tiles` and the
// bodies to `bodies`, with ends that count from the first byte of `bodies`. It copies the changed
// elements to the shadow and adds to sum[0..1] what the change adds to the fingerprint. `width` is
// the size of an element, 1, 2 or 4 bytes; `tile_log2` is 13 or 16.
void EncodeDelta(const DeltaSource& source, int width, int tile_log2, uint64_t tile_begin,
                 uint64_t tile_end, std::vector<DeltaTile>* tiles, std::vector<uint8_t>* bodies,
                 uint64_t sum[2]);

// The changes of one tile in order: offsets from the tile's first element, and differences.
struct DeltaChanges {
  static constexpr size_t kMost = size_t{1} << kLongDeltaTileLog2;
  // Vector stores may write a whole vector beyond the last change.
  static constexpr size_t kSlack = 64;

  uint32_t count = 0;
  std::unique_ptr<uint16_t[]> offset{new uint16_t[kMost + kSlack]};
  std::unique_ptr<uint32_t[]> d{new uint32_t[kMost + kSlack]};  // Modulo 2^W.
};

// Finds the elements that differ. There is one function for each set of instructions that this CPU
// has, fastest first; all give the same changes.
struct DeltaDetector {
  const char* name;
  void (*detect)(int width, const void* now, const void* old, uint32_t n, DeltaChanges* changes);
};
std::span<const DeltaDetector> DeltaDetectors();

// Encodes the changes of a tile of n elements. Adds the body to `bodies`; the entry's end is the
// new size of `bodies`.
DeltaTile EncodeDeltaTile(int width, int tile_log2, uint32_t n, const DeltaChanges& changes,
                          std::vector<uint8_t>* bodies);

// ---- Decoding.

// Decodes the body of a tile of n elements. Returns null, or what is wrong with it; then `changes`
// are to be thrown away. Reads nothing but the body, and takes time in proportion to n and to the
// body's size, whatever the bytes are.
const char* DecodeDeltaTile(int width, int tile_log2, uint32_t n, const DeltaTile& tile,
                            std::span<const uint8_t> body, DeltaChanges* changes);

// Adds sign d (sign: +1 or -1) to the elements at `weights`, which hold the shard `to`. The tile
// begins at element `start` of the shard `from` of the same tensor. Elements that `to` does not
// hold are skipped. Adds to sum[0..1] what the change adds to the fingerprint.
void ApplyDelta(const DeltaShard& from, uint64_t start, const DeltaChanges& changes, int sign,
                const DeltaShard& to, int width, void* weights, uint64_t sum[2]);

// How an element of 16 bits lies in memory that is computed with: as it is published, or as the
// fp32 number of the same value, which gives its bits back. Elements of other widths lie as they
// are published.
enum class DeltaForm : uint8_t { kAsPublished, kBf16AsF32, kF16AsF32 };

// Where all elements of a tensor lie in memory that is computed with. If `columns` is 0, they have
// the order of their flat indexes. Else the tensor is a matrix with rows of so many elements, and
// lies in panels (kernels/decoder/op.h): row r is output o = first + r div lanes * stride + r mod
// lanes of a packed weight, where column c is number
//   o div lanes * panel + c div pair * pair * lanes + o mod lanes * pair + c mod pair.
struct DeltaPlace {
  void* memory = nullptr;
  DeltaForm form = DeltaForm::kAsPublished;
  uint64_t columns = 0;
  uint64_t first = 0, stride = 0;
  uint64_t lanes = 1, panel = 0;
  uint64_t pair = 1;  // 1 or 2.
};

// Does what ApplyDelta() does, for a tensor that lies at `to`. `width` is that of the published
// elements.
void ApplyDeltaInPlace(const DeltaShard& from, uint64_t start, const DeltaChanges& changes,
                       int sign, const DeltaPlace& to, int width, uint64_t sum[2]);

#ifdef SLUICE_CUDA
// All pointers are to device memory, those to tables too. Elements are aligned to their width. The
// calls work in stream order and do not synchronise; `stream` is a cudaStream_t.

// A source of EncodeDeltaCuda, and its place among all tiles of the call.
struct DeltaCudaSource {
  DeltaSource source;
  uint64_t first_tile = 0;  // The number of tiles of all sources before it.
};

// Bytes of workspace of EncodeDeltaCuda. Its contents do not matter.
size_t EncodeDeltaWorkspace(uint64_t tiles);

// Encodes all tiles of all sources, in order, with the bytes of EncodeDelta. `tiles` gets one entry
// per tile, with ends modulo 2^32, and *bytes the length of all bodies. At most `capacity` bytes
// are written to `bodies`: if *bytes is larger, the bodies are useless, but shadows and sums are
// right. sums [sources][2] are added to.
void EncodeDeltaCuda(const DeltaCudaSource* sources, int source_count, uint64_t tile_count,
                     int width, int tile_log2, DeltaTile* tiles, uint8_t* bodies, uint64_t capacity,
                     uint64_t* bytes, uint64_t* sums, void* workspace, void* stream);

// A run of tiles of one chunk, and the weights that it changes.
struct DeltaCudaPiece {
  DeltaShard from, to;
  uint64_t start = 0;  // Of the run's first tile, in `from`; `from.count` is where the run ends.
  void* weights = nullptr;           // The elements of `to`.
  const DeltaTile* tiles = nullptr;  // The run's entries in the directory of its chunk.
  const uint8_t* body = nullptr;     // The body of the chunk.
  uint32_t begin = 0;                // Where the run's first tile begins in the body.
  uint64_t first_tile = 0;           // The number of tiles of all pieces before it.
};

// Bytes that must be readable (but can be anything) after the last body.
inline constexpr size_t kDeltaPadding = 16;

// Applies all tiles of all pieces, as DecodeDeltaTile and ApplyDelta do. The tiles must have passed
// DecodeDeltaTile, and no two pieces may change one element. sums [pieces][2] are added to.
void ApplyDeltaCuda(const DeltaCudaPiece* pieces, int piece_count, uint64_t tile_count, int width,
                    int tile_log2, int sign, uint64_t* sums, void* stream);
#endif

}  // namespace sluice::kernels
