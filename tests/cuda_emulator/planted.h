#pragma once

#include <cstdint>
#include <vector>

// Kernels with a fault planted in each, and the same without it: what the emulator is tested with.
namespace sluice::cuda_emulator {

// Each runs one small kernel; `faulty` plants the fault.
struct Planted {
  const char* name;
  void (*run)(bool faulty);
  const char* report;  // A regular expression that the report of the fault matches.
};
std::vector<Planted> AllPlanted();

// Sums of `blocks` equal parts of x, whose length they divide, by `threads` threads each: a tree in
// shared memory, then shuffles, then an atomic.
std::vector<int64_t> SumsOfParts(const std::vector<int32_t>& x, int blocks, int threads);
// For each number, how many numbers of its block of `threads` come before it in order, of equal
// ones those at lower places: by votes and a scan of shuffles.
std::vector<int> RanksInBlocks(const std::vector<int32_t>& x, int threads);

// What cudaGetLastError() says of a launch of so many.
int ErrorOfLaunch(unsigned blocks, unsigned threads);

}  // namespace sluice::cuda_emulator
