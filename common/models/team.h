#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace sluice {

// A few threads that compute together with their caller. Those who wait spin for some microseconds,
// as long as a region of a step takes, then sleep. One caller at a time.
class Team {
 public:
  // `size` threads, the caller's own among them; the others are named `name`, which lives as long.
  Team(int size, const char* name);
  ~Team();

  int size() const { return size_; }

  // Starts or ends threads, between two calls of Run(). Costs some tens of microseconds for each.
  void Resize(int size);

  // Calls work(0) on this thread and work(1) .. work(size - 1) on the others; returns when all have
  // returned.
  void Run(const std::function<void(int)>& work);

  // Calls work() on this thread and on those of the others that come before it returns there, which
  // may be none: on a machine that others use a thread that slept may come late. For work that
  // whoever is there takes in pieces.
  void Offer(const std::function<void(int)>& work);

  // For all threads of a Run() alike: calls unit(i) once for each i < n, whoever is free next, and
  // returns when all n are done.
  template <typename Unit>
  void Share(int64_t n, const Unit& unit) {
    for (int64_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < n;) unit(i);
    Meet();
  }

 private:
  // Returns when all threads have come; nothing of the units is handed out then.
  void Meet();
  void Help(int index, uint32_t seen);
  // Whether a helper may still take part in the offer of round `round`.
  bool Enter(uint32_t round);

  const char* const name_;
  int size_ = 1;

  // Written before round_ moves on, read by the helpers of that round.
  const std::function<void(int)>* work_ = nullptr;
  int staying_ = 1;  // Helpers from this index on end with the round.

  // Counts calls of Run() and Offer() in steps of 2; odd during and after an offer. All helpers
  // take part in a round of Run(), so none can miss it; a helper that comes late may pass over
  // offers.
  std::atomic<uint32_t> round_{0};
  std::atomic<int> busy_{0};  // Helpers still in this round of Run().

  // Of an offer: its round, and how many helpers have entered; kClosed: none may enter.
  static constexpr uint64_t kClosed = ~uint64_t{0};
  std::atomic<uint64_t> gate_{kClosed};
  std::atomic<int> left_{0};  // Helpers that entered and are done.

  std::atomic<int64_t> next_{0};  // The next unit.
  std::atomic<int> arrived_{0};
  std::atomic<uint32_t> meetings_{0};  // Meetings that ended.

  std::vector<std::thread> helpers_;
};

}  // namespace sluice
