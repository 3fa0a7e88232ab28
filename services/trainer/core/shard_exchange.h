#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/mutex.h"
#include "common/checkpoint/tensor_source.h"
#include "services/trainer/core/parts.h"
#include "services/trainer/core/snapshot.h"

namespace sluice {
class Collective;
}

// How a checkpoint is written of tensors that are shared out to the ranks, while training goes on.
// If all ranks see the folder, each writes its own part when rank 0 says so. Else rank 0 reads the
// parts of the other ranks one after the other. Both go over a group of its own. No rank ever holds
// more than its part, and a little of what is being read or written.
namespace sluice::trainer {

// A rank's part of some tensors, as they were at one moment.
struct ShardSnapshot : PartedTensors {
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

  // Returns the whole tensors. All ranks take their snapshots in the same order. One source is used
  // at a time.
  // Its calls give the errors of Collective, and RESOURCE_EXHAUSTED as Snapshot does.
  std::shared_ptr<const PartedSource> Open(ShardSnapshot snapshot);

 private:
  class Source;

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

  // Sets the folder in which rank 0 makes the folders of checkpoints, as this rank sees it. Until
  // then this rank writes no files.
  void SetFolder(std::string dir) ABSL_LOCKS_EXCLUDED(mu_);
  void Add(ShardSnapshot snapshot) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  friend class ShardReader;
  struct Request;

  void Run();
  // Waits for the snapshot. Nullopt: this is being destroyed.
  std::optional<ShardSnapshot> Find(int64_t id) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status SendElements(const Request& request);
  // The answers to FindObstacle() and WriteParts(). `folder` is the name of a checkpoint's folder.
  std::string AnswerProbe(absl::string_view folder, absl::string_view nonce);
  absl::StatusOr<WrittenFiles> WriteFiles(const Request& request, absl::string_view text);
  // Returns the path of a checkpoint's folder.
  absl::StatusOr<std::string> PathOf(absl::string_view folder) ABSL_LOCKS_EXCLUDED(mu_);
  bool stopped() ABSL_LOCKS_EXCLUDED(mu_);

  const std::shared_ptr<Collective> group_;
  const size_t rank_;
  Mutex mu_;
  CondVar changed_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  std::string folder_ ABSL_GUARDED_BY(mu_);
  int64_t next_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<int64_t, ShardSnapshot> snapshots_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

}  // namespace sluice::trainer
