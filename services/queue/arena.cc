#include "services/queue/arena.h"

namespace sluice::queue {

std::shared_ptr<char> Arena::NewChunk(const std::shared_ptr<Pool>& pool) {
  std::unique_ptr<char[]> memory;
  {
    MutexLock lock(&pool->mu);
    if (!pool->free.empty()) {
      memory = std::move(pool->free.back());
      pool->free.pop_back();
    }
  }
  if (memory == nullptr) memory.reset(new char[kChunkBytes]);
  return {memory.release(), [pool](char* bytes) {
            std::unique_ptr<char[]> back(bytes);
            MutexLock lock(&pool->mu);
            if (pool->free.size() < Pool::kMostFree) pool->free.push_back(std::move(back));
          }};
}

std::shared_ptr<char> Arena::Allocate(size_t bytes) {
  if (bytes > kChunkBytes / 2) return {new char[bytes], std::default_delete<char[]>()};
  MutexLock lock(&mu_);
  if (chunk_ == nullptr || used_ + bytes > kChunkBytes) {
    chunk_ = NewChunk(pool_);
    used_ = 0;
  }
  std::shared_ptr<char> allocated(chunk_, chunk_.get() + used_);
  used_ += bytes;
  return allocated;
}

}  // namespace sluice::queue
