#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/checkpoint/tensor_set.h"

namespace sluice {

// One exact set of weight bits, as a sum (kernels/fingerprint/op.h has the formula): equal on
// trainer and engine, or the weights differ.
struct Fingerprint {
  uint64_t f[2] = {0, 0};

  bool operator==(const Fingerprint&) const = default;
  Fingerprint& operator+=(const Fingerprint& other);
  std::string bytes() const;  // 16 bytes: F_0, F_1, little-endian.
  std::string hex() const;    // For people: 16 + 16 hex digits.
  // INVALID_ARGUMENT: not 16 bytes.
  static absl::StatusOr<Fingerprint> FromBytes(absl::string_view bytes);
};

// The key of a tensor, from its Hugging Face name.
uint64_t TensorKey(absl::string_view name);

// What `n` elements of a tensor add to its fingerprint, from flat index `first` on. They are given
// as `dtype`: the tensor's own, or fp32, in which case each is one of the tensor's type, widened.
// Where one is not, for it changed in memory since, the sum is none of the tensor's, even if
// rounding would hide the change.
Fingerprint FingerprintOfElements(const TensorSpec& spec, DType dtype, const void* elements,
                                  int64_t first, int64_t n);
// Of one tensor of a set, and of all; index as in the set.
Fingerprint FingerprintOfTensor(const TensorSet& weights, size_t tensor);
Fingerprint FingerprintOf(const TensorSet& weights);
// One per tensor, in order; their Sum() is FingerprintOf().
std::vector<Fingerprint> TensorFingerprints(const TensorSet& weights);
Fingerprint Sum(absl::Span<const Fingerprint> parts);

}  // namespace sluice
