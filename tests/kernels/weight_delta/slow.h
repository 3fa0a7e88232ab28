#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/weight_delta/op.h"

// The codec of kernels/weight_delta/op.h bit by bit, as the text there reads: slow and obvious.
// Elements are uint64_t whatever W is. Nothing here is shared with the code under test.
namespace sluice::kernels::slow {

using Elements = std::vector<uint64_t>;

// Bits of a body. Each is written and read alone.
struct Bits {
  std::vector<bool> bits;

  void Field(uint64_t value, int width) {
    for (int i = 0; i < width; ++i) bits.push_back((value >> i & 1) != 0);
  }
  void Unary(uint64_t q) {
    for (uint64_t i = 0; i < q; ++i) bits.push_back(false);
    bits.push_back(true);
  }
  void PadToByte() {
    while (bits.size() % 8 != 0) bits.push_back(false);
  }
  std::vector<uint8_t> Bytes() const {
    std::vector<uint8_t> bytes((bits.size() + 7) / 8);
    for (size_t i = 0; i < bits.size(); ++i) {
      if (bits[i]) bytes[i / 8] = static_cast<uint8_t>(bytes[i / 8] | 1 << i % 8);
    }
    return bytes;
  }
};

inline uint64_t Modulus(int w) { return uint64_t{1} << w; }
inline uint64_t Ord(uint64_t x, int w) {
  const uint64_t half = Modulus(w) / 2;
  return x >= half ? Modulus(w) - 1 - x : x + half;
}
// ord(now) - ord(old), modulo 2^w, and as a signed number.
inline uint64_t Difference(uint64_t now, uint64_t old, int w) {
  return (Ord(now, w) + Modulus(w) - Ord(old, w)) % Modulus(w);
}
inline int64_t Signed(uint64_t d, int w) {
  return static_cast<int64_t>(d) -
         (d >= Modulus(w) / 2 ? static_cast<int64_t>(Modulus(w)) : int64_t{0});
}

struct Encoded {
  DeltaTile tile;
  std::vector<uint8_t> body;
};

inline std::vector<uint8_t> SparseBody(const Elements& d, int w, int k) {
  Bits bits;
  std::vector<uint64_t> gaps, codes;
  uint64_t gap = 0;
  for (const uint64_t x : d) {
    if (x == 0) {
      ++gap;
      continue;
    }
    const int64_t value = Signed(x, w), half = int64_t{1} << (w / 2 - 1);
    gaps.push_back(gap);
    codes.push_back(value == 1                                ? 0
                    : value == -1                             ? 1
                    : w > 8 && value >= -half && value < half ? 2
                                                              : 3);
    gap = 0;
  }
  for (size_t r = 0; r < gaps.size(); ++r) {
    bits.Field(gaps[r], k);
    bits.Field(codes[r], 2);
  }
  for (const uint64_t g : gaps) bits.Unary(g >> k);
  bits.PadToByte();
  for (const uint64_t code : {2, 3}) {
    size_t r = 0;
    for (const uint64_t x : d) {
      if (x != 0 && codes[r++] == code) bits.Field(x, code == 2 ? w / 2 : w);
    }
  }
  return bits.Bytes();
}

inline std::vector<uint8_t> DenseBody(const Elements& d, int w, int k) {
  Bits bits;
  Elements z;
  for (const uint64_t x : d) {
    const int64_t value = Signed(x, w);
    z.push_back(static_cast<uint64_t>(value < 0 ? -2 * value - 1 : 2 * value));
  }
  for (const uint64_t x : z) bits.Field(x, k);
  for (const uint64_t x : z) bits.Unary(std::min<uint64_t>(x >> k, 24));
  bits.PadToByte();
  for (const uint64_t x : z) {
    if (x >> k >= 24) bits.Field(x >> k, w);
  }
  return bits.Bytes();
}

inline std::vector<uint8_t> PlainBody(const Elements& d, int w) {
  Bits bits;
  for (const uint64_t x : d) bits.Field(x, w);
  return bits.Bytes();
}

inline Encoded Encode(const Elements& d, int w, int tile_log2) {
  const uint64_t n = d.size();
  const auto changed =
      static_cast<uint64_t>(std::count_if(d.begin(), d.end(), [](uint64_t x) { return x != 0; }));
  Encoded out;
  if (changed == 0) return out;
  out.tile.changed_less_one = static_cast<uint16_t>(changed - 1);
  out.tile.mode = DeltaMode::kPlain;
  if (4 * changed <= n) {
    out.tile.mode = DeltaMode::kSparse;
    for (int k = 1; k <= 15; ++k) {
      if (133 * changed * (1u << k) <= 128 * n) out.tile.k = static_cast<uint8_t>(k);
    }
    out.body = SparseBody(d, w, out.tile.k);
  } else if (tile_log2 == 13) {
    out.tile.mode = DeltaMode::kDense;
    for (int k = 0; k < w; ++k) {
      const std::vector<uint8_t> body = DenseBody(d, w, k);
      if (k == 0 || body.size() < out.body.size()) {
        out.body = body;
        out.tile.k = static_cast<uint8_t>(k);
      }
    }
  }
  const uint64_t raw = n * static_cast<uint64_t>(w) / 8;
  if (out.tile.mode == DeltaMode::kPlain || out.body.size() >= raw) {
    out.tile.mode = DeltaMode::kPlain;
    out.tile.k = 0;
    out.body = PlainBody(d, w);
  }
  out.tile.end = static_cast<uint32_t>(out.body.size());
  return out;
}

}  // namespace sluice::kernels::slow
