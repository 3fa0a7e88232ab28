#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "services/trainer/core/event_file.h"
#include "services/trainer/core/metrics_log.h"

namespace sluice::trainer {

// Writes what a run records about each of its steps, into the folder of its checkpoints:
//   metrics.jsonl  one line per step (metrics_log.h)
//   tensorboard/   event files, one per incarnation of the trainer (event_file.h)
//
// Training goes on if a file cannot be written. There is a warning when this begins and another
// when it is over, instead of one at each step.
//
// Not thread-safe.
class History {
 public:
  using Warn = std::function<void(const std::string& text)>;

  // Does not touch the disk yet. `warn` gets each warning, on the thread that calls.
  History(const std::string& dir, int64_t incarnation, Warn warn);

  // Call it before the first Append(). The trainer goes on with step `next`, so the lines of that
  // step and of later ones are removed.
  void Begin(int64_t next);
  void Append(const StepRecord& record);

 private:
  void WarnOfChange(const std::string& path, const absl::Status& status, absl::string_view after,
                    bool* failing);

  const std::string metrics_path_;
  const Warn warn_;
  MetricsLog metrics_;
  EventFile events_;
  bool metrics_failing_ = false;
  bool events_failing_ = false;
};

}  // namespace sluice::trainer
