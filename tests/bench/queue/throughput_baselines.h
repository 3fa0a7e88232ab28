#pragma once

#include <cstddef>

// The baselines of the queue's throughput, measured in the same run. A cost is the seconds that
// `bytes` take, with the CPU seconds of all threads and processes that took part.
namespace sluice::bench {

struct Cost {
  double seconds = 0, cpu_seconds = 0;
};

// Copies warm memory with memcpy, in one thread.
Cost CopyMemory(size_t bytes);
// Sends over one TCP connection on loopback, from one thread to another, in pieces of megabytes.
Cost SendTcp(size_t bytes);

// The queue that one would write first: unary calls, whose messages hold all fields of a sample as
// repeated protobuf bytes, and a std::map that keeps them as they came. The server is a process of
// its own (`--naive-server`).
struct NaiveCost {
  Cost put, get;
};
NaiveCost NaiveQueue(size_t samples, size_t fields, size_t field_bytes);
int NaiveServer();

}  // namespace sluice::bench
