#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/checkpoint/tensor_source.h"

namespace sluice::trainer {

// The state of some tensors at one moment, read while training goes on. Nothing is copied at first:
// readers copy from the live memory, and the one who is about to overwrite a tensor calls
// Preserve(), which copies the tensor if it may still be read. If the snapshot is written faster
// than steps are trained, it costs no memory; at worst it costs one copy of the tensors.
//
// Thread-safe. The live memory must outlive the snapshot, unless PreserveAll() was called.
class Snapshot {
 public:
  // A tensor, or elements of one. Names are unique and in rising order.
  struct Live {
    TensorSpec spec;
    const void* data;
    int64_t elements;
  };
  explicit Snapshot(std::vector<Live> tensors);

  absl::Span<const TensorSpec> specs() const { return specs_; }
  // RESOURCE_EXHAUSTED: there was too little memory to preserve the tensor.
  absl::Status Read(size_t i, int64_t first, int64_t count, void* to) const;

  // Call this before tensor i is overwritten.
  void Preserve(size_t i);
  void PreserveAll();
  // Nobody will read tensor i again.
  void Release(size_t i);

 private:
  struct Tensor {
    const std::byte* data;  // Null if it was released, or could not be copied.
    size_t bytes;
    std::unique_ptr<std::byte[]> copy;  // Null until it is needed.
    bool lost = false;                  // It could not be copied.
  };

  std::vector<TensorSpec> specs_;
  mutable absl::Mutex mutex_;
  std::vector<Tensor> tensors_ ABSL_GUARDED_BY(mutex_);
};

// Reads a snapshot, and releases what was read. `once`: each tensor is read from its first to its
// last element once, and released then; else all are released when the source is destroyed.
class SnapshotSource : public TensorSource {
 public:
  SnapshotSource(std::shared_ptr<Snapshot> snapshot, bool once)
      : snapshot_(std::move(snapshot)), once_(once) {}
  ~SnapshotSource() override;

  absl::Span<const TensorSpec> specs() const override { return snapshot_->specs(); }
  absl::Status Read(size_t i, int64_t first, int64_t count, void* to) const override;

 private:
  const std::shared_ptr<Snapshot> snapshot_;
  const bool once_;
};

}  // namespace sluice::trainer
