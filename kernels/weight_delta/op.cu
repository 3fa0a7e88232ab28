#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/weight_delta/bits.h"
#include "kernels/weight_delta/op.h"

// Encoding: a thread block per tile, which is read once from memory. It finds the changes, lists
// their offsets in shared memory, computes the size of the body, packs it in shared memory, learns
// its place in the output, and copies it there. Later reads of elements hit the caches.
//
// The place of a body is the sum of the sizes before it (decoupled look-back: Merrill and Garland,
// "Single-pass Parallel Prefix Scan with Decoupled Look-back", NVIDIA 2016). Blocks draw the
// numbers of their tiles, so a block waits only for blocks that run already.
//
// Applying: a warp per tile. The one-bits of the unary numbers are found 1024 bits at a time, and
// each then gives one change to a lane.
namespace sluice::kernels {
namespace {

constexpr int kWarp = 32;
// Of a block that encodes. Small blocks, so that many are on their way at different points: only
// while it compares does a block keep the memory busy.
constexpr int kThreads = 128, kWarps = kThreads / kWarp;
constexpr int kBlocksPerMultiprocessor = 8;
constexpr unsigned kAllLanes = 0xffffffffu;
using Sum = unsigned long long;  // The type that atomicAdd() takes.

constexpr int kCompared = 32;  // Elements that a thread compares in one pass over its tile.
constexpr int kPass = kThreads * kCompared;
constexpr int kDenseOwn = (1 << kDeltaTileLog2) / kThreads;  // Of a thread in a DENSE tile.
constexpr int kWindowBytes = 4096;  // A body is packed in windows of this size.
constexpr int kWindowWords = kWindowBytes / 4;

struct alignas(16) Vector {
  uint32_t words[4];
};
template <typename Word>
constexpr int kPerVector = 16 / sizeof(Word);

template <typename T>
__device__ T SumOverWarp(T x) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2) x += __shfl_down_sync(kAllLanes, x, offset);
  return x;  // Right in lane 0.
}
// The sum over the lanes of the warp up to this one.
template <typename T>
__device__ T ScanWarp(T x) {
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const T before = __shfl_up_sync(kAllLanes, x, offset);
    if (threadIdx.x % kWarp >= offset) x += before;
  }
  return x;
}

// Returns the sum over the warps before this one, and in *total that over all. The lanes of a warp
// pass the same number.
template <typename T>
__device__ T BeforeWarp(T of_warp, T* total) {
  __shared__ T warps[kWarps];
  const int warp = threadIdx.x / kWarp;
  __syncthreads();  // The numbers of the last call have been read.
  if (threadIdx.x % kWarp == 0) warps[warp] = of_warp;
  __syncthreads();
  T before = 0, all = 0;
  for (int i = 0; i < kWarps; ++i) {
    if (i == warp) before = all;
    all += warps[i];
  }
  *total = all;
  return before;
}
// Returns the sum over the threads of the block before this one, and in *total that over all.
__device__ uint64_t ScanBlock(uint64_t mine, uint64_t* total) {
  const uint64_t upto = ScanWarp(mine);
  return BeforeWarp(__shfl_sync(kAllLanes, upto, kWarp - 1), total) + upto - mine;
}

// What the change of one element adds to the fingerprint.
__device__ void Fold(uint64_t tid, uint64_t index, uint64_t now, uint64_t old, Sum sum[2]) {
  for (int lane = 0; lane < 2; ++lane) {
    sum[lane] += BlockKey(tid, lane, index / kFingerprintBlock) *
                 ElementKey(lane, index % kFingerprintBlock) * (now - old);
  }
}

// Adds the sums of the lanes to to[0..1].
__device__ void AddSums(const Sum sum[2], uint64_t* to) {
  if (!__any_sync(kAllLanes, (sum[0] | sum[1]) != 0)) return;
  for (int lane = 0; lane < 2; ++lane) {
    const Sum all = SumOverWarp(sum[lane]);
    if (threadIdx.x % kWarp == 0) atomicAdd(reinterpret_cast<Sum*>(&to[lane]), all);
  }
}

// Returns the last of `count` entries whose first tile is not after t. Called by one warp, which
// tries 32 entries at a time.
template <typename Entry>
__device__ int FindEntry(const Entry* entries, int count, uint64_t t) {
  int low = 0;
  for (int left = count; left > 1;) {
    const int step = (left + kWarp - 1) / kWarp, mine = threadIdx.x % kWarp * step;
    const uint32_t before =
        __ballot_sync(kAllLanes, mine < left && entries[low + mine].first_tile <= t);
    const int last = (kWarp - 1 - __clz(static_cast<int>(before))) * step;
    low += last;
    left = min(step, left - last);
  }
  return low;
}

// ---- Encoding.

// The sizes of bodies: each tile first publishes its own size, then the sum up to it. The top two
// bits say which.
constexpr uint64_t kOwnSize = uint64_t{1} << 62, kSumOfSizes = uint64_t{2} << 62;
constexpr uint64_t kSizeMask = kOwnSize - 1;

__device__ void Publish(uint64_t* states, uint64_t tile, uint64_t state) {
  __threadfence();
  *static_cast<volatile uint64_t*>(&states[tile]) = state;
}
// Returns the sum of the sizes of all tiles before `tile`. Called by one warp.
__device__ uint64_t LookBack(const uint64_t* states, uint64_t tile) {
  uint64_t sum = 0;
  __threadfence();
  for (int64_t last = static_cast<int64_t>(tile) - 1;; last -= kWarp) {
    const int64_t mine = last - threadIdx.x % kWarp;
    uint64_t state = kSumOfSizes;  // Before the first tile.
    if (mine >= 0) {
      do {
        state = *static_cast<const volatile uint64_t*>(&states[mine]);
      } while (state == 0);
    }
    const uint32_t sums = __ballot_sync(kAllLanes, (state & kSumOfSizes) != 0);
    // The lanes up to the nearest sum count.
    const int nearest = __ffs(static_cast<int>(sums)) - 1;
    const bool counts = sums == 0 || static_cast<int>(threadIdx.x % kWarp) <= nearest;
    sum += __shfl_sync(kAllLanes, SumOverWarp(counts ? state & kSizeMask : 0), 0);
    if (sums != 0) return sum;
  }
}

// A window of a body in shared memory. Bits outside it are dropped.
struct Window {
  uint32_t* words;
  int first_bit;

  __device__ void Put(int at, uint32_t value, int bits) const {
    if (bits == 0 || value == 0) return;
    const int bit = at - first_bit;
    const int word = bit >> 5;  // Rounds down, below 0 too.
    const uint64_t shifted = uint64_t{value} << (bit & 31);
    Or(word, static_cast<uint32_t>(shifted));
    Or(word + 1, static_cast<uint32_t>(shifted >> 32));
  }
  __device__ void Or(int word, uint32_t bits) const {
    if (bits != 0 && word >= 0 && word < kWindowWords) atomicOr(&words[word], bits);
  }
};

// A tile while it is encoded. Its methods are called by all threads of the block.
template <typename Word>
struct Encoder {
  const Word* now;
  Word* shadow;
  int n;              // Elements.
  uint16_t* offsets;  // Of the changes, in shared memory: `most` at most.
  int most;

  int changed;
  int k;
  // Where the numbers of this thread begin: in bits of the unary part, and in escapes before.
  int unary_begin, halves_begin, wholes_begin;
  int unary_bits, halves, wholes;  // Of the tile.
  Word z[kDenseOwn];               // Of this thread's elements, if the tile is DENSE.

  __device__ Word D(int i) const { return Difference(now[i], shadow[i]); }
  __device__ int Gap(int r) const { return offsets[r] - (r == 0 ? 0 : offsets[r - 1] + 1); }

  // Compares the elements [first, first + kPass). Bit c * kPerVector + i of the result is set if
  // element i of this thread's vector c changed.
  __device__ uint32_t Compare(int first, bool aligned) const {
    constexpr int kVectors = kCompared / kPerVector<Word>;
    constexpr int kAtOnce = kVectors < 4 ? kVectors : 4;  // Loads of each kind on their way.
    uint32_t mask = 0;
    if (aligned && first + kPass <= n) {
      for (int group = 0; group < kVectors; group += kAtOnce) {
        Vector a[kAtOnce], b[kAtOnce];
#pragma unroll
        for (int c = 0; c < kAtOnce; ++c) {
          const int at = ElementOf(first, group + c);
          a[c] = *reinterpret_cast<const Vector*>(now + at);
          b[c] = *reinterpret_cast<const Vector*>(shadow + at);
        }
#pragma unroll
        for (int c = 0; c < kAtOnce; ++c)
          mask |= CompareVectors(a[c], b[c]) << ((group + c) * kPerVector<Word>);
      }
      return mask;
    }
    for (int c = 0; c < kVectors; ++c) {
      const int at = ElementOf(first, c);
      for (int i = 0; i < kPerVector<Word>; ++i) {
        if (at + i < n && now[at + i] != shadow[at + i]) mask |= 1u << (c * kPerVector<Word> + i);
      }
    }
    return mask;
  }
  static __device__ uint32_t CompareVectors(const Vector& a, const Vector& b) {
    uint32_t mask = 0;
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const uint32_t differs = a.words[w] ^ b.words[w];
#pragma unroll
      for (int i = 0; i < kPerVector<Word> / 4; ++i) {
        if (static_cast<Word>(differs >> (i * kWordBits<Word>)) != 0)
          mask |= 1u << (w * (kPerVector<Word> / 4) + i);
      }
    }
    return mask;
  }
  // The first element of this thread's vector c. A warp reads 1024 elements in a row.
  __device__ int ElementOf(int first, int c) const {
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    return first + warp * kWarp * kCompared + (c * kWarp + lane) * kPerVector<Word>;
  }

  // Lists the offsets of the changes, and counts them.
  __device__ void Detect() {
    constexpr int kVectors = kCompared / kPerVector<Word>;
    constexpr int kField = 64 / kVectors;  // Bits of a count below: at least log2(32 kPerVector).
    constexpr uint64_t kFieldMask = ~uint64_t{0} >> (64 - kField);
    constexpr uint32_t kVectorMask = (1u << kPerVector<Word>)-1;
    const bool aligned =
        (reinterpret_cast<uintptr_t>(now) | reinterpret_cast<uintptr_t>(shadow)) % sizeof(Vector) ==
        0;
    changed = 0;
    for (int first = 0; first < n; first += kPass) {
      const uint32_t mask = Compare(first, aligned);
      // One field per vector: the changes in it, and in those of the lanes before.
      uint64_t counts = 0;
      for (int c = 0; c < kVectors; ++c) {
        counts |= static_cast<uint64_t>(__popc(mask >> (c * kPerVector<Word>)&kVectorMask))
                  << (c * kField);
      }
      const uint64_t upto = ScanWarp(counts);
      const uint64_t of_warp = __shfl_sync(kAllLanes, upto, kWarp - 1);
      int in_warp = 0;
      for (int c = 0; c < kVectors; ++c)
        in_warp += static_cast<int>(of_warp >> (c * kField) & kFieldMask);
      int all, place = changed + BeforeWarp(in_warp, &all);
      for (int c = 0; c < kVectors; ++c) {
        uint32_t rest = mask >> (c * kPerVector<Word>)&kVectorMask;
        int r = place + static_cast<int>((upto - counts) >> (c * kField) & kFieldMask);
        for (; rest != 0; rest &= rest - 1, ++r) {
          const int i = ElementOf(first, c) + __ffs(static_cast<int>(rest)) - 1;
          if (r < most) offsets[r] = static_cast<uint16_t>(i);
        }
        place += static_cast<int>(of_warp >> (c * kField) & kFieldMask);
      }
      changed += all;
    }
    __syncthreads();
  }

  // The changes of this thread in a SPARSE tile.
  __device__ int FirstOwn() const {
    return min(changed, static_cast<int>(threadIdx.x) * PerThread());
  }
  __device__ int EndOwn() const { return min(changed, FirstOwn() + PerThread()); }
  __device__ int PerThread() const { return (changed + kThreads - 1) / kThreads; }

  __device__ int SizeSparse() {
    k = SparseK(changed, n);
    uint64_t mine = 0;  // Unary bits, halves << 32, wholes << 48.
    for (int r = FirstOwn(); r < EndOwn(); ++r) {
      const uint32_t code = SparseCode(D(offsets[r]));
      mine += static_cast<uint64_t>((Gap(r) >> k) + 1);
      mine += uint64_t{code == kHalfWord} << 32 | uint64_t{code == kWholeWord} << 48;
    }
    uint64_t total;
    const uint64_t before = ScanBlock(mine, &total);
    unary_begin = static_cast<int>(before & 0xffffffff), unary_bits = static_cast<int>(total);
    halves_begin = static_cast<int>(before >> 32 & 0xffff);
    halves = static_cast<int>(total >> 32 & 0xffff);
    wholes_begin = static_cast<int>(before >> 48), wholes = static_cast<int>(total >> 48);
    return EscapesBegin(changed * (k + 2)) + halves * static_cast<int>(sizeof(Word)) / 2 +
           wholes * static_cast<int>(sizeof(Word));
  }
  // In bytes, where the fields have `field_bits`.
  __device__ int EscapesBegin(int field_bits) const { return (field_bits + unary_bits + 7) / 8; }

  __device__ void PackSparse(const Window& window) const {
    const int fields = changed * (k + 2);
    int unary = fields + unary_begin;
    int half = 8 * EscapesBegin(fields) + halves_begin * kWordBits<Word> / 2;
    int whole =
        8 * EscapesBegin(fields) + halves * kWordBits<Word> / 2 + wholes_begin * kWordBits<Word>;
    for (int r = FirstOwn(); r < EndOwn(); ++r) {
      const int gap = Gap(r);
      const Word d = D(offsets[r]);
      const uint32_t code = SparseCode(d);
      window.Put(r * (k + 2), (gap & ((1u << k) - 1)) | code << k, k + 2);
      unary += gap >> k;
      window.Put(unary++, 1, 1);
      if (code == kHalfWord) {
        window.Put(half, d & ((1u << (kWordBits<Word> / 2)) - 1), kWordBits<Word> / 2);
        half += kWordBits<Word> / 2;
      } else if (code == kWholeWord) {
        window.Put(whole, d, kWordBits<Word>);
        whole += kWordBits<Word>;
      }
    }
  }

  // Chooses k and returns the size of the DENSE body. A thread's elements are neighbours here.
  __device__ int SizeDense() {
    __shared__ uint32_t costs[kWordBits<Word>], escapes[kWordBits<Word>];
    const int first = threadIdx.x * kDenseOwn, own = max(0, min(kDenseOwn, n - first));
    for (int i = 0; i < kDenseOwn; ++i) z[i] = i < own ? ZigZag(D(first + i)) : Word{0};
    if (threadIdx.x < kWordBits<Word>) costs[threadIdx.x] = escapes[threadIdx.x] = 0;
    __syncthreads();
#pragma unroll 1
    for (int shift = 0; shift < kWordBits<Word>; ++shift) {
      uint32_t bits = 0, large = 0;
      for (int i = 0; i < kDenseOwn; ++i) {  // Elements beyond the end cost nothing.
        const auto q = static_cast<uint32_t>(z[i] >> shift);
        bits += min(q, kMostUnary);
        large += q >= kMostUnary;
      }
      bits = __reduce_add_sync(kAllLanes, bits);
      large = __reduce_add_sync(kAllLanes, large);
      if (threadIdx.x % kWarp == 0) {
        atomicAdd(&costs[shift], bits);
        atomicAdd(&escapes[shift], large);
      }
    }
    __syncthreads();
    int best = INT32_MAX;
    for (int shift = 0; shift < kWordBits<Word>; ++shift) {
      const int bytes = static_cast<int>((n * (shift + 1) + costs[shift] + 7) / 8 +
                                         escapes[shift] * sizeof(Word));
      if (bytes < best) best = bytes, k = shift;
    }

    uint64_t mine = 0, total;  // Unary bits, escapes << 32.
    for (int i = 0; i < own; ++i) {
      const auto q = static_cast<uint32_t>(z[i] >> k);
      mine += (min(q, kMostUnary) + 1) | uint64_t{q >= kMostUnary} << 32;
    }
    const uint64_t before = ScanBlock(mine, &total);
    unary_begin = static_cast<int>(before & 0xffffffff), unary_bits = static_cast<int>(total);
    wholes_begin = static_cast<int>(before >> 32);
    return best;
  }

  __device__ void PackDense(const Window& window) const {
    const int first = threadIdx.x * kDenseOwn, own = max(0, min(kDenseOwn, n - first));
    int unary = n * k + unary_begin;
    int whole = 8 * EscapesBegin(n * k) + wholes_begin * kWordBits<Word>;
    for (int i = 0; i < own; ++i) {
      const auto q = static_cast<uint32_t>(z[i] >> k);
      window.Put((first + i) * k, z[i] & ((1u << k) - 1), k);
      unary += static_cast<int>(min(q, kMostUnary));
      window.Put(unary++, 1, 1);
      if (q >= kMostUnary) {
        window.Put(whole, q, kWordBits<Word>);
        whole += kWordBits<Word>;
      }
    }
  }

  __device__ void PackPlain(const Window& window) const {
    const int begin = window.first_bit / kWordBits<Word>;
    const int end = min(n, begin + kWindowBytes / static_cast<int>(sizeof(Word)));
    for (int i = begin + threadIdx.x; i < end; i += kThreads)
      window.Put(i * kWordBits<Word>, D(i), kWordBits<Word>);
  }

  // Chooses the mode and returns the size of the body.
  __device__ int Size(bool dense, DeltaMode* mode) {
    const int raw = n * static_cast<int>(sizeof(Word));
    int bytes = raw;
    *mode = DeltaMode::kPlain;
    k = 0;
    if (changed == 0) {
      *mode = DeltaMode::kSame;
      return 0;
    }
    if (4 * changed <= n) {
      *mode = DeltaMode::kSparse;
      bytes = SizeSparse();
    } else if (dense) {
      *mode = DeltaMode::kDense;
      bytes = SizeDense();
    }
    if (bytes < raw) return bytes;
    *mode = DeltaMode::kPlain;
    k = 0;
    return raw;
  }

  __device__ void Pack(DeltaMode mode, const Window& window) const {
    switch (mode) {
      case DeltaMode::kSparse: return PackSparse(window);
      case DeltaMode::kDense: return PackDense(window);
      default: return PackPlain(window);
    }
  }

  __device__ void Commit(const DeltaShard& shard, uint64_t start, int i, Sum sum[2]) {
    const Word after = now[i], before = shadow[i];
    if (after == before) return;
    Fold(shard.tid, IndexInTensor(shard, start + i), after, before, sum);
    shadow[i] = after;
  }
  // Copies the changes to the shadow, and adds what they add to the fingerprint.
  __device__ void CommitAll(const DeltaShard& shard, uint64_t start, DeltaMode mode, Sum sum[2]) {
    if (mode == DeltaMode::kSparse) {
      for (int r = threadIdx.x; r < changed; r += kThreads) Commit(shard, start, offsets[r], sum);
    } else if (mode != DeltaMode::kSame) {
      for (int i = threadIdx.x; i < n; i += kThreads) Commit(shard, start, i, sum);
    }
  }
};

// What all blocks share; it is zero at the start.
struct Workspace {
  unsigned long long next_tile;
  uint64_t states[1];  // [tiles]
};

template <typename Word, int kTileLog2>
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    Encode(const DeltaCudaSource* sources, int source_count, uint64_t tile_count, DeltaTile* tiles,
           uint8_t* bodies, uint64_t capacity, uint64_t* bytes_of_all, uint64_t* sums,
           Workspace* workspace) {
  __shared__ uint16_t offsets[1 << (kTileLog2 - 2)];
  __shared__ uint32_t window[kWindowWords];
  __shared__ uint64_t drawn, place;
  __shared__ int of_source;
  if (threadIdx.x < kWarp) {
    uint64_t t = threadIdx.x == 0 ? atomicAdd(&workspace->next_tile, 1ull) : 0;
    t = __shfl_sync(kAllLanes, t, 0);
    const int found = FindEntry(sources, source_count, t);
    if (threadIdx.x == 0) drawn = t, of_source = found;
  }
  __syncthreads();
  const uint64_t tile = drawn;
  const DeltaCudaSource& from = sources[of_source];
  const DeltaShard shard = from.source.shard;
  const uint64_t start = (tile - from.first_tile) << kTileLog2;

  Encoder<Word> encoder;
  encoder.now = static_cast<const Word*>(from.source.now) + start;
  encoder.shadow = static_cast<Word*>(from.source.shadow) + start;
  encoder.n = static_cast<int>(min(shard.count - start, uint64_t{1} << kTileLog2));
  encoder.offsets = offsets;
  encoder.most = 1 << (kTileLog2 - 2);
  encoder.Detect();
  DeltaMode mode;
  const int bytes = encoder.Size(kTileLog2 == kDeltaTileLog2, &mode);

  if (threadIdx.x == 0 && tile > 0) Publish(workspace->states, tile, kOwnSize | bytes);
  for (int begin = 0; begin == 0 || begin < bytes; begin += kWindowBytes) {
    const int length = min(bytes - begin, kWindowBytes);
    for (int w = threadIdx.x; 4 * w < length; w += kThreads) window[w] = 0;
    __syncthreads();
    if (length > 0) encoder.Pack(mode, {window, 8 * begin});
    if (begin == 0 && threadIdx.x < kWarp) {
      const uint64_t before = LookBack(workspace->states, tile);
      if (threadIdx.x == 0) {
        place = before;
        Publish(workspace->states, tile, kSumOfSizes | (before + bytes));
      }
    }
    __syncthreads();
    if (place + bytes <= capacity) {
      const auto* const packed = reinterpret_cast<const uint8_t*>(window);
      for (int i = threadIdx.x; i < length; i += kThreads) bodies[place + begin + i] = packed[i];
    }
    __syncthreads();
  }

  if (threadIdx.x == 0) {
    tiles[tile].end = static_cast<uint32_t>(place + bytes);
    tiles[tile].changed_less_one =
        static_cast<uint16_t>(encoder.changed == 0 ? 0 : encoder.changed - 1);
    tiles[tile].k = static_cast<uint8_t>(encoder.k);
    tiles[tile].mode = mode;
    if (tile + 1 == tile_count) *bytes_of_all = place + bytes;
  }
  Sum sum[2] = {0, 0};
  encoder.CommitAll(shard, start, mode, sum);
  AddSums(sum, sums + 2 * of_source);
}

// ---- Applying.

constexpr int kApplyThreads = 256, kApplyWarps = kApplyThreads / kWarp;
constexpr int kApplyBlocks = 6;  // On a multiprocessor.

// The bits of one tile's body.
struct BodyBits {
  const uint32_t* words;  // The aligned word that holds the first byte.
  int skew;               // Bits of it before that byte.
  int end;                // In bits.

  __device__ BodyBits(const uint8_t* body, uint32_t bytes)
      : words(reinterpret_cast<const uint32_t*>(reinterpret_cast<uintptr_t>(body) & ~uintptr_t{3})),
        skew(static_cast<int>(reinterpret_cast<uintptr_t>(body) % 4 * 8)),
        end(static_cast<int>(8 * bytes)) {}
  // 32 bits from bit `at` on. Up to 8 bytes beyond the last of them are read.
  __device__ uint32_t Load(int at) const {
    const int bit = at + skew;
    const uint64_t two = words[bit >> 5] | uint64_t{words[(bit >> 5) + 1]} << 32;
    return static_cast<uint32_t>(two >> (bit & 31));
  }
  __device__ uint32_t Load(int at, int bits) const {
    return bits == 32 ? Load(at) : Load(at) & ((1u << bits) - 1);
  }
};

__device__ int LanesBefore(uint32_t ballot) {
  return __popc(ballot & ((1u << (threadIdx.x % kWarp)) - 1));
}

constexpr int kUnaryWindow = 1024;  // Bits that a warp looks at together.

// Calls f(r, position, active) for each of the `count` one-bits from bit `begin` on: r is its rank
// and `position` its distance from `begin`. All lanes call f together; in those beyond the last
// one-bit, `active` is false. `positions` is shared memory of this warp.
template <typename F>
__device__ void ForEachOne(const BodyBits& body, int begin, int count, uint16_t* positions, F f) {
  const int lane = threadIdx.x % kWarp;
  int rank = 0;  // Of the first one-bit in the window.
  for (int window = begin; rank < count && window < body.end; window += kUnaryWindow) {
    const int at = window + 32 * lane;
    uint32_t word = at < body.end ? body.Load(at) : 0;
    const int ones = __popc(word), upto = ScanWarp(ones);
    for (int r = upto - ones; word != 0; word &= word - 1, ++r)
      positions[r] = static_cast<uint16_t>(32 * lane + __ffs(static_cast<int>(word)) - 1);
    __syncwarp();
    const int found = min(count - rank, __shfl_sync(kAllLanes, upto, kWarp - 1));
    for (int first = 0; first < found; first += kWarp) {
      const int r = first + lane;
      f(rank + r, r < found ? window - begin + positions[r] : 0, r < found);
    }
    __syncwarp();
    rank += found;
  }
}

// Changes the weights of one piece.
template <typename Word>
struct Writer {
  const DeltaCudaPiece& piece;
  uint64_t start;  // Of the tile in piece.from.
  int n;
  int sign;
  Sum* sum;  // [2], of this lane.

  __device__ void Add(int i, Word d) const {
    if (i < 0 || i >= n || d == 0) return;
    const uint64_t index = IndexInTensor(piece.from, start + i);
    const uint64_t l = ElementOfShard(piece.to, index);
    if (l == kNotHeld) return;
    Word* const at = static_cast<Word*>(piece.weights) + l;
    const Word before = *at, ord = ToOrd(before);
    const Word after = FromOrd(static_cast<Word>(sign > 0 ? ord + d : ord - d));
    *at = after;
    Fold(piece.from.tid, index, after, before, sum);
  }
};

template <typename Word>
__device__ void ApplySparse(const BodyBits& body, int changed, int k, uint16_t* positions,
                            const Writer<Word>& writer) {
  const int width = k + 2, lane = threadIdx.x % kWarp;
  uint32_t halves = 0, wholes = 0;
  for (int r = lane; r < changed; r += kWarp) {
    const uint32_t code = body.Load(r * width, width) >> k;
    halves += code == kHalfWord;
    wholes += code == kWholeWord;
  }
  // The escapes end with the body. The next of each kind:
  int whole = body.end - static_cast<int>(__reduce_add_sync(kAllLanes, wholes)) * kWordBits<Word>;
  int half = whole - static_cast<int>(__reduce_add_sync(kAllLanes, halves)) * kWordBits<Word> / 2;

  int lows = 0;  // The sum of the low bits of all changes so far.
  ForEachOne(body, changed * width, changed, positions, [&](int r, int position, bool active) {
    const uint32_t field = active ? body.Load(r * width, width) : 0;
    const uint32_t code = field >> k;
    const int upto = lows + ScanWarp(static_cast<int>(field & ((1u << k) - 1)));
    const uint32_t with_half = __ballot_sync(kAllLanes, active && code == kHalfWord);
    const uint32_t with_whole = __ballot_sync(kAllLanes, active && code == kWholeWord);
    if (active) {
      Word d = static_cast<Word>(code == kPlusOne ? 1 : -1);
      if (code == kHalfWord) {
        constexpr int kHalf = kWordBits<Word> / 2;
        d = ExtendHalfWord<Word>(body.Load(half + LanesBefore(with_half) * kHalf, kHalf));
      } else if (code == kWholeWord) {
        constexpr int kWhole = kWordBits<Word>;
        d = static_cast<Word>(body.Load(whole + LanesBefore(with_whole) * kWhole, kWhole));
      }
      writer.Add(((position - r) << k) + upto + r, d);
    }
    lows = __shfl_sync(kAllLanes, upto, kWarp - 1);
    half += __popc(with_half) * kWordBits<Word> / 2;
    whole += __popc(with_whole) * kWordBits<Word>;
  });
}

template <typename Word>
__device__ void ApplyDense(const BodyBits& body, int k, uint16_t* positions,
                           const Writer<Word>& writer) {
  const int n = writer.n, begin = n * k;
  // The unary numbers end with their last one-bit.
  int unary_bits = 0;
  ForEachOne(body, begin, n, positions, [&](int r, int position, bool active) {
    if (active && r == n - 1) unary_bits = position + 1;
  });
  unary_bits = static_cast<int>(__reduce_max_sync(kAllLanes, static_cast<uint32_t>(unary_bits)));
  int escape = (begin + unary_bits + 7) / 8 * 8;

  int last = -1;  // The position of the one-bit before.
  ForEachOne(body, begin, n, positions, [&](int r, int position, bool active) {
    const int before = __shfl_up_sync(kAllLanes, position, 1);
    uint32_t q = static_cast<uint32_t>(position - 1 - (threadIdx.x % kWarp == 0 ? last : before));
    const uint32_t large = __ballot_sync(kAllLanes, active && q == kMostUnary);
    if (active) {
      if (q == kMostUnary)
        q = body.Load(escape + LanesBefore(large) * kWordBits<Word>, kWordBits<Word>);
      const uint32_t z = q << k | body.Load(r * k, k);
      writer.Add(r, UnZigZag(static_cast<Word>(z)));
    }
    const int actives = __popc(__ballot_sync(kAllLanes, active));
    last = __shfl_sync(kAllLanes, position, actives - 1);
    escape += __popc(large) * kWordBits<Word>;
  });
}

// Applies tile number `number` of a piece.
template <typename Word>
__device__ void ApplyTile(const DeltaCudaPiece& piece, uint64_t number, int tile_log2, int sign,
                          uint16_t* positions, Sum sum[2]) {
  const DeltaTile entry = piece.tiles[number];
  const uint32_t begin = number == 0 ? piece.begin : piece.tiles[number - 1].end;
  const uint64_t start = piece.start + (number << tile_log2);
  const int n = static_cast<int>(min(piece.from.count - start, uint64_t{1} << tile_log2));
  const BodyBits body(piece.body + begin, entry.end - begin);
  const Writer<Word> writer{piece, start, n, sign, sum};
  switch (entry.mode) {
    case DeltaMode::kSame: return;
    case DeltaMode::kSparse:
      return ApplySparse(body, entry.changed_less_one + 1, entry.k, positions, writer);
    case DeltaMode::kDense: return ApplyDense(body, entry.k, positions, writer);
    case DeltaMode::kPlain:
      for (int i = threadIdx.x % kWarp; i < n; i += kWarp)
        writer.Add(i, static_cast<Word>(body.Load(i * kWordBits<Word>)));
  }
}

template <typename Word>
__global__ void __launch_bounds__(kApplyThreads)
    Apply(const DeltaCudaPiece* pieces, int piece_count, uint64_t tile_count, int tile_log2,
          int sign, uint64_t* sums) {
  __shared__ uint16_t positions[kApplyWarps][kUnaryWindow];
  const int warp = threadIdx.x / kWarp;
  const uint64_t first = uint64_t{blockIdx.x} * kApplyWarps + warp;
  if (first >= tile_count) return;
  int p = FindEntry(pieces, piece_count, first);
  Sum sum[2] = {0, 0};
  for (uint64_t tile = first; tile < tile_count; tile += uint64_t{gridDim.x} * kApplyWarps) {
    while (p + 1 < piece_count && pieces[p + 1].first_tile <= tile) {
      AddSums(sum, sums + 2 * p);
      sum[0] = sum[1] = 0;
      ++p;
    }
    ApplyTile<Word>(pieces[p], tile - pieces[p].first_tile, tile_log2, sign, positions[warp], sum);
  }
  AddSums(sum, sums + 2 * p);
}

// The number of blocks that apply `tiles` tiles. All run at once; each warp takes several tiles, so
// that few add to the one sum of a piece.
unsigned CountApplyBlocks(uint64_t tiles) {
  int device = 0, multiprocessors = 1;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  const uint64_t wanted = (tiles + kApplyWarps - 1) / kApplyWarps;
  return static_cast<unsigned>(
      std::min(wanted, static_cast<uint64_t>(multiprocessors) * kApplyBlocks));
}

}  // namespace

size_t EncodeDeltaWorkspace(uint64_t tiles) { return sizeof(Workspace) + 8 * tiles; }

void EncodeDeltaCuda(const DeltaCudaSource* sources, int source_count, uint64_t tile_count,
                     int width, int tile_log2, DeltaTile* tiles, uint8_t* bodies, uint64_t capacity,
                     uint64_t* bytes, uint64_t* sums, void* workspace, void* stream) {
  const auto s = static_cast<cudaStream_t>(stream);
  cudaMemsetAsync(bytes, 0, sizeof(*bytes), s);
  if (tile_count == 0) return;
  cudaMemsetAsync(workspace, 0, EncodeDeltaWorkspace(tile_count), s);
  const auto launch = [&]<typename Word>(Word) {
    const auto grid = static_cast<unsigned>(tile_count);
    auto* const shared = static_cast<Workspace*>(workspace);
    if (tile_log2 == kDeltaTileLog2) {
      Encode<Word, kDeltaTileLog2><<<grid, kThreads, 0, s>>>(
          sources, source_count, tile_count, tiles, bodies, capacity, bytes, sums, shared);
    } else {
      Encode<Word, kLongDeltaTileLog2><<<grid, kThreads, 0, s>>>(
          sources, source_count, tile_count, tiles, bodies, capacity, bytes, sums, shared);
    }
  };
  switch (width) {
    case 1: return launch(uint8_t{0});
    case 2: return launch(uint16_t{0});
    case 4: return launch(uint32_t{0});
    default: __builtin_trap();
  }
}

void ApplyDeltaCuda(const DeltaCudaPiece* pieces, int piece_count, uint64_t tile_count, int width,
                    int tile_log2, int sign, uint64_t* sums, void* stream) {
  if (tile_count == 0) return;
  const auto launch = [&]<typename Word>(Word) {
    const unsigned grid = CountApplyBlocks(tile_count);
    Apply<Word><<<grid, kApplyThreads, 0, static_cast<cudaStream_t>(stream)>>>(
        pieces, piece_count, tile_count, tile_log2, sign, sums);
  };
  switch (width) {
    case 1: return launch(uint8_t{0});
    case 2: return launch(uint16_t{0});
    case 4: return launch(uint32_t{0});
    default: __builtin_trap();
  }
}

}  // namespace sluice::kernels
