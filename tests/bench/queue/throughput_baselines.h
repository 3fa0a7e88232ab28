#pragma once

#include <cstddef>

// What the queue's throughput is measured against, in the same run. Seconds for `bytes`, and CPU
// seconds of all that took part.
namespace sluice::bench {

struct Cost {
  double seconds = 0, cpu_seconds = 0;
};

// memcpy of warm memory, in one thread.
Cost CopyMemory(size_t bytes);
// One TCP connection on loopback, from one thread to another, by megabytes.
Cost SendTcp(size_t bytes);

// What one writes first: unary calls whose messages hold all fields of a sample as repeated
// protobuf bytes, kept as they came in a std::map. Its server is a process of its own
// (`--naive-server`).
struct NaiveCost {
  Cost put, get;
};
NaiveCost NaiveQueue(size_t samples, size_t fields, size_t field_bytes);
int NaiveServer();

}  // namespace sluice::bench
