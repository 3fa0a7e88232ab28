#pragma once

#include <cstdint>
#include <functional>

#include "absl/functional/function_ref.h"

// Loops whose work the calling thread shares with helper threads, named sluice-train. The whole
// process has one set of helpers, and one loop at a time uses them. A loop that another thread
// starts meanwhile runs on its calling thread alone. If a call of `work` throws, the loop throws
// one such exception after all calls that had begun have ended; some calls may then never begin.
namespace sluice {

// Sets the function that says how many threads a loop may use, the calling thread included. It is
// called before each loop. Until it is set, every loop runs on its calling thread alone.
void SetParallelThreads(std::function<int()> threads);

// Splits [0, n) into ranges of equal length (the last may be shorter), calls work(begin, end) for
// each, and returns when all calls have returned. There are at most as many ranges as threads, and
// at most n / grain, rounded up, so that no range is much shorter than `grain`.
void ParallelFor(int64_t n, int64_t grain,
                 absl::FunctionRef<void(int64_t begin, int64_t end)> work);

// Calls work(i) once for each i < n. A thread that is free takes the next i, so the pieces may
// differ in size.
void ParallelEach(int64_t n, absl::FunctionRef<void(int64_t i)> work);

}  // namespace sluice
