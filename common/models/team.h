#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace sluice {

// A few threads that compute together with their caller. Those who wait spin for some microseconds, as long as a region of a
// step takes, then sleep. One caller at a time.
class Team {
 public:
  // `size` threads, the caller's own among them; the others are named `name`, which lives as long.
  Team(int size, const char* name);
  ~Team();

  int size() const { return size_; }

  // Starts or ends threads, between two calls of Run(). Costs some tens of microseconds for each.
  void Resize(int size);

  // Calls work(0) on this thread and work(1) .. work(size - 1) on the others; returns when all have returned.
  void Run(const std::function<void(int)>& work);

  // For all threads of a Run() alike: calls unit(i) once for each i < n, whoever is free next, and returns when all n are done.
  template <typename Unit>
  void Share(int64_t n, const Unit& unit) {
    for (int64_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < n;) unit(i);
    Meet();
  }

 private:
  // Returns when all threads have come; nothing of the units is handed out then.
  void Meet();
  void Help(int index, uint32_t seen);

  const char* const name_;
  int size_ = 1;

  // Written before round_ moves on, read by the helpers of that round.
  const std::function<void(int)>* work_ = nullptr;
  int staying_ = 1;  // Helpers from this index on end with the round.

  std::atomic<uint32_t> round_{0};  // Counts calls of Run().
  std::atomic<int> busy_{0};                        // Helpers still in this round.

  std::atomic<int64_t> next_{0};       // The next unit.
  std::atomic<int> arrived_{0};
  std::atomic<uint32_t> meetings_{0};  // Meetings that ended.

  std::vector<std::thread> helpers_;
};

}  // namespace sluice
