#pragma once

#include <string>
#include <vector>

#include "nlohmann/json_fwd.hpp"
#include "services/controller/core/controller.h"

namespace sluice::queue::v1 {
class StatsResponse;
}  // namespace sluice::queue::v1

// What the web page shows, as JSON. Times are in seconds since 1970, durations in seconds, and a
// number that is not known is null. The functions that take the core run on the loop's thread.
namespace sluice::controller {

// Points of a job's small curve in the list.
inline constexpr int kSparkPoints = 40;

// What the list shows of a job. The fields `of`, `spark`, `reward` and `tokens_per_s` of an ended
// job are null, because only the store has them; see EndedJobs.
nlohmann::ordered_json RowOf(const Controller& core, Instant now, const Job& job);

// What the job's own page shows, except its events and steps.
nlohmann::ordered_json DetailsOf(const Controller& core, Instant now, const Job& job);

// All daemons, with the names of their jobs.
nlohmann::ordered_json DaemonsOf(const Controller& core, Instant now);

// The number of daemons by role, and how many of them are up, suspect, lost, left and draining.
nlohmann::ordered_json FleetSummary(const Controller& core);

nlohmann::ordered_json ToJson(const Edge& edge);
nlohmann::ordered_json ToJson(const Event& event);
nlohmann::ordered_json ToJson(const Ledger& ledger);
// The queue's own numbers of one job: its ledger, groups, slots, bytes and parked calls.
nlohmann::ordered_json ToJson(const queue::v1::StatsResponse& stats);

// At most `points` mean values of equal stretches of `values`, in their order.
std::vector<double> Shrink(const std::vector<double>& values, size_t points);

}  // namespace sluice::controller
