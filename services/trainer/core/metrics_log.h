#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/rl/version.h"

namespace sluice::trainer {

// One step, as it is recorded in metrics.jsonl and in TensorBoard's event files.
struct StepRecord {
  int64_t step = 0;       // k: the step trained batch k and produced version k + 1.
  PolicyVersion version;  // The version that the step produced.
  absl::Time at;
  // Names may contain slashes; values may be NaN or infinite.
  std::map<std::string, double> values;
  std::map<int64_t, int64_t> staleness;  // Number of trained tokens by staleness in versions.
};

// Seconds since 1970, to the microsecond.
double UnixSeconds(absl::Time time);

// Formats the record as one JSON object, without a newline:
//   {"step":12,"version":13,"incarnation":1,"time":1763847000.25,"entropy":1.9,
//    "staleness":{"0":512}}
// `time` is in seconds since 1970. Each value is a key of its own; a value whose name is one of the
// fixed keys is left out. A number that JSON cannot express (NaN, infinity) is null.
std::string MetricsLine(const StepRecord& record);

// The file metrics.jsonl of a job. It has one line for each step of the run that led to the present
// weights, in the order of steps, so it can be read as one table.
//
// A trainer that goes on from a checkpoint removes the lines of steps that the checkpoint does not
// contain, because it trains them again. It also removes an incomplete line that a crash left at
// the end. Lines are not synced to disk, so a loss of power may lose the newest ones.
//
// Not thread-safe. If two trainer processes of a job run for a moment, the one with the higher
// incarnation wins.
class MetricsLog {
 public:
  // What CutBack() found.
  struct Cut {
    int64_t last_step = -1;  // Step of the last line that was kept; -1 if the file has none.
    int64_t steps = 0;       // Number of lines of steps that were removed.
    // Other bytes that were removed: an incomplete line, or lines that are no steps.
    int64_t bytes_unreadable = 0;
  };

  // Does not touch the disk yet.
  MetricsLog(std::string path, int64_t incarnation)
      : path_(std::move(path)), incarnation_(incarnation) {}

  // Removes everything after the last line of a step below `next`, the step that is trained next.
  // ABORTED: a trainer of a higher incarnation has written to the file.
  absl::StatusOr<Cut> CutBack(int64_t next);

  // Adds a line. After an error the line waits for the next call, together with at most kMaxWaiting
  // others; if there are more, the oldest are given up.
  // RESOURCE_EXHAUSTED: the disk is full.
  // ABORTED: a trainer of a higher incarnation has written to the file.
  absl::Status Append(const StepRecord& record);

  // Number of lines that were given up so far.
  int64_t lines_lost() const { return lost_; }

  static constexpr size_t kMaxWaiting = 1000;

 private:
  // Returns the size to which CutBack(next) cuts the file, and sets *cut.
  absl::StatusOr<int64_t> FindKept(int fd, int64_t size, int64_t next, Cut* cut) const;

  const std::string path_;
  const int64_t incarnation_;

  // Size of the file after the last call; -1 if unknown. If the file has another size now, somebody
  // else has changed it, and it is cut back again.
  int64_t size_ = -1;
  std::deque<std::pair<int64_t, std::string>> waiting_;  // Step and line, oldest first.
  int64_t lost_ = 0;
};

}  // namespace sluice::trainer
