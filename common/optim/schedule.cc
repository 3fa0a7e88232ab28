#include "common/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "common/base/status.h"

namespace sluice {
namespace {

double Constant(double, double) { return 1; }
double Cosine(double progress, double floor) {
  return floor + (1 - floor) / 2 * (1 + std::cos(std::numbers::pi * progress));
}

constexpr ScheduleRow kSchedules[] = {
    {"constant", "1 after the warm-up", Constant},
    {"cosine", "from 1 down to the floor at the last step, along half a cosine", Cosine},
};
constexpr absl::string_view kOptimizers[] = {"adamw"};

}  // namespace

double Schedule::Factor(int64_t step) const {
  if (step < warmup) return static_cast<double>(step + 1) / static_cast<double>(warmup);
  if (shape == nullptr) return 1;
  SLUICE_CHECK_MSG(total > 0 || shape(1, floor) > 0,
                   "a schedule that ends at 0 needs the number of its steps");

  const double span = static_cast<double>(std::max<int64_t>(1, total - warmup));
  return shape(std::clamp(static_cast<double>(step - warmup) / span, 0.0, 1.0), floor);
}

absl::Span<const ScheduleRow> ScheduleRows() { return kSchedules; }

const ScheduleRow* FindSchedule(absl::string_view name) {
  for (const ScheduleRow& row : kSchedules) {
    if (row.name == name) return &row;
  }
  return nullptr;
}

absl::Span<const absl::string_view> OptimizerNames() { return kOptimizers; }

}  // namespace sluice
