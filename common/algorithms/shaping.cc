#include "common/algorithms/shaping.h"

#include <algorithm>
#include <cmath>

namespace sluice {

double SoftOverlong(int64_t tokens, int64_t max_response, int64_t buffer, double penalty) {
  if (buffer <= 0) return 0;
  const double over = static_cast<double>(tokens - (max_response - buffer));
  return std::clamp(-over / static_cast<double>(buffer) * penalty, -penalty, 0.0);
}

GroupSignal SignalOf(absl::Span<const double> task_rewards) {
  if (task_rewards.size() < 2) return GroupSignal::kSingle;
  double mean = 0, squares = 0;
  for (double r : task_rewards) mean += r / static_cast<double>(task_rewards.size());
  for (double r : task_rewards) squares += (r - mean) * (r - mean);
  if (std::sqrt(squares / static_cast<double>(task_rewards.size() - 1)) > 1e-6)
    return GroupSignal::kSignal;
  if (std::abs(mean) <= 1e-6) return GroupSignal::kAllZero;
  if (std::abs(mean - 1) <= 1e-6) return GroupSignal::kAllOne;
  return GroupSignal::kAllEqual;
}

const char* GroupSignalName(GroupSignal signal) {
  switch (signal) {
    case GroupSignal::kSignal: return "signal";
    case GroupSignal::kSingle: return "single";
    case GroupSignal::kAllZero: return "all_zero";
    case GroupSignal::kAllOne: return "all_one";
    case GroupSignal::kAllEqual: return "all_equal";
  }
  return "";
}

}  // namespace sluice
