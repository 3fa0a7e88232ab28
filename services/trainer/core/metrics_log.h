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

// A step as the files about a run's history hold it.
struct StepRecord {
  int64_t step = 0;       // k: it trained batch k and made version k + 1.
  PolicyVersion version;  // The one it made.
  absl::Time at;
  std::map<std::string, double> values;  // Any names, slashes included; any numbers, NaN included.
  std::map<int64_t, int64_t> staleness;  // Trained tokens by staleness in versions.
};

// Seconds since 1970, to the microsecond.
double UnixSeconds(absl::Time time);

// The record as one JSON object, without a newline:
//   {"step":12,"version":13,"incarnation":1,"time":1763847000.25,"entropy":1.9,
//    "staleness":{"0":512}}
// `time` is in seconds since 1970. All values lie beside it under their names, except that one
// named like a key above is left out. A number that JSON does not have (NaN, infinity) is null.
std::string MetricsLine(const StepRecord& record);

// The file metrics.jsonl of a job: one line per step of the run that led to the present weights, in
// the order of the steps, so that it can be read as one table.
//
// A trainer that goes on from a checkpoint removes the lines of the steps that the checkpoint does
// not contain, because they are trained again. A line that a crash left unfinished at the end is
// removed too. Lines are not synced: a loss of power may take the newest ones.
//
// Not thread-safe. Where the job has two processes for a moment, that of the higher incarnation
// wins.
class MetricsLog {
 public:
  // What CutBack() found.
  struct Cut {
    int64_t last_step = -1;        // Of the last line that stays. -1: the file has none.
    int64_t steps = 0;             // Lines of steps that were removed.
    int64_t bytes_unreadable = 0;  // Removed besides: an unfinished line, or what is no step.
  };

  // Touches nothing yet.
  MetricsLog(std::string path, int64_t incarnation)
      : path_(std::move(path)), incarnation_(incarnation) {}

  // Removes what lies behind the last line of a step below `next`, the step that is trained next.
  // ABORTED: a trainer of a higher incarnation has written there.
  absl::StatusOr<Cut> CutBack(int64_t next);

  // Adds a line. After an error the line waits, with at most kMaxWaiting others, for the next call;
  // of more, the oldest ones are given up.
  // RESOURCE_EXHAUSTED: the disk is full. ABORTED: as above.
  absl::Status Append(const StepRecord& record);

  // Lines given up so far.
  int64_t lost() const { return lost_; }

  static constexpr size_t kMaxWaiting = 1000;

 private:
  absl::StatusOr<int64_t> FindKept(int fd, int64_t size, int64_t next, Cut* cut) const;

  const std::string path_;
  const int64_t incarnation_;

  // As the last call left the file. Another size means that somebody else has changed it, so that
  // it is cut back again. -1: not known.
  int64_t size_ = -1;
  std::deque<std::pair<int64_t, std::string>> waiting_;  // Step and line, oldest first.
  int64_t lost_ = 0;
};

}  // namespace sluice::trainer
