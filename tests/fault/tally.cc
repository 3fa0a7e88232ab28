#include "tests/fault/tally.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace sluice::fault {
namespace {
constexpr absl::Duration kReportEvery = absl::Seconds(5);  // Between two reports of progress.

double Quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1,
                         static_cast<size_t>(q * static_cast<double>(values.size())))];
}

nlohmann::json ToJson(const Verdict& verdict) {
  return {{"lost", verdict.lost},
          {"twice", verdict.twice},
          {"steps", verdict.steps},
          {"replayed_steps", verdict.replayed},
          {"forgotten_steps", verdict.forgotten},
          {"trained", verdict.trained},
          {"acknowledged", verdict.acknowledged},
          {"dropped", verdict.dropped},
          {"wrong", verdict.wrong}};
}
}  // namespace

void Tally::AddKill(const std::string& regime, const std::string& role, const std::string& point) {
  ++kills_;
  ++points_[role][point];
  ++regimes_[regime][role];

  const absl::Time now = absl::Now();
  if (now - reported_at_ < kReportEvery) return;
  reported_at_ = now;

  const double seconds = absl::ToDoubleSeconds(now - start_);
  if (as_json_) {
    std::printf(
        "%s\n",
        nlohmann::json({{"kills", kills_}, {"of", most_}, {"seconds", seconds}, {"regime", regime}})
            .dump()
            .c_str());
    std::fflush(stdout);
  } else {
    std::fprintf(stderr, "%4d of %d kills  %5.0f s  %s\n", kills_, most_, seconds, regime.c_str());
  }
}

bool Tally::SawKill(const std::string& role, const std::string& point) const {
  const auto it = points_.find(role);
  return it != points_.end() && it->second.contains(point);
}

int Tally::Report(const std::vector<std::pair<std::string, std::string>>& points,
                  bool every_point) const {
  nlohmann::json out = {{"kills", kills_},
                        {"seconds", absl::ToDoubleSeconds(absl::Now() - start_)},
                        {"never_reached", nlohmann::json::array()}};

  bool failed = verdicts_.empty();
  Verdict sum;
  for (const auto& [regime, verdict] : verdicts_) {
    out["regimes"][regime] = ToJson(verdict);
    for (const auto& [role, count] :
         regimes_.contains(regime) ? regimes_.at(regime) : std::map<std::string, int>())
      out["regimes"][regime]["kills"][role] = count;
    failed = failed || !verdict.wrong.empty();
    sum.lost += verdict.lost, sum.twice += verdict.twice, sum.trained += verdict.trained,
        sum.acknowledged += verdict.acknowledged;
    sum.steps += verdict.steps, sum.replayed += verdict.replayed,
        sum.forgotten += verdict.forgotten;
  }

  out["lost"] = sum.lost, out["twice"] = sum.twice, out["trained"] = sum.trained,
  out["acknowledged"] = sum.acknowledged;
  for (const auto& [role, counts] : points_) {
    for (const auto& [point, count] : counts)
      out["by_point"][role][point.empty() ? "random" : point] = count;
  }
  for (const auto& [role, times] : recovery_ms_)
    out["back_ms"][role] = {
        {"p50", Quantile(times, 0.5)}, {"p99", Quantile(times, 0.99)}, {"n", times.size()}};

  for (const auto& [role, point] : points) {
    if (!SawKill(role, point))
      out["never_reached"].push_back(absl::StrCat(role, " ", point.empty() ? "at random" : point));
  }

  failed = failed || (every_point && !out["never_reached"].empty());
  out["ok"] = !failed;
  if (as_json_) {
    std::printf("%s\n", out.dump().c_str());
    return failed ? 1 : 0;
  }

  for (const auto& [role, counts] : points_) {
    for (const auto& [point, count] : counts)
      std::printf("  %-8s %-34s %4d\n", role.c_str(), point.empty() ? "at random" : point.c_str(),
                  count);
  }

  for (const auto& what : out["never_reached"])
    std::printf("  never reached: %s\n", what.get<std::string>().c_str());
  for (const auto& [role, times] : recovery_ms_) {
    std::printf("%-8s works again after p50 %.0f ms, p99 %.0f ms (%zu)\n", role.c_str(),
                Quantile(times, 0.5), Quantile(times, 0.99), times.size());
  }

  for (const auto& [regime, verdict] : verdicts_) {
    int count = 0;
    for (const auto& [role, n] :
         regimes_.contains(regime) ? regimes_.at(regime) : std::map<std::string, int>())
      count += n;
    std::printf(
        "%-22s %4d kills   lost %ld   twice %ld   trajectories %ld in %ld steps   "
        "steps trained again %ld   steps taken back %ld   dropped %ld\n",
        regime.c_str(), count, verdict.lost, verdict.twice, verdict.trained, verdict.steps,
        verdict.replayed, verdict.forgotten, verdict.dropped);
    for (const std::string& what : verdict.wrong)
      std::printf("WRONG: %s: %s\n", regime.c_str(), what.c_str());
  }

  std::printf(
      "%s: %d kills in %.0f s, lost %ld, trained twice %ld, of %ld trajectories trained and %ld "
      "acknowledgements\n",
      failed ? "FAILED" : "ok", kills_, absl::ToDoubleSeconds(absl::Now() - start_), sum.lost,
      sum.twice, sum.trained, sum.acknowledged);
  return failed ? 1 : 0;
}

}  // namespace sluice::fault
