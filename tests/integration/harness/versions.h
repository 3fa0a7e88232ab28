#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/rpc/cancel.h"
#include "tests/integration/harness/cluster.h"

namespace sluice::integration {

// Watches as rollout-0 what a trainer publishes: the weights of each version. The watch is opened
// again when the trainer comes back.
//
// Thread-safe. Owns the thread that reads the watch.
class PublishedVersions {
 public:
  // `cluster` outlives it.
  PublishedVersions(Cluster* cluster, std::string trainer, std::string job);
  ~PublishedVersions();

  // The fingerprints of the weights, by version number and then by the trainer group's incarnation.
  std::map<int64_t, std::map<int64_t, std::string>> seen() const;

 private:
  void Read();

  const std::string address_, job_;
  rpc::Cancel cancel_;
  mutable Mutex mu_;
  std::map<int64_t, std::map<int64_t, std::string>> seen_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

}  // namespace sluice::integration
