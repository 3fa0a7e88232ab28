#include "tests/cuda_emulator/memory.h"

#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "tests/cuda_emulator/report.h"
#include "tests/cuda_emulator/threads.h"

// The linker defines these. The program's own variables lie between them.
extern "C" char __executable_start, _end;

namespace sluice::cuda_emulator {
namespace {

constexpr size_t kArenaBytes = size_t{1} << 30;
constexpr size_t kSharedBytes = size_t{1} << 20;  // At the start of the arena, gaps included.
constexpr size_t kStaticSharedLimit = 48 << 10;
// Each allocation begins at a granule, and a whole granule follows it as a gap.
constexpr size_t kGranule = 256;

// A past access to a byte. Stamps rise with each barrier, block and launch; the stamp 0 means that
// there was no access.
struct Past {
  uint32_t stamp = 0;
  uint32_t thread : 10 = 0;
  uint32_t atomic : 1 = 0;
  uint32_t clock : 21 = 0;  // The thread's own clock, see Thread::known.
  uint32_t at = 0;          // The code that did it: an offset in the program's image.
};
// What is remembered of a byte.
struct Byte {
  Past write;
  Past reads[2];  // The last one, and the last one by another thread.
};

struct Allocation {
  uintptr_t begin = 0;
  size_t bytes = 0;
  std::string name;
  const void* freed_at = nullptr;
  std::unique_ptr<Byte[], decltype(&std::free)> history{nullptr, &std::free};
};

// A block of this launch: its first stamp, and whether it called __threadfence().
struct BlockPast {
  uint32_t first_stamp;
  bool fenced;
};

struct Memory {
  uintptr_t arena = 0;
  // Bytes of the arena that are in use. There is a gap before the first allocation too.
  size_t used = kSharedBytes + kGranule;
  // The number of the allocation that each granule belongs to, counted from 1; 0 means none.
  std::vector<uint32_t> owners = std::vector<uint32_t>(kArenaBytes / kGranule);
  std::vector<Allocation> allocations;

  size_t shared_used = 0;       // Bytes, gaps included.
  size_t shared_variables = 0;  // Bytes, without gaps.
  std::vector<Allocation> shared;

  uint32_t stamp = 1;             // The stamp of accesses made now.
  uint32_t launch_first = 1;      // The first stamp of this launch, or of the last one.
  std::vector<BlockPast> blocks;  // The blocks of this launch; the last one is running.
};

// Reports a fault in host code that is not instrumented, or the overflow of a thread's stack.
void OnSegmentationFault(int, siginfo_t* info, void* context) {
  const void* pc = nullptr;
#if defined(__x86_64__)
  const auto& registers = static_cast<ucontext_t*>(context)->uc_mcontext;
  pc = reinterpret_cast<const char*>(registers.gregs[REG_RIP]) + 1;
#elif defined(__aarch64__)
  const auto& registers = static_cast<ucontext_t*>(context)->uc_mcontext;
  pc = reinterpret_cast<const char*>(registers.pc) + 1;
#endif
  if (IsDeviceMemory(info->si_addr))
    Fail(pc, "host code touches device memory", "  it has to be copied with cudaMemcpy\n");
  if (current != nullptr && IsGuard(*current, info->si_addr))
    Fail(pc, "the thread's stack is full", "  of " + std::to_string(kStackBytes) + " bytes\n");
  char address[32];
  std::snprintf(address, sizeof(address), "%p", info->si_addr);
  Fail(pc, "segmentation fault at " + std::string(address));
}

Memory& TheMemory() {
  static Memory& memory = *[] {
    auto* const made = new Memory();
    void* const arena =
        mmap(nullptr, kArenaBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (arena == MAP_FAILED) std::abort();
    made->arena = reinterpret_cast<uintptr_t>(arena);
    static char signal_stack[64 << 10];
    const stack_t stack = {.ss_sp = signal_stack, .ss_flags = 0, .ss_size = sizeof(signal_stack)};
    sigaltstack(&stack, nullptr);
    struct sigaction action = {};
    action.sa_sigaction = OnSegmentationFault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &action, nullptr);
    return made;
  }();

  return memory;
}

size_t RoundUp(size_t n, size_t to) { return (n + to - 1) / to * to; }

const void* AddressInImage(uint32_t at) { return &__executable_start + at; }
uint32_t OffsetInImage(const void* at) {
  return static_cast<uint32_t>(static_cast<const char*>(at) - &__executable_start);
}

bool IsShared(uintptr_t address) { return address - TheMemory().arena < kSharedBytes; }

Allocation* OwnerOf(uintptr_t address) {
  Memory& memory = TheMemory();
  const uint32_t owner = memory.owners[(address - memory.arena) / kGranule];
  if (owner == 0) return nullptr;
  return &(IsShared(address) ? memory.shared : memory.allocations)[owner - 1];
}

// The last allocation that begins at or before `address`, or else the first one. Null if there is
// none.
const Allocation* FindNearest(uintptr_t address) {
  const Memory& memory = TheMemory();
  const auto& all = IsShared(address) ? memory.shared : memory.allocations;
  const Allocation* nearest = all.empty() ? nullptr : &all.front();
  for (const Allocation& one : all) {
    if (one.begin <= address) nearest = &one;
  }
  return nearest;
}

std::string Verb(Access access) {
  return access == Access::kRead    ? "reads"
         : access == Access::kWrite ? "writes"
                                    : "atomically changes";
}

// For example "it reads 4 bytes at offset 12 of device allocation 3 (64 bytes, from a.cu:9)".
std::string Describe(uintptr_t address, size_t bytes, Access access) {
  std::string text = "  it " + Verb(access) + " " + std::to_string(bytes) + " bytes at ";
  const Allocation* const near = FindNearest(address);
  if (near == nullptr) return text + "an address of device memory, none of which is allocated\n";
  const int64_t offset = static_cast<int64_t>(address - near->begin);
  return text + "offset " + std::to_string(offset) + " of " + near->name + "\n";
}

void SetOwner(Allocation* made, std::vector<uint32_t>* owners, uintptr_t arena, uint32_t number) {
  const size_t first = (made->begin - arena) / kGranule;
  const size_t count = RoundUp(std::max<size_t>(made->bytes, 1), kGranule) / kGranule;
  std::fill_n(owners->begin() + static_cast<ptrdiff_t>(first), count, number);
}

Allocation NewAllocation(uintptr_t begin, size_t bytes, std::string name) {
  Allocation made;
  made.begin = begin;
  made.bytes = bytes;
  made.name = std::move(name);
  // The zero pages of calloc() take no memory until they are used.
  made.history.reset(static_cast<Byte*>(std::calloc(std::max<size_t>(bytes, 1), sizeof(Byte))));
  if (made.history == nullptr) std::abort();
  return made;
}

// Returns the allocation that holds all the bytes. Ends the program if there is none.
Allocation& Locate(uintptr_t address, size_t bytes, Access access, const void* at) {
  Allocation* const owner = OwnerOf(address);
  const char* const kind = IsShared(address) ? "shared" : "device";
  if (owner == nullptr || address + bytes > owner->begin + owner->bytes)
    Fail(at, std::string("overrun of ") + kind + " memory", Describe(address, bytes, access));
  if (owner->freed_at != nullptr)
    Fail(at, "use of freed memory",
         Describe(address, bytes, access) + "  freed at " + SourceLine(owner->freed_at) + "\n");
  return *owner;
}

[[noreturn]] void FailUnwritten(uintptr_t address, size_t bytes, Access access, const void* at) {
  const char* const kind = IsShared(address) ? "shared" : "device";
  Fail(at, std::string("read of ") + kind + " memory that nobody wrote",
       Describe(address, bytes, access));
}

// Whether the block that was running at `stamp` and the one that runs now have both called
// __threadfence(). Such blocks are trusted to order their accesses.
bool BothFenced(uint32_t stamp) {
  const std::vector<BlockPast>& blocks = TheMemory().blocks;
  const auto after = std::upper_bound(
      blocks.begin(), blocks.end(), stamp,
      [](uint32_t value, const BlockPast& block) { return value < block.first_stamp; });
  return std::prev(after)->fenced && blocks.back().fenced;
}

// Whether nothing orders `past` before the current access of the running thread.
bool Races(const Past& past) {
  const Memory& memory = TheMemory();
  // An earlier launch has ended. An earlier block of this launch could run at the same time.
  if (past.stamp < memory.launch_first) return false;
  if (past.stamp < memory.blocks.back().first_stamp) return !BothFenced(past.stamp);

  // In this block, only a barrier orders two warps, and __syncwarp() the lanes of one warp.
  if (past.stamp < memory.stamp || past.thread == current->number) return false;
  if (past.thread / kWarp != current->number / kWarp) return true;
  return past.clock > current->known[past.thread % kWarp];
}

[[noreturn]] void FailRace(const Past& past, bool past_wrote, uintptr_t address, size_t bytes,
                           Access access, const void* at) {
  const Memory& memory = TheMemory();
  const bool other_block = past.stamp < memory.blocks.back().first_stamp;
  const std::string who = "thread " + std::to_string(past.thread);
  const char* const did = !past_wrote ? "read" : past.atomic ? "atomically changed" : "wrote";
  const char* const since =
      other_block ? " in another block of the launch" : ", with no barrier since";
  Fail(at, std::string("race on ") + (IsShared(address) ? "shared" : "device") + " memory",
       Describe(address, bytes, access) + "  which " + who + " " + did + since + ", at " +
           SourceLine(AddressInImage(past.at)) + "\n");
}

// Whether the bytes lie in the thread's stack, the program's own variables or the kernel's
// parameters.
bool IsOwnHostMemory(uintptr_t address, size_t bytes) {
  const auto within = [&](const void* begin, const void* end) {
    return address >= reinterpret_cast<uintptr_t>(begin) &&
           address + bytes <= reinterpret_cast<uintptr_t>(end);
  };
  return within(current->stack, current->stack + kStackBytes) ||
         within(&__executable_start, &_end) || within(parameters_begin, parameters_end);
}

}  // namespace

MemoryOpen::MemoryOpen() {
  const Memory& memory = TheMemory();
  mprotect(reinterpret_cast<void*>(memory.arena), RoundUp(memory.used, 4096),
           PROT_READ | PROT_WRITE);
}
MemoryOpen::~MemoryOpen() {
  const Memory& memory = TheMemory();
  mprotect(reinterpret_cast<void*>(memory.arena), RoundUp(memory.used, 4096), PROT_NONE);
}

bool IsDeviceMemory(const void* address) {
  return reinterpret_cast<uintptr_t>(address) - TheMemory().arena < kArenaBytes;
}

void* AllocateDevice(size_t bytes, const void* at) {
  Memory& memory = TheMemory();
  const size_t begin = memory.used;
  if (bytes > kArenaBytes || begin + RoundUp(bytes, kGranule) + 2 * kGranule > kArenaBytes)
    return nullptr;
  const uint32_t number = static_cast<uint32_t>(memory.allocations.size() + 1);
  memory.allocations.push_back(NewAllocation(memory.arena + begin, bytes,
                                             "device allocation " + std::to_string(number) + " (" +
                                                 std::to_string(bytes) + " bytes, from " +
                                                 SourceLine(at) + ")"));
  SetOwner(&memory.allocations.back(), &memory.owners, memory.arena, number);
  memory.used = begin + RoundUp(std::max<size_t>(bytes, 1), kGranule) + kGranule;

  return reinterpret_cast<void*>(memory.arena + begin);
}

void FreeDevice(void* begin, const void* at) {
  Allocation* const owner =
      IsDeviceMemory(begin) ? OwnerOf(reinterpret_cast<uintptr_t>(begin)) : nullptr;
  if (owner == nullptr || owner->begin != reinterpret_cast<uintptr_t>(begin))
    Fail(at, "cudaFree of an address that cudaMalloc did not give");
  if (owner->freed_at != nullptr)
    Fail(at, "second cudaFree of " + owner->name,
         "  the first was at " + SourceLine(owner->freed_at) + "\n");
  owner->freed_at = at;
  owner->history.reset();
}

void* AllocateShared(const char* name, size_t bytes, size_t alignment) {
  Memory& memory = TheMemory();
  memory.shared_variables = RoundUp(memory.shared_variables, alignment) + bytes;
  const std::string title =
      "shared " + std::string(name) + " (" + std::to_string(bytes) + " bytes)";
  const size_t end = memory.shared_used + RoundUp(bytes, kGranule) + kGranule;
  if (memory.shared_variables > kStaticSharedLimit || end > kSharedBytes)
    Fail(__builtin_return_address(0),
         "a block has 48 KiB of shared memory, which is full at " + title);
  memory.shared.push_back(NewAllocation(memory.arena + memory.shared_used, bytes, title));
  const auto number = static_cast<uint32_t>(memory.shared.size());
  SetOwner(&memory.shared.back(), &memory.owners, memory.arena, number);
  memory.shared_used = end;

  return reinterpret_cast<void*>(memory.shared.back().begin);
}

void CheckAccess(const void* p, size_t bytes, Access access, const void* at) {
  const auto address = reinterpret_cast<uintptr_t>(p);
  if (!IsDeviceMemory(p)) {
    if (IsOwnHostMemory(address, bytes)) return;
    char text[96];
    std::snprintf(text, sizeof(text), "  it %s %zu bytes at %p\n", Verb(access).c_str(), bytes, p);
    Fail(at, "the kernel touches memory of the host, or of another thread", text);
  }

  Allocation& where = Locate(address, bytes, access, at);
  Past now;
  now.stamp = TheMemory().stamp;
  now.thread = current->number;
  now.atomic = access == Access::kAtomic;
  now.clock = current->known[current->number % kWarp];
  now.at = OffsetInImage(at);
  Byte* const first = &where.history[address - where.begin];

  for (Byte* byte = first; byte < first + bytes; ++byte) {
    if (access != Access::kWrite && byte->write.stamp == 0)
      FailUnwritten(address, bytes, access, at);
    const bool both_atomic = now.atomic && byte->write.atomic;
    if (!both_atomic && Races(byte->write)) FailRace(byte->write, true, address, bytes, access, at);

    if (access == Access::kRead) {
      if (byte->reads[0].thread != now.thread) byte->reads[1] = byte->reads[0];
      byte->reads[0] = now;
      continue;
    }

    for (const Past& read : byte->reads) {
      if (Races(read)) FailRace(read, false, address, bytes, access, at);
    }
    byte->write = now;
  }
}

void CheckCopy(const void* p, size_t bytes, Access access, const void* at) {
  if (bytes == 0) return;
  const auto address = reinterpret_cast<uintptr_t>(p);
  if (!IsDeviceMemory(p))
    Fail(at, "cudaMemcpy or cudaMemset has an address of the host where it needs device memory");
  Allocation& where = Locate(address, bytes, access, at);
  Byte* const first = &where.history[address - where.begin];

  for (size_t i = 0; i < bytes; ++i) {
    if (access == Access::kWrite) {
      // The host's copy is ordered before the next launch, as is everything of the last launch.
      first[i] = Byte();
      first[i].write.stamp = TheMemory().launch_first;
    } else if (first[i].write.stamp == 0) {
      FailUnwritten(address + i, bytes - i, access, at);
    }
  }
}

void BeginLaunch() {
  Memory& memory = TheMemory();
  memory.launch_first = ++memory.stamp;
  memory.blocks.clear();
}

void BeginBlock() {
  Memory& memory = TheMemory();
  memory.blocks.push_back({++memory.stamp, false});
  memory.shared.clear();
  std::fill_n(memory.owners.begin(), RoundUp(memory.shared_used, kGranule) / kGranule, 0u);
  memory.shared_used = 0;
  memory.shared_variables = 0;
}

void PassBarrier() { ++TheMemory().stamp; }

void RememberFence() { TheMemory().blocks.back().fenced = true; }

}  // namespace sluice::cuda_emulator
