#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/weight_delta/bits.h"
#include "kernels/weight_delta/op.h"
#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define SLUICE_X86 1
#endif

namespace sluice::kernels {
namespace {

template <typename Word>
Word Load(const void* elements, uint64_t i) {
  Word x;
  std::memcpy(&x, static_cast<const char*>(elements) + i * sizeof(Word), sizeof(Word));
  return x;
}
template <typename Word>
void Store(void* elements, uint64_t i, Word x) {
  std::memcpy(static_cast<char*>(elements) + i * sizeof(Word), &x, sizeof(Word));
}

// Calls f with a zero of the type that has `width` bytes.
template <typename F>
auto WithWord(int width, F f) {
  switch (width) {
    case 1: return f(uint8_t{0});
    case 2: return f(uint16_t{0});
    case 4: return f(uint32_t{0});
    default: __builtin_trap();  // Callers only have dtypes of these widths.
  }
}

// ---- Detection.
//
// The vector forms first list the vectors that differ, without a branch on each, and then look into
// those. Where one of four differs, mispredicted branches would cost as much as all the rest.

template <typename Word>
void AddChange(uint32_t offset, Word now, Word old, DeltaChanges* changes) {
  changes->offset[changes->count] = static_cast<uint16_t>(offset);
  changes->d[changes->count++] = Difference(now, old);
}

void DetectScalar(int width, const void* now, const void* old, uint32_t n, DeltaChanges* changes) {
  changes->count = 0;
  WithWord(width, [&]<typename Word>(Word) {
    constexpr uint32_t kStep = 8 / sizeof(Word);
    for (uint32_t i = 0; i < n; i += kStep) {
      const uint32_t end = std::min(n, i + kStep);
      if (end == i + kStep && Load<uint64_t>(now, i / kStep) == Load<uint64_t>(old, i / kStep)) {
        continue;
      }
      for (uint32_t j = i; j < end; ++j) {
        const Word a = Load<Word>(now, j), b = Load<Word>(old, j);
        if (a != b) AddChange(j, a, b, changes);
      }
    }
  });
}

#if SLUICE_X86
#define SLUICE_AVX2 __attribute__((target("avx2,bmi,bmi2,lzcnt,popcnt")))
#define SLUICE_AVX512 \
  __attribute__((target("avx512f,avx512bw,avx512vl,avx512vbmi2,bmi,bmi2,lzcnt,popcnt")))

template <typename Word>
SLUICE_AVX2 void DetectWordsAvx2(const char* now, const char* old, uint32_t n,
                                 DeltaChanges* changes) {
  constexpr uint32_t kStep = 32 / sizeof(Word);
  // One bit per byte, so the bits of an element are equal.
  const auto compare = [&](uint32_t v) SLUICE_AVX2 {
    const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(now) + v);
    const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(old) + v);
    const __m256i equal = sizeof(Word) == 1   ? _mm256_cmpeq_epi8(a, b)
                          : sizeof(Word) == 2 ? _mm256_cmpeq_epi16(a, b)
                                              : _mm256_cmpeq_epi32(a, b);
    return ~static_cast<uint32_t>(_mm256_movemask_epi8(equal));
  };
  uint16_t differing[DeltaChanges::kMost / kStep];
  uint32_t count = 0;
  for (uint32_t v = 0; v < n / kStep; ++v) {
    differing[count] = static_cast<uint16_t>(v);
    count += compare(v) != 0;
  }

  for (uint32_t c = 0; c < count; ++c) {
    for (uint32_t bits = compare(differing[c]); bits != 0;) {
      const uint32_t j =
          differing[c] * kStep + static_cast<uint32_t>(std::countr_zero(bits)) / sizeof(Word);
      AddChange(j, Load<Word>(now, j), Load<Word>(old, j), changes);
      for (size_t byte = 0; byte < sizeof(Word); ++byte) bits &= bits - 1;
    }
  }
  for (uint32_t i = n / kStep * kStep; i < n; ++i) {
    const Word a = Load<Word>(now, i), b = Load<Word>(old, i);
    if (a != b) AddChange(i, a, b, changes);
  }
}

void DetectAvx2(int width, const void* now, const void* old, uint32_t n, DeltaChanges* changes) {
  changes->count = 0;
  WithWord(width, [&]<typename Word>(Word) {
    DetectWordsAvx2<Word>(static_cast<const char*>(now), static_cast<const char*>(old), n, changes);
  });
}

SLUICE_AVX512 inline __m512i LoadVector(const char* from, uint32_t v) {
  return _mm512_loadu_si512(from + size_t{v} * 64);
}

// Each of these compares the vectors a (now) and b (old) of the elements from i on.
SLUICE_AVX512 inline void CompareVectors(uint8_t, __m512i a, __m512i b, uint32_t i,
                                         DeltaChanges* changes) {
  const __mmask64 differs = _mm512_cmpneq_epi8_mask(a, b);
  const __m512i top = _mm512_set1_epi8(static_cast<char>(0x80));
  const auto ord = [&](__m512i x) SLUICE_AVX512 {
    const __m512i sign = _mm512_movm_epi8(_mm512_movepi8_mask(x));
    return _mm512_xor_si512(x, _mm512_or_si512(sign, top));
  };
  const __m512i d = _mm512_maskz_compress_epi8(differs, _mm512_sub_epi8(ord(a), ord(b)));
  alignas(64) uint8_t narrow[64];
  _mm512_store_si512(narrow, d);
  const auto count = static_cast<uint32_t>(std::popcount(differs));
  uint32_t* const to = &changes->d[changes->count];
  for (uint32_t j = 0; j < count; j += 16) {
    const __m128i part = _mm_load_si128(reinterpret_cast<const __m128i*>(narrow + j));
    _mm512_storeu_si512(to + j, _mm512_cvtepu8_epi32(part));
  }
  for (uint64_t rest = differs; rest != 0; rest &= rest - 1)
    changes->offset[changes->count++] = static_cast<uint16_t>(i + std::countr_zero(rest));
}

SLUICE_AVX512 inline void CompareVectors(uint16_t, __m512i a, __m512i b, uint32_t i,
                                         DeltaChanges* changes) {
  const __mmask32 differs = _mm512_cmpneq_epi16_mask(a, b);
  const __m512i top = _mm512_set1_epi16(static_cast<int16_t>(0x8000));
  const auto ord = [&](__m512i x) SLUICE_AVX512 {
    return _mm512_xor_si512(x, _mm512_or_si512(_mm512_srai_epi16(x, 15), top));
  };
  const __m512i d = _mm512_maskz_compress_epi16(differs, _mm512_sub_epi16(ord(a), ord(b)));
  uint32_t* const to = &changes->d[changes->count];
  _mm512_storeu_si512(to, _mm512_cvtepu16_epi32(_mm512_castsi512_si256(d)));
  const auto count = static_cast<uint32_t>(std::popcount(differs));
  if (count > 16)
    _mm512_storeu_si512(to + 16, _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(d, 1)));

  const __m512i lane = _mm512_set_epi16(31, 30, 29, 28, 27, 26, 25, 24, 23, 22, 21, 20, 19, 18, 17,
                                        16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  const __m512i offsets = _mm512_add_epi16(lane, _mm512_set1_epi16(static_cast<int16_t>(i)));
  _mm512_storeu_si512(&changes->offset[changes->count],
                      _mm512_maskz_compress_epi16(differs, offsets));
  changes->count += count;
}

SLUICE_AVX512 inline void CompareVectors(uint32_t, __m512i a, __m512i b, uint32_t i,
                                         DeltaChanges* changes) {
  const __mmask16 differs = _mm512_cmpneq_epi32_mask(a, b);
  const __m512i top = _mm512_set1_epi32(static_cast<int32_t>(0x80000000));
  const auto ord = [&](__m512i x) SLUICE_AVX512 {
    return _mm512_xor_si512(x, _mm512_or_si512(_mm512_srai_epi32(x, 31), top));
  };
  const __m512i d = _mm512_maskz_compress_epi32(differs, _mm512_sub_epi32(ord(a), ord(b)));
  _mm512_storeu_si512(&changes->d[changes->count], d);
  const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  const __m512i offsets = _mm512_add_epi32(lane, _mm512_set1_epi32(static_cast<int32_t>(i)));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(&changes->offset[changes->count]),
                      _mm512_cvtepi32_epi16(_mm512_maskz_compress_epi32(differs, offsets)));
  changes->count += static_cast<uint32_t>(std::popcount(differs));
}

template <typename Word>
SLUICE_AVX512 void DetectWordsAvx512(const char* now, const char* old, uint32_t n,
                                     DeltaChanges* changes) {
  constexpr uint32_t kStep = 64 / sizeof(Word);
  uint16_t differing[DeltaChanges::kMost / kStep];
  uint32_t count = 0;
  for (uint32_t v = 0; v < n / kStep; ++v) {
    differing[count] = static_cast<uint16_t>(v);
    count += _mm512_cmpneq_epi32_mask(LoadVector(now, v), LoadVector(old, v)) != 0;
  }

  for (uint32_t c = 0; c < count; ++c) {
    const uint32_t v = differing[c];
    CompareVectors(Word{0}, LoadVector(now, v), LoadVector(old, v), v * kStep, changes);
  }
  const uint32_t i = n / kStep * kStep;
  const size_t at = i * sizeof(Word);
  const __mmask64 rest = _bzhi_u64(~0ull, static_cast<uint32_t>((n - i) * sizeof(Word)));
  CompareVectors(Word{0}, _mm512_maskz_loadu_epi8(rest, now + at),
                 _mm512_maskz_loadu_epi8(rest, old + at), i, changes);
}

void DetectAvx512(int width, const void* now, const void* old, uint32_t n, DeltaChanges* changes) {
  changes->count = 0;
  WithWord(width, [&]<typename Word>(Word) {
    DetectWordsAvx512<Word>(static_cast<const char*>(now), static_cast<const char*>(old), n,
                            changes);
  });
}
#endif

std::vector<DeltaDetector> FindDetectors() {
  std::vector<DeltaDetector> found;
#if SLUICE_X86
  __builtin_cpu_init();
  const bool bmi = __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
  if (bmi && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512vbmi2")) {
    found.push_back({"avx512", DetectAvx512});
  }
  if (bmi && __builtin_cpu_supports("avx2")) found.push_back({"avx2", DetectAvx2});
#endif
  found.push_back({"scalar", DetectScalar});
  return found;
}

// ---- Encoding.

// Writes bits to memory one after the other. Up to 8 bytes beyond the last one are overwritten.
class BitWriter {
 public:
  explicit BitWriter(uint8_t* out) : out_(out) {}

  void Put(uint64_t value, int width) {  // width <= 56, value < 2^width
    bits_ |= value << filled_;
    filled_ += static_cast<unsigned>(width);
    std::memcpy(out_, &bits_, 8);
    out_ += filled_ / 8;
    bits_ >>= filled_ / 8 * 8;
    filled_ %= 8;
  }
  void PutUnary(uint64_t q) {
    for (; q >= 48; q -= 48) Put(0, 48);
    Put(uint64_t{1} << q, static_cast<int>(q) + 1);
  }
  // Fills the last byte with zeros, and returns where the next one goes.
  uint8_t* Finish() { return out_ + (filled_ > 0); }

 private:
  uint8_t* out_;
  uint64_t bits_ = 0;
  unsigned filled_ = 0;  // Bits of bits_; below 8 between two calls.
};

constexpr size_t kWriteSlack = 16;  // Beyond a body, for writes of 8 bytes.

// Writes a SPARSE body and returns its size.
template <typename Word>
size_t PackSparse(int k, const DeltaChanges& changes, uint8_t* out) {
  BitWriter writer(out);
  Word escapes[DeltaChanges::kMost / 4];
  uint32_t escape_count = 0, halves = 0;
  uint32_t next = 0;  // The first element after the last change.
  for (uint32_t r = 0; r < changes.count; ++r) {
    const Word d = static_cast<Word>(changes.d[r]);
    const uint32_t code = SparseCode(d);
    const uint32_t low = (changes.offset[r] - next) & ((1u << k) - 1);
    next = changes.offset[r] + 1u;
    writer.Put(low | code << k, k + 2);
    escapes[escape_count] = d;
    escape_count += code >= kHalfWord;
    halves += code == kHalfWord;
  }
  next = 0;
  for (uint32_t r = 0; r < changes.count; ++r) {
    writer.PutUnary((changes.offset[r] - next) >> k);
    next = changes.offset[r] + 1u;
  }

  uint8_t* half = writer.Finish();
  uint8_t* whole = half + halves * sizeof(Word) / 2;
  for (uint32_t e = 0; e < escape_count; ++e) {
    if (SparseCode(escapes[e]) == kHalfWord) {
      std::memcpy(half, &escapes[e], sizeof(Word) / 2);
      half += sizeof(Word) / 2;
    } else {
      std::memcpy(whole, &escapes[e], sizeof(Word));
      whole += sizeof(Word);
    }
  }
  return static_cast<size_t>(whole - out);
}

// The unary bits of z >> k, and how many of them are escapes.
struct UnaryCost {
  uint64_t bits = 0, escapes = 0;
};
template <typename Word>
#if SLUICE_X86 && !defined(SLUICE_SANITIZED) && !defined(__clang__)  // As in fingerprint/op_cpu.cc.
__attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#endif
UnaryCost CostOfUnary(const Word* z, uint32_t n, int k) {
  uint32_t bits = 0, escapes = 0;
  for (uint32_t i = 0; i < n; ++i) {
    const Word q = static_cast<Word>(z[i] >> k);
    bits += q < kMostUnary ? q : kMostUnary;
    escapes += q >= kMostUnary;
  }
  return {uint64_t{bits} + n, escapes};
}

// Returns the size of the smallest DENSE body, and its k.
template <typename Word>
uint64_t FindDenseK(const Word* z, uint32_t n, int* best_k) {
  uint64_t best = ~uint64_t{0};
  for (int k = 0; k < kWordBits<Word>; ++k) {
    if ((uint64_t{n} * static_cast<uint64_t>(k + 1) + 7) / 8 >= best)
      break;  // Longer from here on.
    const UnaryCost cost = CostOfUnary(z, n, k);
    const uint64_t bytes =
        (uint64_t{n} * static_cast<uint64_t>(k) + cost.bits + 7) / 8 + cost.escapes * sizeof(Word);
    if (bytes < best) best = bytes, *best_k = k;
  }
  return best;
}

template <typename Word>
void PackDense(const Word* z, uint32_t n, int k, uint8_t* out) {
  BitWriter writer(out);
  for (uint32_t i = 0; i < n; ++i) writer.Put(z[i] & ((1u << k) - 1), k);
  for (uint32_t i = 0; i < n; ++i) writer.PutUnary(std::min<uint32_t>(z[i] >> k, kMostUnary));
  uint8_t* escape = writer.Finish();
  for (uint32_t i = 0; i < n; ++i) {
    const Word q = static_cast<Word>(z[i] >> k);
    if (q < kMostUnary) continue;
    std::memcpy(escape, &q, sizeof(Word));
    escape += sizeof(Word);
  }
}

template <typename Word>
DeltaTile EncodeWords(int tile_log2, uint32_t n, const DeltaChanges& changes,
                      std::vector<uint8_t>* bodies) {
  DeltaTile tile;
  const size_t begin = bodies->size(), raw = size_t{n} * sizeof(Word);
  const auto finish = [&](DeltaMode mode, int k, size_t bytes) {
    bodies->resize(begin + bytes);
    tile.end = static_cast<uint32_t>(begin + bytes);
    tile.k = static_cast<uint8_t>(k);
    tile.mode = mode;
    return tile;
  };
  if (changes.count == 0) return finish(DeltaMode::kSame, 0, 0);
  tile.changed_less_one = static_cast<uint16_t>(changes.count - 1);

  if (uint64_t{4} * changes.count <= n) {
    const int k = SparseK(changes.count, n);
    // Fields, at most n / 2^k + n_changed bits of unary numbers, and escapes.
    const size_t most =
        (changes.count * size_t(k + 3) + (n >> k)) / 8 + changes.count * sizeof(Word) + kWriteSlack;
    bodies->resize(begin + most);
    const size_t bytes = PackSparse<Word>(k, changes, bodies->data() + begin);
    if (bytes < raw) return finish(DeltaMode::kSparse, k, bytes);
    bodies->resize(begin);
  } else if (tile_log2 == kDeltaTileLog2) {
    Word z[1 << kDeltaTileLog2] = {};
    for (uint32_t r = 0; r < changes.count; ++r)
      z[changes.offset[r]] = ZigZag(static_cast<Word>(changes.d[r]));
    int k = 0;
    const uint64_t bytes = FindDenseK(z, n, &k);
    if (bytes < raw) {
      bodies->resize(begin + bytes + kWriteSlack);
      PackDense(z, n, k, bodies->data() + begin);
      return finish(DeltaMode::kDense, k, bytes);
    }
  }

  bodies->resize(begin + raw);
  for (uint32_t r = 0; r < changes.count; ++r)
    Store(bodies->data() + begin, changes.offset[r], static_cast<Word>(changes.d[r]));
  return finish(DeltaMode::kPlain, 0, raw);
}

// Sums T_l R_l (now - old) over changes. The changes of one block of the fingerprint are summed
// before they are multiplied by T_l.
class Fold {
 public:
  Fold(uint64_t tid, uint64_t* sum) : tid_(tid), sum_(sum) {}
  ~Fold() { AddBlock(); }

  template <typename Word>
  void Add(uint64_t index, Word now, Word old) {
    if (index / kFingerprintBlock != block_) {
      AddBlock();
      block_ = index / kFingerprintBlock;
      part_[0] = part_[1] = 0;
    }
    const uint64_t change = uint64_t{now} - uint64_t{old};
    part_[0] += keys_.r[0][index % kFingerprintBlock] * change;
    part_[1] += keys_.r[1][index % kFingerprintBlock] * change;
  }

 private:
  void AddBlock() {
    for (int lane = 0; lane < 2; ++lane) sum_[lane] += BlockKey(tid_, lane, block_) * part_[lane];
  }

  const ElementKeys& keys_ = ElementKeys::Get();
  const uint64_t tid_;
  uint64_t* const sum_;
  uint64_t block_ = 0;
  uint64_t part_[2] = {0, 0};
};

// ---- Decoding.

using Body = std::span<const uint8_t>;

// Returns at least 57 bits of the body from bit `at` on. Bits beyond its end are zero.
uint64_t LoadBits(Body body, uint64_t at) {
  const uint64_t byte = at / 8;
  uint64_t bits = 0;
  if (byte + 8 <= body.size()) {
    std::memcpy(&bits, body.data() + byte, 8);
  } else if (byte < body.size()) {
    std::memcpy(&bits, body.data() + byte, body.size() - byte);
  }
  return bits >> at % 8;
}

// Reads a unary number from bit *at on. Returns false if the body ends before it does.
bool ReadUnary(Body body, uint64_t* at, uint64_t* q) {
  *q = 0;
  while (*at < 8 * body.size()) {
    const uint64_t bits = LoadBits(body, *at);
    const auto zeros = static_cast<uint64_t>(std::countr_zero(bits));
    if (bits != 0) {
      *q += zeros;
      *at += zeros + 1;
      return true;
    }
    *q += 57;
    *at += 57;
  }
  return false;
}

// Moves *at to the next byte. Returns false if a bit before it is not zero.
bool SkipPadding(Body body, uint64_t* at) {
  const uint64_t end = (*at + 7) / 8 * 8;
  const bool zero = (LoadBits(body, *at) & ((1u << (end - *at)) - 1)) == 0;
  *at = end;
  return zero;
}

constexpr char kTooShort[] = "its body ends too early";
constexpr char kPadded[] = "its padding is not zero";
constexpr char kNoChange[] = "it has a difference of zero";
constexpr char kWrongSize[] = "its body has another length than its numbers";
constexpr char kWrongCount[] = "it has another number of changes than its entry says";

template <typename Word>
const char* UnpackSparse(uint32_t n, uint32_t count, int k, Body body, DeltaChanges* changes) {
  const auto width = static_cast<uint64_t>(k + 2);
  uint64_t at = count * width;
  if (k > 15) return "its k is above 15";
  if (count > n) return kWrongCount;
  if (at > 8 * body.size()) return kTooShort;

  // changes->d holds the codes until the escapes are read.
  uint64_t next = 0, halves = 0, wholes = 0;
  for (uint32_t r = 0; r < count; ++r) {
    const auto field = static_cast<uint32_t>(LoadBits(body, r * width)) & ((1u << width) - 1);
    uint64_t q;
    if (!ReadUnary(body, &at, &q)) return kTooShort;
    const uint64_t index = next + (q << k) + (field & ((1u << k) - 1));
    if (index >= n) return "a change lies beyond its end";
    next = index + 1;
    changes->offset[r] = static_cast<uint16_t>(index);
    changes->d[r] = field >> k;
    halves += changes->d[r] == kHalfWord;
    wholes += changes->d[r] == kWholeWord;
  }

  if (!SkipPadding(body, &at)) return kPadded;
  if (sizeof(Word) == 1 && halves > 0) return "it has differences of half an element of 8 bits";
  if (body.size() - at / 8 != halves * (sizeof(Word) / 2) + wholes * sizeof(Word))
    return kWrongSize;
  const uint8_t* half = body.data() + at / 8;
  const uint8_t* whole = half + halves * (sizeof(Word) / 2);
  for (uint32_t r = 0; r < count; ++r) {
    const uint32_t code = changes->d[r];
    auto d = static_cast<Word>(1 - 2 * static_cast<int>(code));  // +1 or -1, without a branch.
    if (code == kHalfWord) {
      uint32_t bits = 0;
      std::memcpy(&bits, half, sizeof(Word) / 2);
      half += sizeof(Word) / 2;
      d = ExtendHalfWord<Word>(bits);
    } else if (code == kWholeWord) {
      std::memcpy(&d, whole, sizeof(Word));
      whole += sizeof(Word);
    }
    if (d == 0) return kNoChange;
    changes->d[r] = d;
  }
  changes->count = count;
  return nullptr;
}

// Adds d of element `offset` if it is not zero. The caller has room for n changes.
void AddIfChanged(uint32_t offset, uint32_t d, DeltaChanges* changes) {
  changes->offset[changes->count] = static_cast<uint16_t>(offset);
  changes->d[changes->count] = d;
  changes->count += d != 0;
}

template <typename Word>
const char* UnpackDense(uint32_t n, int k, Body body, DeltaChanges* changes) {
  if (k >= kWordBits<Word>) return "its k is not below the bits of an element";
  uint64_t at = uint64_t{n} * static_cast<uint64_t>(k), escapes = 0;
  if (at > 8 * body.size()) return kTooShort;
  const uint64_t numbers = at;
  for (uint32_t i = 0; i < n; ++i) {
    uint64_t q;
    if (!ReadUnary(body, &at, &q)) return kTooShort;
    if (q > kMostUnary) return "a unary number is above 24";
    escapes += q == kMostUnary;
  }
  if (!SkipPadding(body, &at)) return kPadded;
  if (body.size() - at / 8 != escapes * sizeof(Word)) return kWrongSize;

  const uint8_t* escape = body.data() + at / 8;
  at = numbers;
  for (uint32_t i = 0; i < n; ++i) {
    uint64_t q;
    ReadUnary(body, &at, &q);
    if (q == kMostUnary) {
      Word whole;
      std::memcpy(&whole, escape, sizeof(Word));
      escape += sizeof(Word);
      q = whole;
    }
    if (q >> (kWordBits<Word> - k) != 0) return "a number has more bits than an element";
    const uint64_t low = LoadBits(body, uint64_t{i} * static_cast<uint64_t>(k));
    const auto z = static_cast<Word>(q << k | (low & ((uint64_t{1} << k) - 1)));
    AddIfChanged(i, UnZigZag(z), changes);
  }
  return nullptr;
}

template <typename Word>
const char* DecodeWords(int tile_log2, uint32_t n, const DeltaTile& tile, Body body,
                        DeltaChanges* changes) {
  changes->count = 0;
  const uint32_t count = tile.changed_less_one + 1u;
  switch (tile.mode) {
    case DeltaMode::kSame:
      return tile.changed_less_one == 0 && tile.k == 0 && body.empty()
                 ? nullptr
                 : "it is SAME, but has changes or a body";
    case DeltaMode::kSparse: return UnpackSparse<Word>(n, count, tile.k, body, changes);
    case DeltaMode::kDense: {
      if (tile_log2 != kDeltaTileLog2) return "it is DENSE, which only tiles of 8192 can be";
      if (const char* const wrong = UnpackDense<Word>(n, tile.k, body, changes)) return wrong;
      break;
    }
    case DeltaMode::kPlain:
      if (tile.k != 0 || body.size() != size_t{n} * sizeof(Word)) return kWrongSize;
      for (uint32_t i = 0; i < n; ++i) AddIfChanged(i, Load<Word>(body.data(), i), changes);
      break;
    default: return "there is no such mode";
  }
  return changes->count == count ? nullptr : kWrongCount;
}

}  // namespace

std::span<const DeltaDetector> DeltaDetectors() {
  static const std::vector<DeltaDetector> detectors = FindDetectors();
  return detectors;
}

DeltaTile EncodeDeltaTile(int width, int tile_log2, uint32_t n, const DeltaChanges& changes,
                          std::vector<uint8_t>* bodies) {
  return WithWord(
      width, [&]<typename Word>(Word) { return EncodeWords<Word>(tile_log2, n, changes, bodies); });
}

void EncodeDelta(const DeltaSource& source, int width, int tile_log2, uint64_t tile_begin,
                 uint64_t tile_end, std::vector<DeltaTile>* tiles, std::vector<uint8_t>* bodies,
                 uint64_t sum[2]) {
  const auto detect = DeltaDetectors().front().detect;
  DeltaChanges changes;
  WithWord(width, [&]<typename Word>(Word) {
    Fold fold(source.shard.tid, sum);
    for (uint64_t t = tile_begin; t < tile_end; ++t) {
      const uint64_t start = t << tile_log2;
      const auto n =
          static_cast<uint32_t>(std::min(source.shard.count - start, uint64_t{1} << tile_log2));
      const char* const now = static_cast<const char*>(source.now) + start * sizeof(Word);
      char* const shadow = static_cast<char*>(source.shadow) + start * sizeof(Word);

      detect(width, now, shadow, n, &changes);
      for (uint32_t r = 0; r < changes.count; ++r) {
        const uint32_t i = changes.offset[r];
        const Word after = Load<Word>(now, i);
        fold.Add(IndexInTensor(source.shard, start + i), after, Load<Word>(shadow, i));
        Store(shadow, i, after);
      }
      tiles->push_back(EncodeWords<Word>(tile_log2, n, changes, bodies));
    }
  });
}

const char* DecodeDeltaTile(int width, int tile_log2, uint32_t n, const DeltaTile& tile,
                            std::span<const uint8_t> body, DeltaChanges* changes) {
  return WithWord(width, [&]<typename Word>(Word) {
    return DecodeWords<Word>(tile_log2, n, tile, body, changes);
  });
}

void ApplyDelta(const DeltaShard& from, uint64_t start, const DeltaChanges& changes, int sign,
                const DeltaShard& to, int width, void* weights, uint64_t sum[2]) {
  WithWord(width, [&]<typename Word>(Word) {
    // The elements of a group of changes are on their way from memory together.
    constexpr uint32_t kGroup = 64;
    uint64_t indexes[kGroup], elements[kGroup];
    Fold fold(from.tid, sum);
    for (uint32_t first = 0; first < changes.count; first += kGroup) {
      const uint32_t group = std::min(kGroup, changes.count - first);
      for (uint32_t r = 0; r < group; ++r) {
        indexes[r] = IndexInTensor(from, start + changes.offset[first + r]);
        elements[r] = ElementOfShard(to, indexes[r]);
        if (elements[r] == kNotHeld) continue;
        __builtin_prefetch(static_cast<const char*>(weights) + elements[r] * sizeof(Word), 1);
      }
      for (uint32_t r = 0; r < group; ++r) {
        if (elements[r] == kNotHeld) continue;
        const Word before = Load<Word>(weights, elements[r]);
        const auto d = static_cast<Word>(changes.d[first + r]);
        const Word after =
            FromOrd(static_cast<Word>(sign > 0 ? ToOrd(before) + d : ToOrd(before) - d));
        Store(weights, elements[r], after);
        fold.Add(indexes[r], after, before);
      }
    }
  });
}

}  // namespace sluice::kernels
