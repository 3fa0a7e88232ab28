#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace sluice {
class Clock;
}

namespace sluice::chat {

inline constexpr size_t kMaxSourceBytes = 1 << 20;
// Nesting of a template, of values, and of macro calls.
inline constexpr int kMaxDepth = 64;
// Levels of all active macros together: bounds the native stack.
inline constexpr int kMaxNesting = 1024;
// Statements and expressions run, list items made or looked at.
inline constexpr int64_t kMaxSteps = 1'000'000;
// Of output; and of all strings alive at one time, input not counted.
inline constexpr size_t kMaxTextBytes = 4 << 20;
inline constexpr int64_t kMaxRange = 100'000;
// Of the clock at hand: CPU time.
inline constexpr absl::Duration kMaxTime = absl::Milliseconds(200);

// How parsing and rendering fail inside this library: nearly every operation of a template can, so
// a failure is thrown, and turned into a Status where the library is entered (ChatTemplate::Compile
// and Render), nowhere else.
struct Failure {
  absl::StatusCode code;
  uint32_t at;  // Byte of the template's source.
  std::string what;
};

// The CPU time of the calling thread as Monotonic(); Now and Sleep are the machine's. A thread that
// waits for a core, or for anything else, uses none. Lives for ever.
Clock* ThreadCpuClock();

// What one rendering has used of its limits, and which place of the template it has reached.
class Meter {
 public:
  // Time is Monotonic()'s, from the first look on: a system call, which short renderings never come
  // to.
  explicit Meter(Clock* clock);
  Meter(const Meter&) = delete;

  uint32_t at = 0;  // Where a failure is reported.

  // One statement, expression or item; `n` of them.
  void Step(int64_t n = 1) {
    steps_ += n;
    if (steps_ > kMaxSteps) OutOfSteps();
    Work(n);
  }
  // Work that no step counts, such as bytes copied (64 to the unit): the clock is read every few
  // thousand units.
  void Work(int64_t units) {
    work_ -= units;
    if (work_ < 0) CheckTime();
  }
  void WorkOnBytes(size_t bytes) { Work(static_cast<int64_t>(bytes / 64)); }

  // Fails where a text would get longer than allowed.
  void CheckText(size_t bytes) const {
    if (bytes > kMaxTextBytes) OutOfText();
  }
  // Bytes of a string that begins or ends to live.
  void Take(size_t bytes) {
    if (bytes > kMaxTextBytes - live_) OutOfText();  // live_ never exceeds the limit.
    live_ += bytes;
  }
  void Give(size_t bytes) { live_ -= bytes; }

  // The template, or what it was given, is wrong.
  [[noreturn]] void Invalid(absl::string_view what) const;
  // Jinja has it, this library does not.
  [[noreturn]] void Unsupported(absl::string_view what) const;
  [[noreturn]] void Exceeded(absl::string_view what) const;  // A limit.
  [[noreturn]] void TooDeep() const;                         // A value, by kMaxDepth.

 private:
  friend class NestedIn;
  [[noreturn]] void OutOfSteps() const;
  [[noreturn]] void OutOfText() const;
  void CheckTime();

  Clock* const clock_;
  absl::Duration begin_ = absl::InfiniteDuration();  // Not looked yet.
  int64_t steps_ = 0;
  int64_t work_;
  size_t live_ = 0;
  int value_depth_ = 0;
};

// Counts the nesting of a value that is being read, for as long as it lives: a deep one is refused
// on the way down.
class NestedIn {
 public:
  explicit NestedIn(Meter& meter) : meter_(meter) {
    if (++meter.value_depth_ > kMaxDepth) {
      --meter.value_depth_;
      meter.TooDeep();
    }
  }
  ~NestedIn() { --meter_.value_depth_; }

 private:
  Meter& meter_;
};

}  // namespace sluice::chat
