#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/bench/private_run.h"

namespace sluice::bench {

// The part of a run that is measured: steps in the middle, from the report of one step to that of a
// later one.
struct Window {
  // The report with which the window begins, and those of the steps in it.
  std::vector<job::v1::StepReport> steps;
  // What the daemons had used when the first and when the last of these reports arrived.
  std::vector<DaemonUse> begin, end;
  // Numbers of tokens of the answers that the window's steps trained on, without their prompts.
  std::vector<double> answer_tokens;
};

// Returns the figures of a window by name. Needs at least two reports in it.
std::map<std::string, double> MeasureWindow(const Window& window);
// The unit of a figure. For shares that come from a metric it also has the metric's name.
std::string UnitOf(const std::string& figure);

}  // namespace sluice::bench
