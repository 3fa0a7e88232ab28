#include "services/controller/ui/ended_jobs.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/controller/core/codec.h"
#include "services/controller/ui/view.h"
#include "sluice/job/v1/spec.pb.h"

namespace sluice::controller {
namespace {
// Several pages of the list. When more are kept, all of them are read anew.
constexpr size_t kMaxKept = 2000;
}  // namespace

void EndedJobs::Fill(nlohmann::ordered_json& row) {
  const auto text = [&](const char* field) { return row[field].get<std::string>(); };
  const std::string key = absl::StrCat(text("id"), "/", text("state"), "/", row["step"].dump());
  {
    MutexLock lock(&mu_);
    if (const auto it = kept_.find(key); it != kept_.end()) {
      row.update(nlohmann::ordered_json::parse(it->second));
      return;
    }
  }

  const nlohmann::ordered_json read = Read(text("id"));
  row.update(read);
  MutexLock lock(&mu_);
  if (kept_.size() >= kMaxKept) kept_.clear();
  kept_[key] = read.dump();
}

nlohmann::ordered_json EndedJobs::Read(const std::string& id) const {
  nlohmann::ordered_json out = nlohmann::ordered_json::object();
  if (const auto entry = store_->Get(JobKey(id, "spec")); entry.ok()) {
    job::v1::JobSpec spec;
    spec.ParseFromString(entry->value);
    if (spec.limits().has_max_steps()) out["of"] = spec.limits().max_steps();
    out["max_staleness"] = spec.queue().max_staleness();
  }

  const std::string key = JobKey(id, "result");
  const auto entry = store_->Get(key);
  if (!entry.ok()) return out;
  const absl::StatusOr<Result> result = Decode<Result>(key, entry->value);
  if (!result.ok()) return out;

  std::vector<double> rewards;
  for (const CurvePoint& point : result->curve) {
    if (point.reward) rewards.push_back(*point.reward);
  }
  out["spark"] = Shrink(rewards, kSparkPoints);
  if (result->reward_last && std::isfinite(*result->reward_last))
    out["reward"] = *result->reward_last;
  if (result->seconds > 0)
    out["tokens_per_s"] = static_cast<double>(result->tokens_trained) / result->seconds;
  return out;
}

}  // namespace sluice::controller
