#include "tests/cuda_emulator/threads.h"

#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <bit>
#include <cmath>
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

namespace {

constexpr size_t kGuardBytes = 4096;
constexpr unsigned kMostPerDimension = 65535;  // Of a grid's y and z.
constexpr size_t kMostDynamicShared = 48 << 10;

struct Scheduler {
  std::vector<Thread> threads;  // kMostThreads, whose stacks are kept from block to block.
  unsigned count = 0;           // Of the block that runs.
  std::vector<Thread*> ready;
  unsigned at_barrier = 0, ended = 0;
  jmp_buf host;
  std::mt19937_64 random;

  void (*body)(const void*) = nullptr;
  std::map<const void*, void*> shared;  // By variable.
  size_t dynamic_shared = 0;
};

[[noreturn]] void RunFiber();

Scheduler& TheScheduler() {
  static Scheduler& scheduler = *[] {
    auto* const made = new Scheduler();
    made->threads.resize(kMostThreads);
    made->random.seed(seed_in_use);
    return made;
  }();
  return scheduler;
}

// From the running fiber to the scheduler's loop, until it is resumed.
void SwitchToHost() {
  if (_setjmp(current->context) == 0) _longjmp(TheScheduler().host, 1);
}

// A fiber lives for good: it runs the body once for each block, and waits.
void RunFiber() {
  for (;;) {
    watching = true;
    TheScheduler().body(parameters_begin);
    watching = false;
    current->state = Thread::State::kEnded;
    SwitchToHost();
  }
}

// Gives the thread its stack, and a context that begins RunFiber().
void MakeFiber(Thread* thread) {
  void* const memory = mmap(nullptr, kStackBytes + kGuardBytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED || mprotect(memory, kGuardBytes, PROT_NONE) != 0) std::abort();
  thread->stack = static_cast<char*>(memory) + kGuardBytes;
  // makecontext() can begin on another stack; all later switches are _longjmp(), which, unlike
  // swapcontext(), does not call the kernel.
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

size_t Draw(size_t below) { return seed_in_use == 0 ? 0 : TheScheduler().random() % below; }

void MakeReady(Thread* thread) {
  thread->state = Thread::State::kReady;
  TheScheduler().ready.push_back(thread);
}

// One of those that are ready: the first by number for seed 0, else any.
Thread* TakeReady() {
  std::vector<Thread*>& ready = TheScheduler().ready;
  const size_t place = Draw(ready.size());
  Thread* const taken = ready[place];
  if (seed_in_use == 0) {
    ready.erase(ready.begin());
  } else {
    ready[place] = ready.back();
    ready.pop_back();
  }
  return taken;
}

const char* Name(Together what) {
  switch (what) {
    case Together::kBarrier: return "__syncthreads()";
    case Together::kBarrierCount: return "__syncthreads_count()";
    case Together::kBarrierAnd: return "__syncthreads_and()";
    case Together::kBarrierOr: return "__syncthreads_or()";
    case Together::kWarpBarrier: return "__syncwarp()";
    case Together::kShuffle: return "__shfl_sync()";
    case Together::kShuffleUp: return "__shfl_up_sync()";
    case Together::kShuffleDown: return "__shfl_down_sync()";
    case Together::kShuffleXor: return "__shfl_xor_sync()";
    case Together::kBallot: return "__ballot_sync()";
    case Together::kAny: return "__any_sync()";
    case Together::kAll: return "__all_sync()";
    default: return "a __reduce_..._sync()";
  }
}

// Where each thread is, those at one place together.
std::string WhereThreadsAre() {
  const Scheduler& scheduler = TheScheduler();
  std::map<std::string, std::vector<unsigned>> places;
  for (unsigned i = 0; i < scheduler.count; ++i) {
    const Thread& thread = scheduler.threads[i];
    std::string place = "ended";
    if (thread.state == Thread::State::kAtBarrier || thread.state == Thread::State::kAtWarp) {
      place = std::string("wait at ") + Name(thread.what);
      if (thread.state == Thread::State::kAtWarp) {
        char mask[32];
        std::snprintf(mask, sizeof(mask), " with mask 0x%08x", thread.mask);
        place += mask;
      }
      place += ", " + SourceLine(thread.at);
    } else if (thread.state == Thread::State::kReady) {
      place = "run";
    }
    places[place].push_back(i);
  }
  std::string text;
  for (const auto& [place, threads] : places) {
    text += "  threads";
    for (size_t i = 0, next = 0; i < threads.size(); i = next) {
      next = i + 1;
      while (next < threads.size() && threads[next] == threads[next - 1] + 1) ++next;
      text += " " + std::to_string(threads[i]);
      if (next - i > 1) text += "-" + std::to_string(threads[next - 1]);
    }
    text += " " + place + "\n";
  }
  return text;
}

// All threads of the block are at a barrier, which must be one and the same.
void CompleteBarrier(const void* at) {
  Scheduler& scheduler = TheScheduler();
  Thread* const all = scheduler.threads.data();
  int count = 0;
  for (unsigned i = 0; i < scheduler.count; ++i) {
    const bool same_place =
        all[i].at == all[0].at || SourceLine(all[i].at) == SourceLine(all[0].at);
    if (all[i].what != all[0].what || !same_place)
      Fail(at, "the threads of a block are at different barriers", WhereThreadsAre());
    count += all[i].value != 0;
  }
  uint64_t result = 0;
  if (all[0].what == Together::kBarrierCount) result = static_cast<uint64_t>(count);
  if (all[0].what == Together::kBarrierAnd) result = count == static_cast<int>(scheduler.count);
  if (all[0].what == Together::kBarrierOr) result = count > 0;
  PassBarrier();
  scheduler.at_barrier = 0;
  for (unsigned i = 0; i < scheduler.count; ++i) {
    all[i].result = result;
    std::fill_n(all[i].known, kWarp, 0u);
    all[i].known[i % kWarp] = 1;
    MakeReady(&all[i]);
  }
}

// The lane that `lane` takes its number from in a shuffle; its own beyond the end of its group.
int SourceLane(const Thread& thread, int lane) {
  const int begin = lane / thread.width * thread.width, end = begin + thread.width;
  int from = lane;
  switch (thread.what) {
    case Together::kShuffle: return begin + (thread.argument & (thread.width - 1));
    case Together::kShuffleUp: from = lane - thread.argument; return from < begin ? lane : from;
    case Together::kShuffleDown: from = lane + thread.argument; break;
    default: from = lane ^ thread.argument; break;
  }
  return from >= end ? lane : from;
}

// Votes and reductions over the values of the lanes that take part.
uint64_t Reduce(Together what, const std::vector<Thread*>& lanes) {
  const auto fold = [&](uint32_t start, auto combine) -> uint64_t {
    uint32_t result = start;
    for (const Thread* lane : lanes) result = combine(result, static_cast<uint32_t>(lane->value));
    return result;
  };
  uint32_t ballot = 0;
  for (const Thread* lane : lanes) ballot |= uint32_t{lane->value != 0} << lane->number % kWarp;
  const auto first = static_cast<uint32_t>(lanes.front()->value);
  switch (what) {
    case Together::kBallot: return ballot;
    case Together::kAny: return ballot != 0;
    case Together::kAll: return std::popcount(ballot) == static_cast<int>(lanes.size());
    case Together::kReduceAdd: return fold(0, [](uint32_t a, uint32_t b) { return a + b; });
    case Together::kReduceMin:
      return fold(first, [](uint32_t a, uint32_t b) { return std::min(a, b); });
    case Together::kReduceMax:
      return fold(first, [](uint32_t a, uint32_t b) { return std::max(a, b); });
    case Together::kReduceMinSigned:
      return fold(first, [](int32_t a, int32_t b) { return std::min(a, b); });
    case Together::kReduceMaxSigned:
      return fold(first, [](int32_t a, int32_t b) { return std::max(a, b); });
    case Together::kReduceAnd: return fold(~0u, [](uint32_t a, uint32_t b) { return a & b; });
    case Together::kReduceOr: return fold(0, [](uint32_t a, uint32_t b) { return a | b; });
    case Together::kReduceXor: return fold(0, [](uint32_t a, uint32_t b) { return a ^ b; });
    default: return 0;
  }
}

void JoinClocks(const std::vector<Thread*>& lanes) {
  uint32_t joined[kWarp] = {};
  for (const Thread* lane : lanes) {
    for (unsigned l = 0; l < kWarp; ++l) joined[l] = std::max(joined[l], lane->known[l]);
  }
  for (Thread* lane : lanes) {
    std::copy_n(joined, kWarp, lane->known);
    ++lane->known[lane->number % kWarp];
  }
}

// Completes the operation that `waiting` waits in, once every lane of its mask that has not ended
// is there with the same operation and mask.
void TryWarp(Thread* waiting) {
  Scheduler& scheduler = TheScheduler();
  const unsigned base = waiting->number / kWarp * kWarp;
  std::vector<Thread*> lanes;
  for (unsigned l = 0; l < kWarp && base + l < scheduler.count; ++l) {
    Thread* const lane = &scheduler.threads[base + l];
    if ((waiting->mask >> l & 1) == 0 || lane->state == Thread::State::kEnded) continue;
    if (lane->state != Thread::State::kAtWarp || lane->what != waiting->what ||
        lane->mask != waiting->mask)
      return;
    lanes.push_back(lane);
  }
  const bool shuffles =
      waiting->what >= Together::kShuffle && waiting->what <= Together::kShuffleXor;
  if (waiting->what == Together::kWarpBarrier) JoinClocks(lanes);
  const uint64_t result = shuffles ? 0 : Reduce(waiting->what, lanes);
  for (Thread* lane : lanes) {
    lane->result = result;
    if (!shuffles) continue;
    const int own = static_cast<int>(lane->number % kWarp), from = SourceLane(*lane, own);
    const auto source = std::find_if(lanes.begin(), lanes.end(), [&](const Thread* other) {
      return static_cast<int>(other->number % kWarp) == from;
    });
    if (source == lanes.end())
      Fail(lane->at,
           std::string(Name(lane->what)) + " reads lane " + std::to_string(from) +
               ", which takes no part in it",
           WhereThreadsAre());
    lane->result = (*source)->value;
  }
  for (Thread* lane : lanes) MakeReady(lane);
}

// After a thread has ended: warp operations of its warp may have waited for it alone.
void RetryWarp(const Thread& ended) {
  Scheduler& scheduler = TheScheduler();
  const unsigned base = ended.number / kWarp * kWarp;
  for (unsigned i = base; i < base + kWarp && i < scheduler.count; ++i) {
    if (scheduler.threads[i].state == Thread::State::kAtWarp) TryWarp(&scheduler.threads[i]);
  }
}

[[noreturn]] void FailStuck() {
  const Scheduler& scheduler = TheScheduler();
  const Thread* waiting = nullptr;
  for (unsigned i = 0; i < scheduler.count; ++i) {
    const Thread& thread = scheduler.threads[i];
    if (thread.state == Thread::State::kEnded) continue;
    if (waiting == nullptr || thread.state == Thread::State::kAtWarp) waiting = &thread;
  }
  Fail(waiting->at,
       waiting->state == Thread::State::kAtBarrier
           ? "a barrier that not all threads of the block reach"
           : "a warp operation that not all lanes of its mask reach",
       WhereThreadsAre());
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
    Thread* const thread = TakeReady();
    Resume(thread);
    if (thread->state != Thread::State::kEnded) continue;
    ++scheduler.ended;
    RetryWarp(*thread);
  }
  if (scheduler.ended < scheduler.count) FailStuck();
}

int launch_error = 0;

// The cudaError_t of a launch.
int CheckConfig(const Config& config) {
  const uint64_t threads = uint64_t{config.block.x} * config.block.y * config.block.z;
  if (threads == 0 || threads > kMostThreads || config.block.z > 64) return 9;
  if (config.grid.x == 0 || config.grid.y == 0 || config.grid.z == 0) return 9;
  if (config.grid.x > std::numeric_limits<int32_t>::max()) return 9;
  if (config.grid.y > kMostPerDimension || config.grid.z > kMostPerDimension) return 9;
  return config.shared > kMostDynamicShared ? 1 : 0;
}

// The kernels of each file, and those that have run: names without template arguments.
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

int TakeLaunchError(bool forget) {
  const int error = launch_error;
  if (forget) launch_error = 0;
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

int BlockTogether(Together what, int value) {
  const Unwatched unwatched;
  Scheduler& scheduler = TheScheduler();
  Thread* const self = current;
  self->state = Thread::State::kAtBarrier;
  self->what = what;
  self->value = value != 0;
  self->at = __builtin_return_address(0);
  if (++scheduler.at_barrier == scheduler.count) CompleteBarrier(self->at);
  SwitchToHost();
  return static_cast<int>(self->result);
}

uint64_t WarpTogether(Together what, uint32_t mask, uint64_t value, int argument, int width) {
  const Unwatched unwatched;
  Thread* const self = current;
  self->at = __builtin_return_address(0);
  if ((mask >> self->number % kWarp & 1) == 0)
    Fail(self->at, std::string(Name(what)) + " by a lane that its mask leaves out");
  if (width < 1 || width > static_cast<int>(kWarp) || (width & (width - 1)) != 0)
    Fail(self->at, std::string(Name(what)) + " with a width that is not a power of two up to 32");
  self->state = Thread::State::kAtWarp;
  self->what = what;
  self->mask = mask;
  self->value = value;
  self->argument = argument;
  self->width = width;
  TryWarp(self);
  SwitchToHost();
  return self->result;
}

void BeforeAtomic(const void* address, size_t bytes, const void* at) {
  const Unwatched unwatched;
  // First the others, so that from here to the operation itself nothing comes between.
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

float FmaRnFtz(float a, float b, float c) {
  const auto flush = [](float x) {
    return std::fabs(x) < std::numeric_limits<float>::min() ? std::copysign(0.0f, x) : x;
  };
  return flush(std::fma(flush(a), flush(b), flush(c)));
}

}  // namespace sluice::cuda_emulator
