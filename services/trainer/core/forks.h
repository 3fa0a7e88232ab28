#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/rl/version.h"

namespace sluice::trainer {

// A place where a run has gone back and on from an older version: versions above `version` of
// incarnations up to `incarnation` are no part of it any more.
struct Fork {
  int64_t incarnation = 0;
  int64_t version = 0;
  PolicyVersion withdrawn;  // The version that was at fault, or the newest one at a rollback.
  std::string cause;

  bool operator==(const Fork&) const = default;
};

// The forks of one job, in the file forks.json beside its checkpoints. Checkpoints of branches that
// were given up stay on disk, for people, until newer ones push them out; no run goes on from them.
//
// Not thread-safe.
class Forks {
 public:
  // Reads the forks; there are none if there is no file.
  // DATA_LOSS: the file cannot be parsed; the message names it and says what to do.
  static absl::StatusOr<Forks> Read(const std::string& dir);

  // Stores one more fork. Before it returns, the file is on disk.
  absl::Status Add(Fork fork);

  // Whether the version lies on the job's branch.
  bool Holds(const PolicyVersion& version) const;
  const std::vector<Fork>& all() const { return forks_; }  // Oldest first.

 private:
  explicit Forks(std::string path) : path_(std::move(path)) {}

  std::string path_;
  std::vector<Fork> forks_;
};

}  // namespace sluice::trainer
