#pragma once

#include <optional>

namespace sluice {

// Keeps what is freed for the next allocations, in a job whose steps allocate and free the same
// large buffers again and again. By default jemalloc gives such memory back to the system within
// 10 s, and the first write to memory that comes from the system costs many times as much as one to
// memory in use: a trainer whose steps took seconds spent a third of its CPU time on that.
//
// In a program without jemalloc it does nothing.
class ReusedMemory {
 public:
  ReusedMemory();
  // Gives what is free back to the system. What is freed later goes back as jemalloc's defaults
  // say.
  ~ReusedMemory();
  ReusedMemory(const ReusedMemory&) = delete;
  ReusedMemory& operator=(const ReusedMemory&) = delete;

  // The calling thread takes its memory from here from now on. Any thread may free it. The thread
  // must end before this object does, or call it for another object.
  void UseOnThisThread() const;

 private:
  std::optional<unsigned> arena_;  // jemalloc's index.
};

}  // namespace sluice
