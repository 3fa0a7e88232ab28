#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/checkpoint/safetensors.h"
#include "common/checkpoint/tensor_set.h"

namespace sluice {

// Tensors that are read in parts, so that a file of any size can be written or loaded without a
// copy of all tensors in memory.
class TensorSource {
 public:
  virtual ~TensorSource() = default;

  // Sorted by name, as in a TensorSet.
  virtual absl::Span<const TensorSpec> specs() const = 0;
  // Copies the elements [first, first + count) of tensor i to `to`, in the tensor's own type.
  virtual absl::Status Read(size_t i, int64_t first, int64_t count, void* to) const = 0;
};

// The tensors of a set, which outlives the source.
class SetSource : public TensorSource {
 public:
  explicit SetSource(const TensorSet* set) : set_(set) {}
  absl::Span<const TensorSpec> specs() const override { return set_->specs(); }
  absl::Status Read(size_t i, int64_t first, int64_t count, void* to) const override;

 private:
  const TensorSet* const set_;
};

// The tensors of one or several safetensors files, whose names differ.
class FileSource : public TensorSource {
 public:
  explicit FileSource(std::vector<SafetensorsFile> files);
  absl::Span<const TensorSpec> specs() const override { return specs_; }
  absl::Status Read(size_t i, int64_t first, int64_t count, void* to) const override;

 private:
  struct Place {
    const SafetensorsFile* file;
    const SafetensorsFile::Entry* entry;
  };
  const std::vector<SafetensorsFile> files_;
  std::vector<Place> places_;  // In the order of specs_.
  std::vector<TensorSpec> specs_;
};

// Another source with its F32 tensors converted to other types, given by their specs. Narrowing
// rounds to nearest, ties to even.
class RoundedSource : public TensorSource {
 public:
  // `from` outlives this. `specs` are its specs but for the types.
  RoundedSource(const TensorSource* from, std::vector<TensorSpec> specs)
      : from_(from), specs_(std::move(specs)) {}
  absl::Span<const TensorSpec> specs() const override { return specs_; }
  // FAILED_PRECONDITION: an element is too large for the smaller type. Infinity could not be loaded
  // again.
  absl::Status Read(size_t i, int64_t first, int64_t count, void* to) const override;

 private:
  const TensorSource* const from_;
  const std::vector<TensorSpec> specs_;
};

// Copies all tensors.
absl::StatusOr<TensorSet> ReadAll(const TensorSource& source);

}  // namespace sluice
