#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>

namespace sluice {

// Hands values from one thread to another, in order. Thread-safe.
template <typename T>
class Handed {
 public:
  void Push(T value) {
    std::lock_guard lock(mu_);
    values_.push_back(std::move(value));
    changed_.notify_all();
  }
  // Waits for a value.
  T Pop() {
    std::unique_lock lock(mu_);
    changed_.wait(lock, [&] { return !values_.empty(); });
    T value = std::move(values_.front());
    values_.pop_front();
    return value;
  }
  // Pops values until `wanted` accepts one, and returns that one.
  template <typename Wanted>
  T PopUntil(Wanted wanted) {
    while (true) {
      if (T value = Pop(); wanted(value)) return value;
    }
  }

 private:
  std::mutex mu_;
  std::condition_variable changed_;
  std::deque<T> values_;
};

}  // namespace sluice
