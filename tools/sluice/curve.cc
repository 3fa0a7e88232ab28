#include "tools/sluice/curve.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "sluice/job/v1/job.pb.h"

namespace sluice::cli {
namespace {

std::string StepsText(int64_t first, int64_t last) {
  return first == last ? absl::StrCat("step ", first) : absl::StrCat("steps ", first, "-", last);
}

}  // namespace

bool Utf8Terminal() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    const std::string lower = absl::AsciiStrToLower(value);
    return absl::StrContains(lower, "utf-8") || absl::StrContains(lower, "utf8");
  }
  return false;
}

std::vector<double> MeansOfStretches(const std::vector<double>& values, size_t points) {
  points = std::min(points, values.size());
  std::vector<double> means(points);
  for (size_t i = 0; i < points; ++i) {
    const size_t from = i * values.size() / points, to = (i + 1) * values.size() / points;
    for (size_t j = from; j < to; ++j) means[i] += values[j] / static_cast<double>(to - from);
  }
  return means;
}

std::string Sparkline(const std::vector<double>& values, bool utf8) {
  static constexpr const char* kBlocks[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  static constexpr const char* kAscii[] = {"_", ".", "-", "=", "#"};
  double least = std::numeric_limits<double>::infinity(), most = -least;
  for (const double value : values) {
    if (!std::isfinite(value)) continue;
    least = std::min(least, value);
    most = std::max(most, value);
  }

  const int levels = utf8 ? 8 : 5;
  std::string line;
  for (const double value : values) {
    if (!std::isfinite(value)) {
      line += ' ';
      continue;
    }
    const double share = most > least ? (value - least) / (most - least) : 0;
    const int level = std::min(levels - 1, static_cast<int>(share * levels));
    line += utf8 ? kBlocks[level] : kAscii[level];
  }
  return line;
}

std::vector<std::vector<std::string>> CurveRows(const job::v1::JobResult& result, bool utf8) {
  const auto& curve = result.curve();

  // A job that scores nothing (supervised training) has a loss only.
  const bool has_reward =
      std::any_of(curve.begin(), curve.end(),
                  [](const job::v1::CurvePoint& point) { return !std::isnan(point.reward()); });
  const bool has_loss =
      std::any_of(curve.begin(), curve.end(),
                  [](const job::v1::CurvePoint& point) { return !std::isnan(point.loss()); });
  const bool by_loss = !has_reward && has_loss;
  const auto value = [&](const job::v1::CurvePoint& point) {
    return by_loss ? point.loss() : point.reward();
  };

  double first = result.reward_first(), last = result.reward_last();
  if (by_loss) first = curve.begin()->loss(), last = curve.rbegin()->loss();
  std::string text = std::isnan(last) ? "none" : absl::StrFormat("%.3f -> %.3f", first, last);

  const auto add_extreme = [&](const char* name, const job::v1::CurvePoint& point) {
    absl::StrAppend(&text, "   ", name, absl::StrFormat(" %.3f", value(point)), " (",
                    StepsText(point.first_step(), point.last_step()), ")");
  };
  if (result.has_best()) add_extreme("best", result.best());
  if (result.has_worst()) add_extreme("worst", result.worst());

  std::vector<std::vector<std::string>> rows = {{by_loss ? "loss" : "reward", text}};
  if (curve.size() < 2 || (!has_reward && !has_loss)) return rows;
  std::vector<double> values;
  for (const job::v1::CurvePoint& point : curve) values.push_back(value(point));
  rows.push_back(
      {"curve", absl::StrCat(Sparkline(values, utf8), "   ",
                             StepsText(curve.begin()->first_step(), curve.rbegin()->last_step()))});
  return rows;
}

}  // namespace sluice::cli
