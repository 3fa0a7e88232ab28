#pragma once

#include <string>
#include <vector>

namespace sluice::job::v1 {
class JobResult;
}

namespace sluice::cli {

// Whether the environment's locale says that the terminal shows UTF-8.
bool Utf8Terminal();

// Splits the values into at most `points` stretches of nearly equal length and returns the mean of
// each.
std::vector<double> MeansOfStretches(const std::vector<double>& values, size_t points);

// Draws one character per value, from lowest to highest: ▁▂▃▄▅▆▇█, or _.-=# without UTF-8. A value
// that is not finite becomes a space.
std::string Sparkline(const std::vector<double>& values, bool utf8);

// Returns the rows of a job's result that show the course of the reward, or of the loss if nothing
// was scored:
//   reward  0.050 -> 0.080   best 0.330 (steps 120-126)   worst 0.040 (steps 0-6)
//   curve   ▁▂▃▅▇█▆▃▁▁   steps 0-399
// The second row is left out if there are fewer than two points.
std::vector<std::vector<std::string>> CurveRows(const job::v1::JobResult& result, bool utf8);

}  // namespace sluice::cli
