#include "common/base/reused_memory.h"

#include <sys/types.h>

#include <cstddef>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"

// jemalloc's function to read and set its options. Null in a program that is not linked with it.
extern "C" int mallctl(const char* name, void* old_value, size_t* old_size, void* new_value,
                       size_t new_size) __attribute__((weak));

namespace sluice {
namespace {

// jemalloc cannot take an arena away while something of it is in use, so arenas wait here for the
// next one who wants one.
struct FreeArenas {
  Mutex mu;
  std::vector<unsigned> arenas ABSL_GUARDED_BY(mu);
};
FreeArenas& ProcessFreeArenas() {
  static auto* const free = new FreeArenas;  // Never destroyed: threads may still end jobs.
  return *free;
}

std::optional<unsigned> TakeArena() {
  {
    FreeArenas& free = ProcessFreeArenas();
    MutexLock lock(&free.mu);
    if (!free.arenas.empty()) {
      const unsigned arena = free.arenas.back();
      free.arenas.pop_back();
      return arena;
    }
  }
  unsigned arena = 0;
  size_t size = sizeof(arena);
  if (mallctl("arenas.create", &arena, &size, nullptr, 0) != 0) return std::nullopt;
  return arena;
}

// Sets how many milliseconds free memory is kept; -1: always.
void SetDecay(unsigned arena, ssize_t milliseconds) {
  for (const char* const kind : {"dirty", "muzzy"}) {
    mallctl(absl::StrCat("arena.", arena, ".", kind, "_decay_ms").c_str(), nullptr, nullptr,
            &milliseconds, sizeof(milliseconds));
  }
}

}  // namespace

ReusedMemory::ReusedMemory() {
  if (mallctl == nullptr) return;
  arena_ = TakeArena();
  if (arena_.has_value()) SetDecay(*arena_, -1);
}

ReusedMemory::~ReusedMemory() {
  if (!arena_.has_value()) return;
  ssize_t milliseconds = 0;
  size_t size = sizeof(milliseconds);
  mallctl("arenas.dirty_decay_ms", &milliseconds, &size, nullptr, 0);
  SetDecay(*arena_, milliseconds);
  mallctl(absl::StrCat("arena.", *arena_, ".purge").c_str(), nullptr, nullptr, nullptr, 0);
  FreeArenas& free = ProcessFreeArenas();
  MutexLock lock(&free.mu);
  free.arenas.push_back(*arena_);
}

void ReusedMemory::UseOnThisThread() const {
  if (!arena_.has_value()) return;
  unsigned arena = *arena_;
  mallctl("thread.arena", nullptr, nullptr, &arena, sizeof(arena));
}

}  // namespace sluice
