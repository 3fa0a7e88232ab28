#include "tests/cuda_emulator/threads.h"

#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "tests/cuda_emulator/memory.h"
#include "tests/cuda_emulator/report.h"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace sluice::cuda_emulator {

Thread* current = nullptr;
bool watching = false;
const char* running_kernel = nullptr;
const void* parameters_begin = nullptr;
const void* parameters_end = nullptr;
uint64_t seed_in_use = [] {
  const char* const text = std::getenv("CUDA_EMULATOR_SEED");
  return text == nullptr ? 1ull : std::strtoull(text, nullptr, 10);
}();

Scheduler& TheScheduler() {
  static Scheduler& scheduler = *[] {
    auto* const made = new Scheduler();
    made->threads.resize(kMostThreads);
    made->random.seed(seed_in_use);
    return made;
  }();
  return scheduler;
}

void SwitchToHost() {
  if (_setjmp(current->context) == 0) _longjmp(TheScheduler().host, 1);
}

void MakeReady(Thread* thread) {
  thread->state = Thread::State::kReady;
  TheScheduler().ready.push_back(thread);
}

namespace {

constexpr size_t kGuardBytes = 4096;
constexpr unsigned kMostPerDimension = 65535;  // The limit of a grid's y and z.
constexpr size_t kMostDynamicShared = 48 << 10;

// A fiber never ends. It runs the body once for each block, then waits for the next block.
void RunFiber() {
  for (;;) {
    watching = true;
    TheScheduler().body(parameters_begin);
    watching = false;
    current->state = Thread::State::kEnded;
    SwitchToHost();
  }
}

// Gives the thread a stack, and a context in which RunFiber() starts.
void MakeFiber(Thread* thread) {
  void* const memory = mmap(nullptr, kStackBytes + kGuardBytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED || mprotect(memory, kGuardBytes, PROT_NONE) != 0) std::abort();
  thread->stack = static_cast<char*>(memory) + kGuardBytes;

  // Only makecontext() can start on another stack. All later switches use _longjmp(), because
  // swapcontext() would make a system call.
  static ucontext_t host;
  static Thread* made;
  made = thread;
  ucontext_t fiber;
  getcontext(&fiber);
  fiber.uc_stack = {.ss_sp = thread->stack, .ss_flags = 0, .ss_size = kStackBytes};
  fiber.uc_link = nullptr;
  makecontext(
      &fiber,
      +[] {
        if (_setjmp(made->context) == 0) setcontext(&host);
        RunFiber();
      },
      0);
  swapcontext(&host, &fiber);
}

void Resume(Thread* thread) {
  current = thread;
  threadIdx.x = thread->number % blockDim.x;
  threadIdx.y = thread->number / blockDim.x % blockDim.y;
  threadIdx.z = thread->number / blockDim.x / blockDim.y;
  if (_setjmp(TheScheduler().host) == 0) _longjmp(thread->context, 1);
  current = nullptr;
}

size_t DrawBelow(size_t below) { return seed_in_use == 0 ? 0 : TheScheduler().random() % below; }

// Takes one of the ready threads: the first in line for seed 0, else a random one.
Thread* PickReady() {
  std::vector<Thread*>& ready = TheScheduler().ready;
  const size_t place = DrawBelow(ready.size());
  Thread* const taken = ready[place];
  if (seed_in_use == 0) {
    ready.erase(ready.begin());
  } else {
    ready[place] = ready.back();
    ready.pop_back();
  }
  return taken;
}

void RunBlock() {
  Scheduler& scheduler = TheScheduler();
  BeginBlock();
  scheduler.shared.clear();
  scheduler.ended = 0;
  scheduler.at_barrier = 0;

  for (unsigned i = 0; i < scheduler.count; ++i) {
    Thread& thread = scheduler.threads[i];
    thread.number = i;
    if (thread.stack == nullptr) MakeFiber(&thread);
    std::fill_n(thread.known, kWarp, 0u);
    thread.known[i % kWarp] = 1;
    MakeReady(&thread);
  }

  while (!scheduler.ready.empty()) {
    Thread* const thread = PickReady();
    Resume(thread);
    if (thread->state != Thread::State::kEnded) continue;
    ++scheduler.ended;
    RetryWarpCollectives(*thread);
  }
  if (scheduler.ended < scheduler.count) FailStuck();
}

int launch_error = 0;

// Returns the cudaError_t of a launch: 9 (cudaErrorInvalidConfiguration) for a wrong size, 1
// (cudaErrorInvalidValue) for too much shared memory, and 0 if a device would accept it.
int CheckConfig(const Config& config) {
  const uint64_t threads = uint64_t{config.block.x} * config.block.y * config.block.z;
  if (threads == 0 || threads > kMostThreads || config.block.z > 64) return 9;
  if (config.grid.x == 0 || config.grid.y == 0 || config.grid.z == 0) return 9;
  if (config.grid.x > std::numeric_limits<int32_t>::max()) return 9;
  if (config.grid.y > kMostPerDimension || config.grid.z > kMostPerDimension) return 9;
  return config.shared > kMostDynamicShared ? 1 : 0;
}

// The kernels with their files, and the kernels that have run. Names have no template arguments.
std::map<std::string, std::string>& KnownKernels() {
  static auto& known = *new std::map<std::string, std::string>();
  return known;
}
std::set<std::string>& KernelsRun() {
  static auto& run = *new std::set<std::string>();
  return run;
}

std::string BaseName(const std::string& kernel) {
  const std::string name = kernel.substr(0, kernel.find('<'));
  const size_t colons = name.rfind("::");
  return colons == std::string::npos ? name : name.substr(colons + 2);
}

}  // namespace

bool IsGuard(const Thread& thread, const void* address) {
  const auto* const byte = static_cast<const char*>(address);
  return byte < thread.stack && byte >= thread.stack - kGuardBytes;
}

void SetSeed(uint64_t seed) {
  seed_in_use = seed;
  TheScheduler().random.seed(seed);
}

Kernels::Kernels(const char* file, std::initializer_list<const char*> names) {
  for (const char* name : names) KnownKernels()[name] = file;
}

int PrintKernelsNeverRun() {
  int count = 0;
  for (const auto& [name, file] : KnownKernels()) {
    if (KernelsRun().contains(name)) continue;
    std::fprintf(stderr, "cuda_emulator: kernel %s of %s was never run\n", name.c_str(),
                 file.c_str());
    ++count;
  }
  return count;
}

int GetLaunchError(bool clear) {
  const int error = launch_error;
  if (clear) launch_error = 0;
  return error;
}

void Run(const char* kernel, const Config& config, void (*body)(const void*),
         const void* parameters, size_t parameter_bytes) {
  if (const int error = CheckConfig(config); error != 0) {
    launch_error = error;
    return;
  }

  Scheduler& scheduler = TheScheduler();
  KernelsRun().insert(BaseName(kernel));
  running_kernel = kernel;
  parameters_begin = parameters;
  parameters_end = static_cast<const char*>(parameters) + parameter_bytes;
  scheduler.body = body;
  scheduler.dynamic_shared = config.shared;
  gridDim = config.grid;
  blockDim = config.block;
  scheduler.count = config.block.x * config.block.y * config.block.z;
  BeginLaunch();
  const MemoryOpen open;
  std::vector<uint32_t> blocks(size_t{config.grid.x} * config.grid.y * config.grid.z);
  std::iota(blocks.begin(), blocks.end(), 0u);
  if (seed_in_use != 0) std::shuffle(blocks.begin(), blocks.end(), scheduler.random);

  for (const uint32_t block : blocks) {
    blockIdx.x = block % gridDim.x;
    blockIdx.y = block / gridDim.x % gridDim.y;
    blockIdx.z = block / gridDim.x / gridDim.y;
    RunBlock();
  }
  running_kernel = nullptr;
}

void* SharedPlace(const void* key, const char* name, size_t bytes, size_t alignment) {
  const Unwatched unwatched;
  const auto [place, added] = TheScheduler().shared.try_emplace(key);
  if (added) place->second = AllocateShared(name, bytes, alignment);
  return place->second;
}

void* DynamicSharedPlace() {
  const Unwatched unwatched;
  const Scheduler& scheduler = TheScheduler();
  return SharedPlace(&scheduler, "(dynamic)", scheduler.dynamic_shared, 16);
}

void BeforeAtomic(const void* address, size_t bytes, const void* at) {
  const Unwatched unwatched;
  // Other threads run first, so that nothing comes between this check and the operation.
  if (seed_in_use != 0) {
    MakeReady(current);
    SwitchToHost();
  }
  CheckAccess(address, bytes, Access::kAtomic, at);
}

void Fence() {
  const Unwatched unwatched;
  RememberFence();
}

}  // namespace sluice::cuda_emulator
