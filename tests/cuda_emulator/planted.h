#pragma once

#include <cstdint>
#include <vector>

// Kernels that test the emulator: each can run with a planted fault and without it.
namespace sluice::cuda_emulator {

// One small kernel; run(true) plants the fault in it.
struct Planted {
  const char* name;
  void (*run)(bool faulty);
  const char* report;  // A regular expression that the report of the fault matches.
};
std::vector<Planted> AllPlanted();

// Sums each of `blocks` equal parts of x, with `threads` threads per part: a tree in shared memory,
// then shuffles, then an atomic. `blocks` must divide the length of x.
std::vector<int64_t> SumsOfParts(const std::vector<int32_t>& x, int blocks, int threads);
// Returns for each number how many numbers of its block of `threads` come before it in sorted
// order; of equal numbers, the one at the lower place comes first. Uses votes and a scan of
// shuffles.
std::vector<int> RanksInBlocks(const std::vector<int32_t>& x, int threads);

// Returns what cudaGetLastError() returns after a launch of this size.
int ErrorOfLaunch(unsigned blocks, unsigned threads);

}  // namespace sluice::cuda_emulator
