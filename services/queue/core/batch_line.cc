#include "services/queue/core/batch_line.h"

#include <iterator>

#include "common/base/digest.h"
#include "common/base/status.h"

namespace sluice::queue {
namespace {
constexpr size_t kFreedBatchesKept = 1024;  // Batches whose rows are remembered.
}  // namespace

void BatchLine::CheckOrder() const { SLUICE_CHECK(durable_ <= version_ && version_ <= next_cut_); }

const std::string& BatchLine::HashAt(int64_t version) const {
  return version == durable_ ? durable_hash_ : batches_.at(version - 1).hash;
}

Batch* BatchLine::Find(int64_t k) {
  const auto it = batches_.find(k);
  return it == batches_.end() ? nullptr : &it->second;
}

const Batch* BatchLine::Find(int64_t k) const {
  const auto it = batches_.find(k);
  return it == batches_.end() ? nullptr : &it->second;
}

Batch* BatchLine::FindLast(int64_t from) {
  return batches_.empty() || batches_.rbegin()->first < from ? nullptr : &batches_.rbegin()->second;
}

Batch& BatchLine::FindOrBegin(int64_t k) {
  SLUICE_CHECK(k == next_cut_);
  Batch& batch = batches_[k];
  batch.k = k;
  return batch;
}

void BatchLine::EraseEmpty(int64_t k) {
  const auto it = batches_.find(k);
  SLUICE_CHECK(it != batches_.end() && it->second.groups.empty() && !it->second.closed);
  batches_.erase(it);
}

void BatchLine::Close(Batch& batch) {
  SLUICE_CHECK(batch.k == next_cut_ && !batch.closed);
  const std::string canonical = CanonicalBytes(batch.groups);
  batch.crc32c = Crc32c(canonical);
  batch.hash = NextHash(HashAt(batch.k), batch.k, canonical);
  batch.closed = true;
  next_cut_ = batch.k + 1;
  CheckOrder();
}

void BatchLine::Apply(Batch& batch, bool skipped) {
  SLUICE_CHECK(batch.k == version_ && batch.closed && !batch.applied);
  batch.applied = true;
  batch.skipped = skipped;
  version_ = batch.k + 1;
  CheckOrder();
}

void BatchLine::Begin(int64_t version, const std::string& hash) {
  SLUICE_CHECK(batches_.empty());
  durable_ = version_ = next_cut_ = version;
  durable_hash_ = hash;
}

std::vector<Batch> BatchLine::MakeDurable(int64_t version) {
  SLUICE_CHECK(durable_ <= version && version <= version_);
  durable_hash_ = HashAt(version);
  durable_ = version;
  CheckOrder();

  std::vector<Batch> freed;
  while (!batches_.empty() && batches_.begin()->first < version) {
    freed.push_back(std::move(batches_.begin()->second));
    batches_.erase(batches_.begin());
    const Batch& batch = freed.back();

    // Rows from outside the job's data cannot be drawn again.
    for (const FrozenGroup& frozen : batch.groups) {
      if (frozen.row.source != RowRef::kOutside) freed_rows_[batch.k].push_back(frozen.row);
    }
    if (freed_rows_.size() > kFreedBatchesKept) freed_rows_.erase(freed_rows_.begin());
  }
  return freed;
}

void BatchLine::EraseUntrained() {
  batches_.erase(batches_.lower_bound(version_), batches_.end());
  next_cut_ = version_;
}

void BatchLine::Unapply(Batch& batch) {
  SLUICE_CHECK(batch.applied && batch.k < version_);
  batch.applied = batch.skipped = false;
}

void BatchLine::StartReplay(int64_t version) {
  SLUICE_CHECK(version <= version_);
  version_ = version;
  CheckOrder();
}

void BatchLine::EraseLast() {
  SLUICE_CHECK(!batches_.empty());
  batches_.erase(std::prev(batches_.end()));
}

void BatchLine::Rewind(int64_t version, const std::string& hash) {
  SLUICE_CHECK(FindLast(version) == nullptr);
  if (version < durable_) {
    durable_ = version;
    durable_hash_ = hash;
  }
  version_ = next_cut_ = version;
  CheckOrder();
}

std::vector<RowRef> BatchLine::TakeFreedRows(int64_t from) {
  std::vector<RowRef> rows;
  for (auto it = freed_rows_.lower_bound(from); it != freed_rows_.end(); it = freed_rows_.erase(it))
    rows.insert(rows.end(), it->second.begin(), it->second.end());
  return rows;
}

}  // namespace sluice::queue
