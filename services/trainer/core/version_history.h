#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

#include "absl/status/status.h"
#include "common/checkpoint/tensor_set.h"

namespace sluice {
class TrainModel;
}

namespace sluice::trainer {

// The weights of the newest versions, as the forward pass used them: rounded to the job's dtype.
// Versions are numbers of training steps. Not thread-safe.
class VersionHistory {
 public:
  // Keeps at most `most` versions; 0: none.
  VersionHistory(size_t most, DType dtype) : most_(most), dtype_(dtype) {}

  // Copies the weights of `version`, which must be the newest that is kept, or above it. The memory
  // of the oldest one is used again once there are `most`.
  absl::Status Keep(int64_t version, const TrainModel& model);
  // Null if the version is not kept.
  const TensorSet* Find(int64_t version) const;
  void Clear() { versions_.clear(); }

 private:
  struct Version {
    int64_t number;
    TensorSet weights;
  };
  const size_t most_;
  const DType dtype_;
  std::deque<Version> versions_;  // Oldest first; at most most_.
};

}  // namespace sluice::trainer
