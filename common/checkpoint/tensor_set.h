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

// Element types, as in safetensors. Weights are F32, F16 or BF16; the other types occur in other
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
absl::string_view DTypeName(DType dtype);  // The safetensors spelling: F32, BF16, F8_E4M3, ..
// INVALID_ARGUMENT: there is no such type.
absl::StatusOr<DType> DTypeFromName(absl::string_view name);
// Parses the spelling of transformers and job files: float32, float16, bfloat16. INVALID_ARGUMENT:
// any other name.
absl::StatusOr<DType> DTypeFromTorchName(absl::string_view name);

struct TensorSpec {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;  // Row-major; empty for a scalar.

  bool operator==(const TensorSpec&) const = default;
};

// Return the number of elements and of bytes. INVALID_ARGUMENT: a dimension is negative, or a
// product is above 2^62.
absl::StatusOr<int64_t> NumElements(absl::Span<const int64_t> shape);
absl::StatusOr<int64_t> NumBytes(const TensorSpec& spec);

// Identifies names, types and shapes: the SHA-256 (32 bytes) of one line `name dtype d0xd1x..\n`
// per tensor, in the order given. The line of a scalar ends with the space after dtype.
std::string LayoutId(absl::Span<const TensorSpec> specs);

// For example "F32 [64, 192]", for messages.
std::string ShapeText(DType dtype, absl::Span<const int64_t> shape);

// Named tensors in one owned buffer, sorted by the bytes of their names, each aligned to 64 bytes.
// The index of a tensor is its place in this order. Names, types, shapes and addresses never
// change; only the elements do. Copies are deep.
//
// A model's weights in memory are a TensorSet with Hugging Face names; a tied tensor occurs once.
//
// Not thread-safe: callers that write while others read must synchronise.
class TensorSet {
 public:
  TensorSet() = default;  // Empty.

  // Creates a set of zeros.
  // INVALID_ARGUMENT: a name is empty, occurs twice or contains a space or control character; or a
  // shape is out of range.
  // RESOURCE_EXHAUSTED: there is not enough memory.
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
  // Offset of tensor i in buffer(), in bytes.
  size_t offset(size_t i) const { return offsets_[i]; }

  // The elements as T. sizeof(T) must be the size of an element.
  template <typename T>
  absl::Span<T> as(size_t i) {
    return {reinterpret_cast<T*>(data(i)), static_cast<size_t>(bytes(i)) / sizeof(T)};
  }
  template <typename T>
  absl::Span<const T> as(size_t i) const {
    return {reinterpret_cast<const T*>(data(i)), static_cast<size_t>(bytes(i)) / sizeof(T)};
  }

  // Returns the index of `name`, or -1.
  int64_t Find(absl::string_view name) const;

  // All tensors, with zeros between them for alignment. Two sets with the same layout are equal if
  // and only if their buffers are.
  absl::Span<std::byte> buffer() { return {buffer_.get(), buffer_bytes_}; }
  absl::Span<const std::byte> buffer() const { return {buffer_.get(), buffer_bytes_}; }

  // LayoutId() of specs(), which are in the order of their names.
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

// Copies every tensor of `from` to the tensor of the same name in `to`, converting between F32, F16
// and BF16. Narrowing rounds to nearest, ties to even; NaN stays NaN.
// INVALID_ARGUMENT: names or shapes differ, or another type would have to be converted.
absl::Status ConvertTensors(const TensorSet& from, TensorSet* to);

// Converts n elements, with the same rules.
absl::Status ConvertElements(DType from_dtype, const void* from, DType to_dtype, void* to,
                             int64_t n);

// Returns the index of the first of n elements (F32, F16 or BF16) that is infinite or NaN; -1 if
// all are finite.
int64_t FirstNonFinite(DType dtype, const void* data, int64_t n);

}  // namespace sluice
