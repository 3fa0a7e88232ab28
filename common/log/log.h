#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

// Logs are JSON lines on stderr. Each line is one event with its fields, as this example, which is
// broken in two to fit. A line that is written in a trace (base/trace.h) ends with its `trace_id`.
//   {"ts":"2026-01-02T03:04:05.678Z","level":"info","daemon":"queue-0","job_id":"digits",
//    "event":"batch_cut","k":12}
namespace sluice::log {

enum class Level { kDebug, kInfo, kWarning, kError };

// The value of a field: a text, a number or a truth value.
class Value {
 public:
  Value(bool value) : value_(value) {}
  template <std::signed_integral T>
  Value(T value) : value_(static_cast<int64_t>(value)) {}
  template <std::unsigned_integral T>
    requires(!std::same_as<T, bool>)
  Value(T value) : value_(static_cast<uint64_t>(value)) {}
  template <std::floating_point T>
  Value(T value) : value_(static_cast<double>(value)) {}
  Value(const char* value) : value_(std::string(value)) {}
  Value(const std::string& value) : value_(value) {}
  Value(absl::string_view value) : value_(std::string(value)) {}
  Value(std::string_view value) : value_(std::string(value)) {}
  // A status becomes code, message and reason: "ABORTED: incarnation 2 < 3 (FENCED)".
  Value(const absl::Status& status);

  const std::variant<bool, int64_t, uint64_t, double, std::string>& variant() const {
    return value_;
  }

 private:
  std::variant<bool, int64_t, uint64_t, double, std::string> value_;
};

struct Field {
  absl::string_view key;
  Value value;
};

// Sets the daemon's name for every line, and the lowest level that is written (WriteAudit() writes
// at each). Until then they are
// "" and info. Call it once, before other threads start.
void Init(absl::string_view daemon, Level lowest);
// Sets `level`, or returns false if `text` is none of debug, info, warning, error.
bool ParseLevel(absl::string_view text, Level* level);
// Whether lines of this level are written.
bool Enabled(Level level);

// Writes one line, if its level is enabled. A field `job_id` comes right before the event, the
// other fields after it. Bytes that are not UTF-8 are replaced. Thread-safe: lines do not mix.
//
// A line with a `job_id` is also kept in memory for a while, for `sluice job logs` (job_lines.h).
void Write(Level level, absl::string_view event, std::initializer_list<Field> fields = {});

inline void Debug(absl::string_view event, std::initializer_list<Field> fields = {}) {
  if (Enabled(Level::kDebug)) Write(Level::kDebug, event, fields);
}
inline void Info(absl::string_view event, std::initializer_list<Field> fields = {}) {
  Write(Level::kInfo, event, fields);
}
inline void Warning(absl::string_view event, std::initializer_list<Field> fields = {}) {
  Write(Level::kWarning, event, fields);
}
inline void Error(absl::string_view event, std::initializer_list<Field> fields = {}) {
  Write(Level::kError, event, fields);
}

// Writes a line of the job with this id (32 hex digits), whichever name its `job_id` has. For a
// process that knows many jobs of one name.
void WriteFor(absl::string_view job, Level level, absl::string_view event,
              std::initializer_list<Field> fields = {});

// Writes an event `audit`: who has asked for a change, and how that ended. Its level is info, but
// it is written whatever the lowest level is, so that no setting ends the record of who did what.
// `job` is the id of the job whose line it is, as for WriteFor(). If it is empty, and there is no
// field `job_id`, it is no job's.
void WriteAudit(absl::string_view job, std::initializer_list<Field> fields);

// The line that Write() would write, without the newline and with `ts` as its time, in a trace of
// this id, or in none if it is empty. For tests.
std::string FormatLine(absl::string_view ts, Level level, absl::string_view daemon,
                       absl::string_view event, std::initializer_list<Field> fields,
                       absl::string_view trace_id = "");

}  // namespace sluice::log
