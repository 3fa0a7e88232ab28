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
// Sends over one TCP connection on loopback, from one thread to another, in pieces of 1 MiB.
Cost SendTcp(size_t bytes);

// A naive queue, as a first version would be: unary calls, whose messages contain all fields of a
// sample as repeated protobuf bytes, and a std::map that keeps the messages as they are. The server
// is a process of its own, which runs NaiveServer() (`--naive-server`).
struct NaiveCost {
  Cost put, get;
};
NaiveCost NaiveQueue(size_t samples, size_t fields, size_t field_bytes);
int NaiveServer();

}  // namespace sluice::bench
