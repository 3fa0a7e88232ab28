#pragma once

namespace sluice::bench {

// Returns the seconds of a monotonic clock or, after UseCpuTime(), the CPU time of this process.
// With one thread, CPU time is meaningful even if other processes use the cores.
double Seconds();
void UseCpuTime();

// Measure what this machine can do at best with `threads` threads. Each call takes some tens of
// milliseconds.
double ReadBandwidth(int threads);  // Bytes/s, over memory far beyond the caches.
double PeakFlops(int threads);      // fp32 operations in registers; a multiply-add is 2.
double PeakFlopsBf16(int threads);  // With vdpbf16ps; without it, PeakFlops().

}  // namespace sluice::bench
