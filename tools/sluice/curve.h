#pragma once

#include <string>
#include <vector>

namespace sluice::job::v1 {
class JobResult;
}

namespace sluice::cli {

// The terminal shows UTF-8, as the environment's locale says.
bool Utf8Terminal();

// Means over stretches of equal length, at most `points` of them.
std::vector<double> MeansOfStretches(const std::vector<double>& values, size_t points);

// One character per value, from least to greatest: ▁▂▃▄▅▆▇█, or _.-=# without UTF-8. A value that
// is not a number is a space.
std::string Sparkline(const std::vector<double>& values, bool utf8);

// The rows of a job's result that tell how its reward went, or its loss where nothing was scored:
//   reward  0.050 -> 0.080   best 0.330 (steps 120-126)   worst 0.040 (steps 0-6)
//   curve   ▁▂▃▅▇█▆▃▁▁   steps 0-399
// The second row is left out where there is one point or none.
std::vector<std::vector<std::string>> CurveRows(const job::v1::JobResult& result, bool utf8);

}  // namespace sluice::cli
