#include "services/controller/ui/steps.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"

namespace sluice::controller {
namespace {

// The values that the page draws. Others would only make the answer larger.
bool IsDrawn(absl::string_view name) {
  constexpr absl::string_view kNames[] = {
      "reward_mean",    "reward_std", "entropy", "kl",         "loss",
      "grad_norm",      "lr",         "tokens",  "flat_share", "staleness_max",
      "staleness_mean", "skipped"};
  return absl::StartsWith(name, "seconds_") || name == "eval/score" ||
         std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
}

// Rounded to the digits that a curve can show, which shortens the answer.
double RoundForCurve(double value) {
  double rounded = 0;
  return absl::SimpleAtod(absl::StrFormat("%.5g", value), &rounded) ? rounded : value;
}

}  // namespace

StepCursor StepCursor::Parse(absl::string_view text) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, '.');
  StepCursor cursor;
  if (parts.size() != 3 || !absl::SimpleAtoi(parts[1], &cursor.rewrites) ||
      !absl::SimpleAtoi(parts[2], &cursor.after) || cursor.rewrites < 0 || cursor.after < -1)
    return {};
  cursor.run = std::string(parts[0]);
  return cursor;
}

std::string StepCursor::ToText() const { return absl::StrCat(run, ".", rewrites, ".", after); }

StepCursor Follow(StepCursor cursor, const std::string& run,
                  const std::vector<int64_t>& rewritten_from) {
  const int64_t rewrites = static_cast<int64_t>(rewritten_from.size());
  if (cursor.run != run || cursor.rewrites > rewrites) return {.run = run, .rewrites = rewrites};
  for (; cursor.rewrites < rewrites; ++cursor.rewrites) {
    const int64_t first = rewritten_from[static_cast<size_t>(cursor.rewrites)];
    cursor.after = std::max<int64_t>(-1, std::min(cursor.after, first - 1));
  }
  return cursor;
}

nlohmann::ordered_json ColumnsOf(const std::vector<StepReport>& steps) {
  nlohmann::ordered_json k = nlohmann::ordered_json::array(), at = k;
  std::map<std::string, nlohmann::ordered_json> values;
  for (const StepReport& step : steps) {
    for (const auto& [name, value] : step.values) {
      if (!IsDrawn(name)) continue;
      nlohmann::ordered_json& column = values[name];
      // The steps before that did not report it.
      while (column.size() < k.size()) column.push_back(nullptr);
      column.push_back(std::isfinite(value) ? nlohmann::ordered_json(RoundForCurve(value))
                                            : nlohmann::ordered_json(nullptr));
    }
    k.push_back(step.k);
    at.push_back(static_cast<double>(absl::ToUnixMillis(step.at)) / 1e3);
  }

  nlohmann::ordered_json columns = nlohmann::ordered_json::object();
  for (auto& [name, column] : values) {
    while (column.size() < k.size()) column.push_back(nullptr);
    columns[name] = std::move(column);
  }
  return {{"k", std::move(k)}, {"at", std::move(at)}, {"values", std::move(columns)}};
}

}  // namespace sluice::controller
