#include "common/base/reused_memory.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstring>
#include <memory>
#include <thread>

namespace sluice {
namespace {

constexpr size_t kBytes = 64 << 20, kPages = kBytes / 4096;

extern "C" int mallctl(const char*, void*, size_t*, void*, size_t);

// Makes all arenas but those of a ReusedMemory give their free memory back at each allocation.
void GiveFreeMemoryBackAtOnce() {
  ssize_t at_once = 0;
  for (const char* const kind : {"arenas.dirty_decay_ms", "arenas.muzzy_decay_ms"})
    ASSERT_EQ(mallctl(kind, nullptr, nullptr, &at_once, sizeof(at_once)), 0);
}

// Returns how many pages were new when a thread wrote to a large buffer, for the second time, after
// it had freed the first one.
long NewPagesOfSecondBuffer(const ReusedMemory* memory) {
  long pages = -1;
  std::thread([&] {
    if (memory != nullptr) memory->UseOnThisThread();
    rusage before, after;
    for (int i = 0; i < 2; ++i) {
      const std::unique_ptr<char[]> buffer(new char[kBytes]);
      getrusage(RUSAGE_THREAD, &before);
      std::memset(buffer.get(), i, kBytes);
      getrusage(RUSAGE_THREAD, &after);
      EXPECT_EQ(buffer[kBytes - 1], i);
    }
    pages = after.ru_minflt - before.ru_minflt;
  }).join();
  return pages;
}

TEST(ReusedMemory, KeepsWhatIsFreedForTheNextAllocation) {
  GiveFreeMemoryBackAtOnce();
  const ReusedMemory memory;
  EXPECT_LT(NewPagesOfSecondBuffer(&memory), kPages / 100);
  EXPECT_GT(NewPagesOfSecondBuffer(nullptr), kPages / 2);
}

TEST(ReusedMemory, GivesFreeMemoryBackAtItsEnd) {
  GiveFreeMemoryBackAtOnce();
  {
    const ReusedMemory first;
    NewPagesOfSecondBuffer(&first);
  }
  rusage before, after;
  const ReusedMemory next;  // It has the arena of the first one.
  std::thread([&] {
    next.UseOnThisThread();
    const std::unique_ptr<char[]> buffer(new char[kBytes]);
    getrusage(RUSAGE_THREAD, &before);
    std::memset(buffer.get(), 1, kBytes);
    getrusage(RUSAGE_THREAD, &after);
    EXPECT_EQ(buffer[kBytes - 1], 1);
  }).join();
  EXPECT_GT(after.ru_minflt - before.ru_minflt, kPages / 2);
}

TEST(ReusedMemory, UsesTheArenasOfThoseThatEnded) {
  unsigned before = 0, after = 0;
  size_t size = sizeof(unsigned);
  {
    const ReusedMemory first, second;
  }
  ASSERT_EQ(mallctl("arenas.narenas", &before, &size, nullptr, 0), 0);
  for (int i = 0; i < 100; ++i) const ReusedMemory first, second;
  ASSERT_EQ(mallctl("arenas.narenas", &after, &size, nullptr, 0), 0);
  EXPECT_EQ(after, before);
}

}  // namespace
}  // namespace sluice
