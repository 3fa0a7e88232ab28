#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace sluice {

// Factor of the learning rate at step s = optimizer steps completed (from 0).
//   s < warmup:  (s + 1) / warmup, so that the first step is not zero
//   later:       the schedule's own shape
struct Schedule {
  int64_t warmup = 0;  // W, steps
  int64_t total = 0;   // S, steps; cosine reaches its floor there. Above 0 if the shape needs it.
  double floor = 0;    // f_min
  // progress = clip((s - W) / max(1, S - W), 0, 1)
  double (*shape)(double progress, double floor) = nullptr;

  // Aborts where a shape that ends at 0 has no total: all its steps would lie behind its end, and
  // nothing would ever be learned.
  double Factor(int64_t step) const;
};

struct ScheduleRow {
  absl::string_view name;
  absl::string_view doc;
  double (*shape)(double progress, double floor);

  // Whether it ends at a factor of 0, and so needs to know the last step.
  bool needs_total() const { return shape(1, 0) == 0; }
};
absl::Span<const ScheduleRow> ScheduleRows();             // constant, cosine
const ScheduleRow* FindSchedule(absl::string_view name);  // Null: unknown.

// The optimizers a job may name: adamw.
absl::Span<const absl::string_view> OptimizerNames();

}  // namespace sluice
