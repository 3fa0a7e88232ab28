#include "common/base/digest.h"

#include <openssl/evp.h>

#include <array>
#include <cstring>

#include "common/base/status.h"

namespace sluice {
namespace {
constexpr uint32_t kPolynomial = 0x82F63B78;  // Reflected Castagnoli polynomial.

// Tables for the slicing-by-8 method: t[k][b] is the CRC of byte b followed by k zero bytes.
struct Tables {
  std::array<std::array<uint32_t, 256>, 8> t;
  Tables() {
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t crc = i;
      for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? kPolynomial : 0);
      t[0][i] = crc;
    }
    for (int k = 1; k < 8; ++k) {
      for (uint32_t i = 0; i < 256; ++i) t[k][i] = (t[k - 1][i] >> 8) ^ t[0][t[k - 1][i] & 0xff];
    }
  }
};

uint32_t CrcPortable(const uint8_t* p, size_t n, uint32_t crc) {
  static const Tables tables;
  const auto& t = tables.t;
  // Take eight bytes at a time. The CRC so far is added to the first four.
  for (; n >= 8; p += 8, n -= 8) {
    uint32_t low, high;
    std::memcpy(&low, p, 4);
    std::memcpy(&high, p + 4, 4);
    low ^= crc;
    crc = t[7][low & 0xff] ^ t[6][(low >> 8) & 0xff] ^ t[5][(low >> 16) & 0xff] ^ t[4][low >> 24] ^
          t[3][high & 0xff] ^ t[2][(high >> 8) & 0xff] ^ t[1][(high >> 16) & 0xff] ^
          t[0][high >> 24];
  }
  for (; n > 0; ++p, --n) crc = (crc >> 8) ^ t[0][(crc ^ *p) & 0xff];
  return crc;
}

// Multiplies two bit-reflected polynomials modulo the CRC's polynomial.
constexpr uint32_t Multiply(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (uint32_t bit = 0x80000000u; bit != 0; bit >>= 1) {
    if (a & bit) product ^= b;
    b = (b >> 1) ^ ((b & 1) ? kPolynomial : 0);
  }
  return product;
}

// x^(8 length). Appending `length` zero bytes multiplies a CRC by this polynomial.
constexpr uint32_t ShiftPolynomial(uint64_t length) {
  uint32_t shift = 0x80000000u;                         // x^0
  uint32_t power = Multiply(0x00800000u, 0x80000000u);  // x^8: one byte
  // Square and multiply: `power` is x^(8 2^i) in round i.
  for (; length != 0; length >>= 1) {
    if (length & 1) shift = Multiply(shift, power);
    power = Multiply(power, power);
  }
  return shift;
}

#if defined(__x86_64__)
// Multiplies a CRC by ShiftPolynomial(length), with precomputed tables.
class Shift {
 public:
  explicit constexpr Shift(uint64_t length) : t_{} {
    const uint32_t power = ShiftPolynomial(length);
    for (uint32_t k = 0; k < 4; ++k) {
      for (uint32_t b = 0; b < 256; ++b) t_[k][b] = Multiply(b << (8 * k), power);
    }
  }
  uint32_t operator()(uint32_t crc) const {
    return t_[0][crc & 0xff] ^ t_[1][crc >> 8 & 0xff] ^ t_[2][crc >> 16 & 0xff] ^ t_[3][crc >> 24];
  }

 private:
  uint32_t t_[4][256];
};

// Computes the CRC with the CPU's CRC instruction. With kCopy, each word is also stored at `to`,
// exactly as it was read.
//
// The CPU can start one CRC instruction per cycle, but each result arrives three cycles later.
// Three independent lanes keep the unit busy; their CRCs are joined as in Crc32cConcat(). Lanes are
// short, so that memory is still read almost in order.
//
// ThreadSanitizer is switched off here. It would check every word, which takes minutes per
// megabyte, and it would report memory that comes from libraries built without it. Races in the
// callers that copy or read the bytes are still found.
template <bool kCopy>
__attribute__((target("sse4.2"), no_sanitize("thread"))) uint32_t
CrcHardware(const uint8_t* p, size_t n, uint32_t crc, char* to) {
  constexpr size_t kLane = 128;
  static constexpr Shift shift(kLane);

  uint64_t wide = crc;
  const auto add_word = [&](size_t at, uint64_t* sum) __attribute__((
                            target("sse4.2"), always_inline, no_sanitize("thread"))) {
    uint64_t word;
    std::memcpy(&word, p + at, 8);
    if constexpr (kCopy) std::memcpy(to + at, &word, 8);
    *sum = __builtin_ia32_crc32di(*sum, word);
  };
  const auto advance = [&](size_t bytes) __attribute__((no_sanitize("thread"))) {
    p += bytes;
    n -= bytes;
    if constexpr (kCopy) to += bytes;
  };

  // The CRC so far goes into the first lane; the other two start from 0.
  while (n >= 3 * kLane) {
    uint64_t second = 0, third = 0;
    for (size_t i = 0; i < kLane; i += 8) {
      add_word(i, &wide);
      add_word(kLane + i, &second);
      add_word(2 * kLane + i, &third);
    }
    wide = shift(shift(static_cast<uint32_t>(wide)) ^ static_cast<uint32_t>(second)) ^
           static_cast<uint32_t>(third);
    advance(3 * kLane);
  }

  // Add what is left, first as whole words, then as bytes.
  for (; n >= 8; advance(8)) add_word(0, &wide);
  crc = static_cast<uint32_t>(wide);
  for (; n > 0; advance(1)) {
    if constexpr (kCopy) *to = static_cast<char>(*p);
    crc = __builtin_ia32_crc32qi(crc, *p);
  }
  return crc;
}
#endif

bool HasCrcInstruction() {
#if defined(__x86_64__)
  static const bool has = __builtin_cpu_supports("sse4.2");
  return has;
#else
  return false;
#endif
}

}  // namespace

uint32_t Crc32c(absl::string_view bytes, uint32_t crc) {
  const auto* p = reinterpret_cast<const uint8_t*>(bytes.data());
#if defined(__x86_64__)
  if (HasCrcInstruction()) return ~CrcHardware<false>(p, bytes.size(), ~crc, nullptr);
#endif
  return ~CrcPortable(p, bytes.size(), ~crc);
}

uint32_t Crc32cCopy(absl::string_view bytes, char* to, uint32_t crc) {
#if defined(__x86_64__)
  if (HasCrcInstruction())
    return ~CrcHardware<true>(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size(), ~crc,
                              to);
#endif
  if (bytes.empty()) return crc;
  std::memcpy(to, bytes.data(), bytes.size());
  return Crc32c({to, bytes.size()}, crc);
}

uint32_t Crc32cConcat(uint32_t crc_a, uint32_t crc_b, uint64_t length_b) {
  return Multiply(crc_a, ShiftPolynomial(length_b)) ^ crc_b;
}

std::string Sha256(absl::string_view bytes) {
  Sha256Stream stream;
  stream.Update(bytes);
  return stream.Finish();
}

Sha256Stream::Sha256Stream() : context_(EVP_MD_CTX_new()) {
  SLUICE_CHECK(EVP_DigestInit_ex(static_cast<EVP_MD_CTX*>(context_), EVP_sha256(), nullptr) == 1);
}
Sha256Stream::~Sha256Stream() { EVP_MD_CTX_free(static_cast<EVP_MD_CTX*>(context_)); }
void Sha256Stream::Update(absl::string_view bytes) {
  SLUICE_CHECK(EVP_DigestUpdate(static_cast<EVP_MD_CTX*>(context_), bytes.data(), bytes.size()) ==
               1);
}
std::string Sha256Stream::Finish() {
  std::string digest(32, '\0');
  SLUICE_CHECK(EVP_DigestFinal_ex(static_cast<EVP_MD_CTX*>(context_),
                                  reinterpret_cast<unsigned char*>(digest.data()), nullptr) == 1);
  return digest;
}

}  // namespace sluice
