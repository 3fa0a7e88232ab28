#pragma once

#include <cstdint>
#include <functional>

#include "absl/functional/function_ref.h"

// Loops that the calling thread shares with helper threads of the process, named sluice-train.
// Where one loop runs already, another thread's loop runs on its caller alone.
namespace sluice {

// `threads` says how many threads a loop may use, its caller's own among them. It is asked before
// each loop. Until it is set, each loop runs on its caller alone.
void SetParallelThreads(std::function<int()> threads);

// Calls work(begin, end) for ranges that cover [0, n), each of at least `grain` but the last, one
// for each thread at most; returns when all have returned.
void ParallelFor(int64_t n, int64_t grain,
                 absl::FunctionRef<void(int64_t begin, int64_t end)> work);

// Calls work(i) once for each i < n, whichever thread is free next: for pieces of unequal size.
void ParallelEach(int64_t n, absl::FunctionRef<void(int64_t i)> work);

}  // namespace sluice
