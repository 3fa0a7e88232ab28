#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace sluice {

// Element types, as safetensors knows them. Weights are F32, F16 or BF16; the others occur in side
// files.
enum class DType : uint8_t {
  kF32,
  kF16,
  kBF16,
  kF64,
  kF8E4M3,
  kF8E5M2,
  kI64,
  kI32,
  kI16,
  kI8,
  kU64,
  kU32,
  kU16,
  kU8,
  kBool
};

size_t DTypeBytes(DType dtype);
// Whether weights may have this type: F32, F16 or BF16.
constexpr bool IsWeightType(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
}
absl::string_view DTypeName(DType dtype);  // As safetensors spells it: F32, BF16, F8_E4M3, ..
// INVALID_ARGUMENT: no such type.
absl::StatusOr<DType> DTypeFromName(absl::string_view name);
// As transformers and job files spell the types of weights: float32, float16, bfloat16.
// INVALID_ARGUMENT: no such type.
absl::StatusOr<DType> DTypeFromTorchName(absl::string_view name);

struct TensorSpec {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;  // Row-major; empty for a scalar.

  bool operator==(const TensorSpec&) const = default;
};

// Elements and bytes of a tensor. INVALID_ARGUMENT: a negative dimension, or a product beyond 2^62.
absl::StatusOr<int64_t> NumElements(absl::Span<const int64_t> shape);
absl::StatusOr<int64_t> NumBytes(const TensorSpec& spec);

// "F32 [64, 192]", for messages.
std::string ShapeText(DType dtype, absl::Span<const int64_t> shape);

// Named tensors in one owned buffer, sorted by the bytes of their names, each 64-byte aligned. The
// order, the addresses and the layout stay as they are for the set's life; only the elements
// change.
//
// Model weights in memory are one of these: Hugging Face names, a tied tensor once. A tensor's
// index is its number in the layout id. Copies are deep. No locks: writers and readers agree among
// themselves.
class TensorSet {
 public:
  TensorSet() = default;  // Empty.

  // A set of zeros. INVALID_ARGUMENT: a name twice, empty, or with a space or control character; a
  // shape out of range. RESOURCE_EXHAUSTED: no memory for it.
  static absl::StatusOr<TensorSet> Create(std::vector<TensorSpec> specs);

  TensorSet(const TensorSet& other);
  TensorSet& operator=(const TensorSet& other);
  TensorSet(TensorSet&&) = default;
  TensorSet& operator=(TensorSet&&) = default;

  size_t size() const { return specs_.size(); }
  const TensorSpec& spec(size_t i) const { return specs_[i]; }
  absl::Span<const TensorSpec> specs() const { return specs_; }

  std::byte* data(size_t i) { return buffer_.get() + offsets_[i]; }
  const std::byte* data(size_t i) const { return buffer_.get() + offsets_[i]; }
  int64_t bytes(size_t i) const { return bytes_[i]; }
  int64_t elements(size_t i) const {
    return bytes_[i] / static_cast<int64_t>(DTypeBytes(specs_[i].dtype));
  }
  // Of tensor i in buffer().
  size_t offset(size_t i) const { return offsets_[i]; }

  // The elements as T, whose size must be the element's.
  template <typename T>
  absl::Span<T> as(size_t i) {
    return {reinterpret_cast<T*>(data(i)), static_cast<size_t>(bytes(i)) / sizeof(T)};
  }
  template <typename T>
  absl::Span<const T> as(size_t i) const {
    return {reinterpret_cast<const T*>(data(i)), static_cast<size_t>(bytes(i)) / sizeof(T)};
  }

  // The index of `name`, or -1.
  int64_t Find(absl::string_view name) const;

  // All tensors with the zero padding between them. Two sets of one layout are equal iff their
  // buffers are.
  absl::Span<std::byte> buffer() { return {buffer_.get(), buffer_bytes_}; }
  absl::Span<const std::byte> buffer() const { return {buffer_.get(), buffer_bytes_}; }

  // SHA-256 (32 bytes) of one line `name dtype d0xd1x..\n` per tensor, in order; a scalar's line
  // ends with the space.
  const std::string& layout_id() const { return layout_id_; }

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };

  std::vector<TensorSpec> specs_;
  std::vector<size_t> offsets_;
  std::vector<int64_t> bytes_;
  size_t buffer_bytes_ = 0;
  std::unique_ptr<std::byte[], Free> buffer_;
  std::string layout_id_;
};

// Copies every tensor of `from` to the one of the same name in `to`, converting between F32, F16
// and BF16 (narrowing rounds to nearest, ties to even; NaN stays NaN). INVALID_ARGUMENT: names or
// shapes differ, or another dtype needs converting.
absl::Status ConvertTensors(const TensorSet& from, TensorSet* to);

// n elements, between F32, F16 and BF16.
absl::Status ConvertElements(DType from_dtype, const void* from, DType to_dtype, void* to,
                             int64_t n);

// The first of n elements (F32, F16 or BF16) that is infinite or no number; -1: all are finite.
int64_t FirstNonFinite(DType dtype, const void* data, int64_t n);

}  // namespace sluice
