#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "common/base/mutex.h"

namespace sluice::queue {

// Memory for payload: chunks of 1 MiB (larger where a request is), handed out front to back. A chunk goes back to the pool,
// warm, once nobody shares any of its bytes.
//
// Thread-safe. May go before the bytes it handed out.
class Arena {
 public:
  static constexpr size_t kChunkBytes = 1 << 20;

  Arena() : pool_(std::make_shared<Pool>()) {}

  // `bytes` of memory, writable until it is shared.
  std::shared_ptr<char> Allocate(size_t bytes) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Pool {
    static constexpr size_t kMostFree = 64;  // Chunks; more go back to the system.
    Mutex mu;
    std::vector<std::unique_ptr<char[]>> free ABSL_GUARDED_BY(mu);
  };
  static std::shared_ptr<char> NewChunk(const std::shared_ptr<Pool>& pool);

  const std::shared_ptr<Pool> pool_;
  Mutex mu_;
  std::shared_ptr<char> chunk_ ABSL_GUARDED_BY(mu_);
  size_t used_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace sluice::queue
