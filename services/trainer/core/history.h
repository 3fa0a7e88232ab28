#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "services/trainer/core/event_file.h"
#include "services/trainer/core/metrics_log.h"

namespace sluice::trainer {

// What a run leaves behind of each of its steps, in the folder of its checkpoints:
//   metrics.jsonl  one line per step (metrics_log.h)
//   tensorboard/   event files, one per incarnation of the trainer (event_file.h)
//
// Training never fails for it. What cannot be written is warned of when it begins and again when it
// is over, not at each step.
//
// Not thread-safe.
class History {
 public:
  using Warn = std::function<void(const std::string& text)>;

  // Touches nothing yet.
  History(const std::string& dir, int64_t incarnation, Warn warn);

  // The trainer goes on with step `next`: lines of that step and of later ones are removed.
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
