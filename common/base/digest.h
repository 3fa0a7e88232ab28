#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace sluice {

// CRC-32C (Castagnoli, reflected, as in iSCSI and ext4) of `bytes`, going on from `crc`, the CRC of
// what came before. Uses the CPU's instruction where it has one.
uint32_t Crc32c(absl::string_view bytes, uint32_t crc = 0);
// The same, copying `bytes` to `to` in the same pass. The sum is of what was copied, also if
// another process changes `bytes` meanwhile.
uint32_t Crc32cCopy(absl::string_view bytes, char* to, uint32_t crc = 0);
// CRC of a followed by b, from the CRCs of both and b's length.
uint32_t Crc32cConcat(uint32_t crc_a, uint32_t crc_b, uint64_t length_b);

// SHA-256, 32 bytes.
std::string Sha256(absl::string_view bytes);

// SHA-256 of bytes that come in pieces.
class Sha256Stream {
 public:
  Sha256Stream();
  ~Sha256Stream();
  Sha256Stream(const Sha256Stream&) = delete;
  Sha256Stream& operator=(const Sha256Stream&) = delete;
  void Update(absl::string_view bytes);
  std::string Finish();  // Once.

 private:
  void* const context_;
};

}  // namespace sluice
