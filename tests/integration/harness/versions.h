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

// Follows what a trainer publishes, in the name of rollout-0: which weights each version has. The
// watch is opened again where the trainer comes back.
//
// Thread-safe. Owns the thread that reads the watch.
class PublishedVersions {
 public:
  // `cluster` outlives it.
  PublishedVersions(Cluster* cluster, std::string trainer, std::string job);
  ~PublishedVersions();

  // Fingerprints by number, then by the gang's incarnation.
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
