#include "common/tokenizer/word_cache.h"

#include <array>
#include <utility>

#include "common/base/status.h"

namespace sluice {

WordCache& WordCache::ForThread(uint64_t tokenizer) {
  SLUICE_CHECK(tokenizer > 0);
  struct Entry {
    uint64_t tokenizer = 0;  // 0: unused; tokenizers count from 1.
    std::unique_ptr<WordCache> cache;
  };
  thread_local std::array<Entry, 4> entries;  // Most recently used first.
  size_t i = 0;
  while (i + 1 < entries.size() && entries[i].tokenizer != tokenizer) ++i;
  if (entries[i].tokenizer != tokenizer) entries[i] = {tokenizer, std::make_unique<WordCache>()};
  for (; i > 0; --i) std::swap(entries[i], entries[i - 1]);
  return *entries[0].cache;
}

}  // namespace sluice
