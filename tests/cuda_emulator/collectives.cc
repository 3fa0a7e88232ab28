// Implements barriers, votes and shuffles of the threads of a block or a warp.

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "tests/cuda_emulator/memory.h"
#include "tests/cuda_emulator/report.h"
#include "tests/cuda_emulator/threads.h"

namespace sluice::cuda_emulator {
namespace {

const char* NameOf(Collective what) {
  switch (what) {
    case Collective::kBarrier: return "__syncthreads()";
    case Collective::kBarrierCount: return "__syncthreads_count()";
    case Collective::kBarrierAnd: return "__syncthreads_and()";
    case Collective::kBarrierOr: return "__syncthreads_or()";
    case Collective::kWarpBarrier: return "__syncwarp()";
    case Collective::kShuffle: return "__shfl_sync()";
    case Collective::kShuffleUp: return "__shfl_up_sync()";
    case Collective::kShuffleDown: return "__shfl_down_sync()";
    case Collective::kShuffleXor: return "__shfl_xor_sync()";
    case Collective::kBallot: return "__ballot_sync()";
    case Collective::kAny: return "__any_sync()";
    case Collective::kAll: return "__all_sync()";
    default: return "a __reduce_..._sync()";
  }
}

// Returns a text that says where each thread is. Threads at the same place share a line.
std::string WhereThreadsAre() {
  const Scheduler& scheduler = TheScheduler();
  std::map<std::string, std::vector<unsigned>> places;
  for (unsigned i = 0; i < scheduler.count; ++i) {
    const Thread& thread = scheduler.threads[i];
    std::string place = "ended";
    if (thread.state == Thread::State::kAtBarrier || thread.state == Thread::State::kAtWarp) {
      place = std::string("wait at ") + NameOf(thread.what);
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

// Completes a barrier when all threads of the block have arrived, which must be at the same one.
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
  if (all[0].what == Collective::kBarrierCount) result = static_cast<uint64_t>(count);
  if (all[0].what == Collective::kBarrierAnd) result = count == static_cast<int>(scheduler.count);
  if (all[0].what == Collective::kBarrierOr) result = count > 0;
  PassBarrier();
  scheduler.at_barrier = 0;

  for (unsigned i = 0; i < scheduler.count; ++i) {
    all[i].result = result;
    std::fill_n(all[i].known, kWarp, 0u);
    all[i].known[i % kWarp] = 1;
    MakeReady(&all[i]);
  }
}

// Returns the lane whose value `lane` reads in a shuffle. It reads its own value if that lane lies
// before its group (kShuffleUp) or beyond the end of its group (kShuffleDown, kShuffleXor).
int SourceLane(const Thread& thread, int lane) {
  const int begin = lane / thread.width * thread.width, end = begin + thread.width;
  int from = lane;
  switch (thread.what) {
    case Collective::kShuffle: return begin + (thread.argument & (thread.width - 1));
    case Collective::kShuffleUp: from = lane - thread.argument; return from < begin ? lane : from;
    case Collective::kShuffleDown: from = lane + thread.argument; break;
    default: from = lane ^ thread.argument; break;
  }

  return from >= end ? lane : from;
}

// Computes votes and reductions over the values of the participating lanes.
uint64_t Reduce(Collective what, const std::vector<Thread*>& lanes) {
  const auto fold = [&](uint32_t start, auto combine) -> uint64_t {
    uint32_t result = start;
    for (const Thread* lane : lanes) result = combine(result, static_cast<uint32_t>(lane->value));
    return result;
  };

  uint32_t ballot = 0;
  for (const Thread* lane : lanes) ballot |= uint32_t{lane->value != 0} << lane->number % kWarp;
  const auto first = static_cast<uint32_t>(lanes.front()->value);
  switch (what) {
    case Collective::kBallot: return ballot;
    case Collective::kAny: return ballot != 0;
    case Collective::kAll: return std::popcount(ballot) == static_cast<int>(lanes.size());
    case Collective::kReduceAdd: return fold(0, [](uint32_t a, uint32_t b) { return a + b; });
    case Collective::kReduceMin:
      return fold(first, [](uint32_t a, uint32_t b) { return std::min(a, b); });
    case Collective::kReduceMax:
      return fold(first, [](uint32_t a, uint32_t b) { return std::max(a, b); });
    case Collective::kReduceMinSigned:
      return fold(first, [](int32_t a, int32_t b) { return std::min(a, b); });
    case Collective::kReduceMaxSigned:
      return fold(first, [](int32_t a, int32_t b) { return std::max(a, b); });
    case Collective::kReduceAnd: return fold(~0u, [](uint32_t a, uint32_t b) { return a & b; });
    case Collective::kReduceOr: return fold(0, [](uint32_t a, uint32_t b) { return a | b; });
    case Collective::kReduceXor: return fold(0, [](uint32_t a, uint32_t b) { return a ^ b; });
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

// Completes the operation in which `waiting` waits, once every lane of its mask either has ended or
// is there with the same operation and mask.
void TryCompleteWarp(Thread* waiting) {
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
      waiting->what >= Collective::kShuffle && waiting->what <= Collective::kShuffleXor;
  if (waiting->what == Collective::kWarpBarrier) JoinClocks(lanes);
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
           std::string(NameOf(lane->what)) + " reads lane " + std::to_string(from) +
               ", which takes no part in it",
           WhereThreadsAre());
    lane->result = (*source)->value;
  }
  for (Thread* lane : lanes) MakeReady(lane);
}

}  // namespace

void RetryWarpCollectives(const Thread& ended) {
  Scheduler& scheduler = TheScheduler();
  const unsigned base = ended.number / kWarp * kWarp;
  for (unsigned i = base; i < base + kWarp && i < scheduler.count; ++i) {
    if (scheduler.threads[i].state == Thread::State::kAtWarp)
      TryCompleteWarp(&scheduler.threads[i]);
  }
}

void FailStuck() {
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

int RunBlockCollective(Collective what, int value) {
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

uint64_t RunWarpCollective(Collective what, uint32_t mask, uint64_t value, int argument,
                           int width) {
  const Unwatched unwatched;
  Thread* const self = current;
  self->at = __builtin_return_address(0);
  if ((mask >> self->number % kWarp & 1) == 0)
    Fail(self->at, std::string(NameOf(what)) + " by a lane that its mask leaves out");
  if (width < 1 || width > static_cast<int>(kWarp) || (width & (width - 1)) != 0)
    Fail(self->at, std::string(NameOf(what)) + " with a width that is not a power of two up to 32");
  self->state = Thread::State::kAtWarp;
  self->what = what;
  self->mask = mask;
  self->value = value;
  self->argument = argument;
  self->width = width;
  TryCompleteWarp(self);
  SwitchToHost();

  return self->result;
}

float FmaRnFtz(float a, float b, float c) {
  const auto flush = [](float x) {
    return std::fabs(x) < std::numeric_limits<float>::min() ? std::copysign(0.0f, x) : x;
  };
  return flush(std::fma(flush(a), flush(b), flush(c)));
}

}  // namespace sluice::cuda_emulator
