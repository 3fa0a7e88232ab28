#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace sluice {

// A few threads that compute together with their caller. A thread that waits spins for some tens of
// microseconds, about the time that one part of a step takes, and then sleeps.
//
// One thread calls Resize(), Run() and Offer(). Owns size() - 1 helper threads.
class Team {
 public:
  // `size` counts the calling thread. The other threads get the name `name`, which must outlive the
  // team.
  Team(int size, const char* name);
  ~Team();

  int size() const { return size_; }

  // Starts or ends threads. Call it between two calls of Run(). It costs some tens of microseconds
  // per thread.
  void Resize(int size);

  // Calls work(0) on this thread and work(1) .. work(size - 1) on the others. Returns when all have
  // returned. `work` must not throw: the threads that wait for each other in Share() could not go
  // on without one of them, so an exception ends the process.
  void Run(const std::function<void(int)>& work) noexcept;

  // Calls work(0) on this thread, and work(i) on each helper i that is awake before work(0) has
  // returned. It does not wait for the other helpers: on a machine that other programs use, a
  // thread that slept may come late. So `work` must take its work in pieces until none is left, and
  // be complete if only this thread runs it. If calls throw, one of their exceptions is thrown
  // again here, after all calls have ended.
  void Offer(const std::function<void(int)>& work);

  // Called inside a Run() by all its threads: calls unit(i) once for each i < n, on the thread that
  // is free next. Returns when all n are done.
  template <typename Unit>
  void Share(int64_t n, const Unit& unit) {
    for (int64_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < n;) unit(i);
    AwaitAll();
  }

 private:
  // A barrier: waits until all threads of the team have called it. Then the next unit of Share() is
  // 0 again.
  void AwaitAll();
  // The body of helper number `index`, which has seen round `seen`.
  void RunHelper(int index, uint32_t seen);
  // Called by a helper, to take part in the offer of round `round`. False: the offer is closed.
  bool EnterOffer(uint32_t round);
  // Calls work(index) as a part of an offer, and keeps an exception for its caller.
  void RunOfferedPart(const std::function<void(int)>& work, int index);

  const char* const name_;
  int size_ = 1;

  // Written before round_ changes, and read by the helpers of that round.
  const std::function<void(int)>* work_ = nullptr;
  int next_size_ = 1;  // Helpers with an index from this on end with the round.

  // Counts calls of Run() and Offer() in steps of 2; it is odd during and after an offer. All
  // helpers take part in a round of Run(), so none can miss one. A helper that comes late may miss
  // offers.
  std::atomic<uint32_t> round_{0};
  std::atomic<int> busy_{0};  // Helpers that are still in this round of Run().

  // The upper half is the round of the offer, the lower half the number of helpers that entered it.
  // kClosed: no helper may enter.
  static constexpr uint64_t kClosed = ~uint64_t{0};
  std::atomic<uint64_t> gate_{kClosed};
  std::atomic<int> finished_{0};  // Helpers that entered the offer and are done.

  std::mutex error_mu_;
  std::exception_ptr error_;  // The first exception in the offer; null if there is none.

  std::atomic<int64_t> next_{0};              // The next unit of Share().
  std::atomic<int> arrived_{0};               // Threads that wait in AwaitAll().
  std::atomic<uint32_t> barriers_passed_{0};  // Counts barriers that all threads passed.

  std::vector<std::thread> helpers_;
};

}  // namespace sluice
