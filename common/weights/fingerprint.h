#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/checkpoint/tensor_set.h"

namespace sluice {

// Fingerprint of an exact set of weight bits (formula in kernels/fingerprint/op.h). Fingerprints of
// parts are added to give that of the whole. If trainer and engine have the same fingerprint, they
// hold the same weights.
struct Fingerprint {
  uint64_t f[2] = {0, 0};

  bool operator==(const Fingerprint&) const = default;
  Fingerprint& operator+=(const Fingerprint& other);
  std::string bytes() const;  // 16 bytes: f[0], f[1], little-endian.
  std::string hex() const;    // 32 hex digits: f[0], then f[1].
  // INVALID_ARGUMENT: `bytes` does not have 16 bytes.
  static absl::StatusOr<Fingerprint> FromBytes(absl::string_view bytes);
};

// Key of a tensor in the fingerprint, computed from its Hugging Face name.
uint64_t TensorKey(absl::string_view name);

// Returns what elements [first, first + n) of a tensor (flat indexes) add to its fingerprint.
// `dtype` is the type of `elements`: the tensor's own type, or fp32 with each value exactly
// representable in the tensor's type. If a value is not (because memory was changed), the result is
// made different from the right one, even where rounding would hide the change.
Fingerprint FingerprintOfElements(const TensorSpec& spec, DType dtype, const void* elements,
                                  int64_t first, int64_t n);
// Fingerprint of tensor number `tensor` of a set, and of the whole set.
Fingerprint FingerprintOfTensor(const TensorSet& weights, size_t tensor);
Fingerprint FingerprintOf(const TensorSet& weights);
// One fingerprint per tensor, in the order of the set; their Sum() is FingerprintOf().
std::vector<Fingerprint> TensorFingerprints(const TensorSet& weights);
Fingerprint Sum(absl::Span<const Fingerprint> parts);

}  // namespace sluice
