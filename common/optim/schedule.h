#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace sluice {

// The factor of the learning rate at step s, the number of optimizer steps completed (from 0).
//   s < warmup:  (s + 1) / warmup, so that the first step is not zero
//   later:       the shape of the schedule
struct Schedule {
  int64_t warmup = 0;  // W, in steps.
  int64_t total = 0;   // S, in steps. The shape ends there. Must be above 0 if the shape needs it.
  double floor = 0;    // Factor at the end (cosine).
  // The factor after the warm-up, with progress = clip((s - W) / max(1, S - W), 0, 1). Null: 1.
  double (*shape)(double progress, double floor) = nullptr;

  // Aborts if a shape that ends at 0 has no total: all steps would then lie behind its end, and
  // nothing would be learned.
  double Factor(int64_t step) const;
};

struct ScheduleRow {
  absl::string_view name;
  absl::string_view doc;
  double (*shape)(double progress, double floor);

  // Whether the shape ends at a factor of 0 with floor 0, and so must know the last step.
  bool needs_total() const { return shape(1, 0) == 0; }
};
absl::Span<const ScheduleRow> ScheduleRows();             // constant, cosine
const ScheduleRow* FindSchedule(absl::string_view name);  // Null if unknown.

// The optimizers a job may name: adamw.
absl::Span<const absl::string_view> OptimizerNames();

}  // namespace sluice
