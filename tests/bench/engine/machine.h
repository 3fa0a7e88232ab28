#pragma once

namespace sluice::bench {

// Seconds of a clock that goes on, or of the CPU time of this process: what is left of timing where
// others use the cores, with one thread.
double Seconds();
void UseCpuTime();

// What this machine can do at best, by all `threads` at once; each takes some tens of milliseconds.
double ReadBandwidth(int threads);  // Bytes/s, over memory far beyond the caches.
double PeakFlops(int threads);      // fp32 multiply-adds in registers, 2 a piece.
double PeakFlopsBf16(int threads);  // By vdpbf16ps; where the CPU lacks it, as fp32.

}  // namespace sluice::bench
