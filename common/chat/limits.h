#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/status.h"

namespace sluice {
class Clock;
}

namespace sluice::chat {

inline constexpr size_t kMaxSourceBytes = 1 << 20;
// Deepest nesting of a template, of values, and of macro calls.
inline constexpr int kMaxDepth = 64;
// Each active macro call has as many levels as its statements and expressions are nested. Their sum
// is limited, because the interpreter uses the native stack for each level.
inline constexpr int kMaxNesting = 1024;
// Statements and expressions that are run, and list items that are made or looked at.
inline constexpr int64_t kMaxSteps = 1'000'000;
// Bytes of output; and bytes of all strings alive at one time, without the input.
inline constexpr size_t kMaxTextBytes = 4 << 20;
inline constexpr int64_t kMaxRange = 100'000;
// On the clock of the Meter: CPU time.
inline constexpr absl::Duration kMaxTime = absl::Milliseconds(200);

// Failures inside this library are exceptions, because nearly every operation of a template can
// fail. ChatTemplate::Compile() and Render() turn them into a Status; nothing else catches them.
struct Failure {
  absl::StatusCode code;
  uint32_t at;  // Byte offset in the template's source.
  std::string what;
};

// A clock whose Monotonic() is the CPU time of the calling thread; Now() and Sleep() are the real
// ones. A thread that waits, for a core or anything else, uses no CPU time. Never destroyed.
Clock* ThreadCpuClock();

// What one rendering has used of its limits, and its current place in the template. Used by one
// thread.
class Meter {
 public:
  // The limit of time counts on `clock`->Monotonic(), from its first reading. Reading it is a
  // system call, which short renderings never need.
  explicit Meter(Clock* clock);
  Meter(const Meter&) = delete;

  uint32_t at = 0;  // Place where a failure would be reported.

  // Counts `n` statements, expressions or items.
  void Step(int64_t n = 1) {
    steps_ += n;
    if (steps_ > kMaxSteps) OutOfSteps();
    Work(n);
  }
  // Counts work that is not a step, such as copied bytes (64 per unit). The clock is read every few
  // thousand units.
  void Work(int64_t units) {
    work_left_ -= units;
    if (work_left_ < 0) CheckTime();
  }
  void WorkOnBytes(size_t bytes) { Work(static_cast<int64_t>(bytes / 64)); }

  // Fails if a text of this size would be too long.
  void CheckText(size_t bytes) const {
    if (bytes > kMaxTextBytes) OutOfText();
  }
  // These count the bytes of a string when it is created and when it is freed.
  void AddLiveBytes(size_t bytes) {
    if (bytes > kMaxTextBytes - live_bytes_) OutOfText();  // live_bytes_ never exceeds the limit.
    live_bytes_ += bytes;
  }
  void SubtractLiveBytes(size_t bytes) {
    SLUICE_CHECK(bytes <= live_bytes_);
    live_bytes_ -= bytes;
  }

  // Fails: the template, or its input, is wrong.
  [[noreturn]] void Invalid(absl::string_view what) const;
  // Fails: Jinja has this, but it is not built.
  [[noreturn]] void Unsupported(absl::string_view what) const;
  [[noreturn]] void Exceeded(absl::string_view what) const;  // Fails: a limit is exceeded.
  [[noreturn]] void TooDeep() const;  // Fails: a value is nested deeper than kMaxDepth.

 private:
  friend class NestedIn;
  [[noreturn]] void OutOfSteps() const;
  [[noreturn]] void OutOfText() const;
  void CheckTime();

  Clock* const clock_;
  absl::Duration begin_ = absl::InfiniteDuration();  // Infinite until the clock is read.
  int64_t steps_ = 0;
  // Units left until the clock is read.
  int64_t work_left_;
  // Bytes of strings alive now.
  size_t live_bytes_ = 0;
  int value_depth_ = 0;
};

// Counts the nesting of a value while it is read, for as long as this object exists. A value that
// is too deep is refused on the way down.
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
