#include "common/weights/fingerprint.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/splitmix.h"
#include "common/base/status.h"
#include "kernels/fingerprint/op.h"

namespace sluice {

Fingerprint& Fingerprint::operator+=(const Fingerprint& other) {
  f[0] += other.f[0];
  f[1] += other.f[1];
  return *this;
}

std::string Fingerprint::bytes() const {
  std::string out(16, '\0');
  std::memcpy(out.data(), f, 16);  // Hosts are little-endian, like all that LibTorch supports.
  return out;
}

std::string Fingerprint::hex() const { return absl::StrFormat("%016x%016x", f[0], f[1]); }

absl::StatusOr<Fingerprint> Fingerprint::FromBytes(absl::string_view bytes) {
  if (bytes.size() != 16)
    return absl::InvalidArgumentError(
        absl::StrCat("a fingerprint has 16 bytes, not ", bytes.size()));
  Fingerprint out;
  std::memcpy(out.f, bytes.data(), 16);
  return out;
}

uint64_t TensorKey(absl::string_view name) {
  uint64_t hash = 0xCBF29CE484222325;  // FNV-1a, 64 bit.
  for (const char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001B3;
  return Mix64(hash);
}

Fingerprint FingerprintOfElements(const TensorSpec& spec, DType dtype, const void* elements,
                                  int64_t first, int64_t n) {
  std::vector<std::byte> narrow, wide;
  Fingerprint sum;

  // The fingerprint is over the tensor's own type: convert, and convert back to find changed
  // values.
  if (dtype != spec.dtype) {
    narrow.resize(n * DTypeBytes(spec.dtype)), wide.resize(n * DTypeBytes(dtype));
    SLUICE_CHECK(ConvertElements(dtype, elements, spec.dtype, narrow.data(), n).ok());
    SLUICE_CHECK(ConvertElements(spec.dtype, narrow.data(), dtype, wide.data(), n).ok());
    if (std::memcmp(wide.data(), elements, wide.size()) != 0) sum.f[0] = 1;
    elements = narrow.data();
  }
  kernels::AddFingerprint(TensorKey(spec.name), elements, static_cast<int>(DTypeBytes(spec.dtype)),
                          static_cast<uint64_t>(first), static_cast<uint64_t>(n), sum.f);
  return sum;
}

Fingerprint FingerprintOfTensor(const TensorSet& weights, size_t tensor) {
  return FingerprintOfElements(weights.spec(tensor), weights.spec(tensor).dtype,
                               weights.data(tensor), 0, weights.elements(tensor));
}

Fingerprint FingerprintOf(const TensorSet& weights) { return Sum(TensorFingerprints(weights)); }

std::vector<Fingerprint> TensorFingerprints(const TensorSet& weights) {
  std::vector<Fingerprint> out;
  for (size_t i = 0; i < weights.size(); ++i) out.push_back(FingerprintOfTensor(weights, i));
  return out;
}

Fingerprint Sum(absl::Span<const Fingerprint> parts) {
  Fingerprint sum;
  for (const Fingerprint& part : parts) sum += part;
  return sum;
}

}  // namespace sluice
