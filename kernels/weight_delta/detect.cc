#include <algorithm>
#include <bit>

#include "kernels/weight_delta/bits.h"
#include "kernels/weight_delta/op.h"
#include "kernels/weight_delta/words.h"
#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define SLUICE_X86 1
#endif

// The vector forms first list the vectors that differ, without a branch on each, and then look into
// those. Where one of four differs, mispredicted branches would cost as much as all the rest.
namespace sluice::kernels {
namespace {

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

}  // namespace

std::span<const DeltaDetector> DeltaDetectors() {
  static const std::vector<DeltaDetector> detectors = FindDetectors();
  return detectors;
}

}  // namespace sluice::kernels
