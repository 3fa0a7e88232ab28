#include "services/trainer/core/history.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace sluice::trainer {

History::History(const std::string& dir, int64_t incarnation, Warn warn)
    : metrics_path_(absl::StrCat(dir, "/metrics.jsonl")),
      warn_(std::move(warn)),
      metrics_(metrics_path_, incarnation),
      events_(absl::StrCat(dir, "/tensorboard"), incarnation) {}

void History::Begin(int64_t next) {
  const absl::StatusOr<MetricsLog::Cut> cut = metrics_.CutBack(next);
  if (!cut.ok()) return WarnOfChange(metrics_path_, cut.status(), "", &metrics_failing_);

  if (cut->last_step != next - 1) {
    warn_(absl::StrCat(metrics_path_, " lacks steps ", cut->last_step + 1, " to ", next - 1,
                       ", which are trained already"));
  }
}

void History::Append(const StepRecord& record) {
  const int64_t lost = metrics_.lines_lost();
  const absl::Status metrics = metrics_.Append(record);
  WarnOfChange(metrics_path_, metrics,
               metrics_.lines_lost() > 0
                   ? absl::StrCat(metrics_.lines_lost(), " steps are missing in it")
                   : "no step is missing in it",
               &metrics_failing_);
  if (lost == 0 && metrics_.lines_lost() > 0) {
    warn_(absl::StrCat(metrics_path_, " could not be written for ", MetricsLog::kMaxWaiting,
                       " steps; the oldest of them are given up from now on"));
  }

  WarnOfChange(events_.path(), events_.Append(record),
               "the steps that were trained meanwhile are missing in it", &events_failing_);
}

// Warns when writing begins to fail, and when it works again.
void History::WarnOfChange(const std::string& path, const absl::Status& status,
                           absl::string_view after, bool* failing) {
  const bool failed = *failing;
  *failing = !status.ok();
  if (*failing && !failed) {
    warn_(absl::StrCat(status.message(), "; training goes on without ", path,
                       " until it can be written"));
  } else if (failed && !*failing) {
    warn_(absl::StrCat(path, " can be written again; ", after));
  }
}

}  // namespace sluice::trainer
