#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "common/base/mutex.h"
#include "common/checkpoint/tensor_source.h"
#include "services/trainer/core/snapshot.h"

namespace sluice {
class Collective;
}

// How rank 0 writes a checkpoint of tensors that are shared out to the ranks: it reads the parts of
// the other ranks one after the other while training goes on, over a group of its own. So no rank
// ever holds more than its part, and a little of what is being read.
namespace sluice::trainer {

// A rank's part of some tensors, as they were at one moment.
struct ShardSnapshot {
  std::vector<TensorSpec> specs;  // Of the whole tensors.
  // [tensor][rank]: the element with which the part of the rank begins; its end is where the next
  // part begins.
  std::vector<std::vector<int64_t>> begins;
  std::shared_ptr<Snapshot> part;  // The same tensors, with the elements of this rank.
  bool once = true;                // Each tensor is read once, from its first to its last element.
};

// How many floats hold this many elements. Collective moves floats, and looks at none, so values of
// any type travel as the bytes of floats.
int64_t FloatsThatHold(int64_t elements, DType dtype);

// The end of rank 0. Thread-safe.
class ShardReader {
 public:
  explicit ShardReader(std::shared_ptr<Collective> group) : group_(std::move(group)) {}

  // Returns the whole tensors. All ranks take their snapshots in the same order. One source is read
  // at a time.
  // Read() gives the errors of Collective, and RESOURCE_EXHAUSTED as Snapshot does.
  std::shared_ptr<const TensorSource> Open(ShardSnapshot snapshot);

 private:
  const std::shared_ptr<Collective> group_;
  int64_t next_ = 0;
};

// The end of another rank: answers rank 0 until the group is closed or aborted.
//
// Owns a thread, `shards`. Thread-safe.
class ShardServer {
 public:
  ShardServer(std::shared_ptr<Collective> group, int rank);
  ~ShardServer();  // Aborts the group.

  void Add(ShardSnapshot snapshot) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Run();

  const std::shared_ptr<Collective> group_;
  const size_t rank_;
  Mutex mu_;
  CondVar changed_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  int64_t next_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<int64_t, ShardSnapshot> snapshots_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

}  // namespace sluice::trainer
