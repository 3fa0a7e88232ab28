#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace sluice {

// CRC-32C (Castagnoli, reflected, as in iSCSI and ext4) of `bytes`. To compute the CRC of data that
// comes in pieces, pass the CRC of the preceding bytes as `crc`. Uses the CPU's CRC instruction if
// it has one.
uint32_t Crc32c(absl::string_view bytes, uint32_t crc = 0);
// Computes the same CRC and copies `bytes` to `to` in one pass. The CRC is always that of the
// copied bytes, even if another process changes `bytes` meanwhile.
uint32_t Crc32cCopy(absl::string_view bytes, char* to, uint32_t crc = 0);
// The CRC of the bytes a followed by the bytes b, from the CRCs of both and the length of b in
// bytes.
uint32_t Crc32cConcat(uint32_t crc_a, uint32_t crc_b, uint64_t length_b);

// The SHA-256 of `bytes`, as 32 raw bytes.
std::string Sha256(absl::string_view bytes);

// Computes the SHA-256 of bytes that come in pieces. Not thread-safe.
class Sha256Stream {
 public:
  Sha256Stream();
  ~Sha256Stream();
  Sha256Stream(const Sha256Stream&) = delete;
  Sha256Stream& operator=(const Sha256Stream&) = delete;
  void Update(absl::string_view bytes);
  std::string Finish();  // 32 raw bytes. May be called only once.

 private:
  void* const context_;
};

}  // namespace sluice
