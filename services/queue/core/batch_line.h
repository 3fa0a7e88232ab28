#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "services/queue/core/batch.h"
#include "services/queue/core/types.h"

namespace sluice::queue {

// The batches of a job, one per step, from the cut until a checkpoint makes them durable. H(k) is
// the hash over all batches below step k.
//
// A batch is filled, closed (from then on its list never changes), applied by the trainer, and
// freed once it is durable. Batches go through this in the order of their steps.
class BatchLine {
 public:
  // K: how many steps are trained.
  int64_t version() const { return version_; }
  // The step of the next batch to be cut: the lowest whose batch is not closed.
  int64_t next_cut() const { return next_cut_; }
  // Steps below this one are in a checkpoint; their batches are freed.
  int64_t durable() const { return durable_; }
  // H(version). Needs durable() <= version <= next_cut().
  const std::string& HashAt(int64_t version) const;
  const std::string& durable_hash() const { return durable_hash_; }

  const std::map<int64_t, Batch>& batches() const { return batches_; }
  // Null: the batch was not begun, or is freed.
  Batch* Find(int64_t k);
  const Batch* Find(int64_t k) const;
  // The batch with the highest step. Null if that is below `from`.
  Batch* FindLast(int64_t from);

  // The batch of step next_cut(), begun if need be.
  Batch& FindOrBegin(int64_t k);
  // Undoes FindOrBegin for a batch that got no group.
  void EraseEmpty(int64_t k);
  // Freezes the batch: computes its checksum and hash, and goes on to the next step.
  void Close(Batch& batch);
  // Step version() is trained. `batch` is its batch and is closed.
  void Apply(Batch& batch, bool skipped);

  // The line begins at this version, of which a checkpoint with this hash exists. Nothing was cut
  // yet.
  void Begin(int64_t version, const std::string& hash);
  // Steps below `version` are durable; durable() <= version <= version(). Returns the batches that
  // are freed by it, in the order of the steps, and remembers their rows for TakeFreedRows.
  std::vector<Batch> MakeDurable(int64_t version);

  // Erases all batches that are not trained.
  void EraseUntrained();
  // The batch is not trained any more. StartReplay or Rewind follows.
  void Unapply(Batch& batch);
  // Training begins again at this step, with the same batches. durable() <= version <= version().
  void StartReplay(int64_t version);
  // Erases the batch with the highest step. Rewind follows.
  void EraseLast();
  // Training and cutting begin again at this step, and no batch from it on is left. `hash` is
  // H(version), needed only where version < durable(): an older checkpoint came back.
  void Rewind(int64_t version, const std::string& hash);
  // Returns the rows of freed batches from this step on, in the order of the steps, and forgets
  // them.
  std::vector<RowRef> TakeFreedRows(int64_t from);

 private:
  friend struct Access;  // dump.cc

  void CheckOrder() const;

  // Steps [0, durable_) are in a checkpoint, [durable_, version_) are trained, and [version_,
  // next_cut_) are cut, so durable_ <= version_ <= next_cut_. `batches_` holds the closed batches
  // of [durable_, next_cut_), and perhaps that of step next_cut_, which is being filled. A batch is
  // applied if its step is below version_.
  int64_t durable_ = 0, version_ = 0, next_cut_ = 0;
  std::string durable_hash_ = std::string(32, '\0');  // H(durable_)
  std::map<int64_t, Batch> batches_;
  // Rows of the last freed batches, by step. If a trainer restores an older checkpoint, they are
  // drawn again.
  std::map<int64_t, std::vector<RowRef>> freed_rows_;
};

}  // namespace sluice::queue
