#pragma once

#include <cstdint>

namespace sluice::math {

// Counts the work of one comparison, so that no input can make it long. A step takes at most about
// 50 ns; whoever does more work than that in one go pays for all of it first.
//
// Once the budget is spent it stays spent, and every caller gives up. Not thread-safe.
class Budget {
 public:
  static constexpr int64_t kSteps = 1'000'000;
  static constexpr int kDepth = 64;               // Of brackets, braces and functions in a formula.
  static constexpr int64_t kRationalBits = 1e5;   // Of a numerator, denominator or power.
  static constexpr int kDigits = 1000;            // Of a number as it is written.
  static constexpr int kAnswerBytes = 2000;       // Of an answer, after its extraction.
  static constexpr int64_t kTextBytes = 4 << 20;  // Of a response.

  explicit Budget(int64_t steps = kSteps) : steps_(steps) {}

  // Pays for work that is about to be done. Returns false if the work must not be done.
  bool Spend(int64_t steps) {
    used_ += steps;
    if (used_ > steps_) spent_ = true;
    return !spent_;
  }
  // Gives up because something is larger than the limits above. Returns false.
  bool GiveUp() {
    spent_ = true;
    return false;
  }
  bool spent() const { return spent_; }
  int64_t used() const { return used_; }

 private:
  const int64_t steps_;
  int64_t used_ = 0;
  bool spent_ = false;
};

}  // namespace sluice::math
