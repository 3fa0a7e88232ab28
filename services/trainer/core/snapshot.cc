#include "services/trainer/core/snapshot.h"

#include <algorithm>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace sluice::trainer {

Snapshot::Snapshot(std::vector<Live> tensors) {
  for (Live& live : tensors) {
    const size_t bytes = static_cast<size_t>(live.elements) * DTypeBytes(live.spec.dtype);
    specs_.push_back(std::move(live.spec));
    tensors_.push_back({static_cast<const std::byte*>(live.data), bytes, nullptr});
  }
}

absl::Status Snapshot::Read(size_t i, int64_t first, int64_t count, void* to) const {
  const absl::MutexLock lock(&mutex_);
  const Tensor& tensor = tensors_[i];
  if (tensor.lost) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "there is too little memory to keep ", specs_[i].name,
        " until it is written; the checkpoint took longer than the step that followed it"));
  }
  const std::byte* const from = tensor.copy != nullptr ? tensor.copy.get() : tensor.data;
  SLUICE_CHECK_MSG(from != nullptr, specs_[i].name);
  const auto size = static_cast<int64_t>(DTypeBytes(specs_[i].dtype));
  std::copy_n(from + first * size, count * size, static_cast<std::byte*>(to));
  return absl::OkStatus();
}

void Snapshot::Preserve(size_t i) {
  const absl::MutexLock lock(&mutex_);
  Tensor& tensor = tensors_[i];
  if (tensor.data == nullptr) return;
  tensor.copy.reset(new (std::nothrow) std::byte[tensor.bytes]);
  tensor.lost = tensor.copy == nullptr;
  if (!tensor.lost) std::copy_n(tensor.data, tensor.bytes, tensor.copy.get());
  tensor.data = nullptr;
}

void Snapshot::PreserveAll() {
  for (size_t i = 0; i < specs_.size(); ++i) Preserve(i);
}

void Snapshot::Release(size_t i) {
  const absl::MutexLock lock(&mutex_);
  tensors_[i].data = nullptr;
  tensors_[i].copy.reset();
}

SnapshotSource::~SnapshotSource() {
  for (size_t i = 0; i < snapshot_->specs().size(); ++i) snapshot_->Release(i);
}

absl::Status SnapshotSource::Read(size_t i, int64_t first, int64_t count, void* to) const {
  SLUICE_RETURN_IF_ERROR(snapshot_->Read(i, first, count, to));
  if (!once_) return absl::OkStatus();
  SLUICE_ASSIGN_OR_RETURN(const int64_t elements, NumElements(snapshot_->specs()[i].shape));
  if (first + count == elements) snapshot_->Release(i);
  return absl::OkStatus();
}

}  // namespace sluice::trainer
