#include "services/rollout/rescorer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/splitmix.h"
#include "common/base/status.h"
#include "common/log/log.h"
#include "services/rollout/core/engine/scoring.h"
#include "services/rollout/streamer.h"

namespace sluice::rollout {
namespace {

uint64_t BigEndian(absl::string_view bytes) {
  uint64_t value = 0;
  for (const char byte : bytes) value = value << 8 | static_cast<uint8_t>(byte);
  return value;
}

// Returns the group's incarnation and ordinal in hex, the form that `sluice queue peek` takes.
std::string GroupInHex(const common::v1::TrajectoryRef& ref) {
  const absl::string_view group = ref.group();
  return absl::StrCat(absl::Hex(BigEndian(group.substr(0, 4))), ":",
                      absl::Hex(BigEndian(group.substr(8))));
}

}  // namespace

Rescorer::Rescorer(Options options, std::function<void(Request request)> add,
                   const Metrics& metrics)
    : options_(std::move(options)), add_(std::move(add)), metrics_(metrics) {}

bool Rescorer::IsChosen(const common::v1::TrajectoryRef& ref) const {
  return ref.group().size() == 16 &&
         Mix64(Mix64(BigEndian(ref.group().substr(8)) + kGolden) + ref.member()) %
                 options_.one_in ==
             0;
}

void Rescorer::OnSealed(const Member& member, PolicyVersion loaded) {
  if (!IsChosen(member.ref)) return;
  const std::vector<PolicyVersion>& versions = member.trajectory.versions();
  const bool of_loaded = std::all_of(versions.begin(), versions.end(),
                                     [&](PolicyVersion version) { return version == loaded; });
  if (versions.empty() || member.granted_under != loaded || !of_loaded) return;

  std::vector<int32_t> tokens = member.prompt->tokens;
  tokens.insert(tokens.end(), member.trajectory.tokens().begin(), member.trajectory.tokens().end());
  Request request = MakeScoringRequest(std::move(tokens), member.temperature);
  request.order = RequestClass::kIdle;
  {
    MutexLock lock(&mu_);
    if (pending_.size() >= kMostPending) return;
    request.id = next_++;
    pending_.emplace(request.id, Sampled{member.ref, member.trajectory.prompt(),
                                         member.trajectory.logprobs(), loaded});
  }
  add_(std::move(request));
}

void Rescorer::TakeEvents(StepEvents* step) {
  std::erase_if(step->tokens, [this](const TokenEvent& event) {
    if (OwnerOf(event.request) != RequestOwner::kRescorer) return false;
    Compare(Remove(event.request), event);
    return true;
  });
  std::erase_if(step->failures, [this](const RequestFailure& failure) {
    if (OwnerOf(failure.request) != RequestOwner::kRescorer) return false;
    const Sampled sampled = Remove(failure.request);
    log::Warning("rescore_failed", {{"job_id", options_.job_name},
                                    {"group", GroupInHex(sampled.ref)},
                                    {"member", sampled.ref.member()},
                                    {"error", failure.status}});
    return true;
  });
}

Rescorer::Sampled Rescorer::Remove(uint64_t request) {
  MutexLock lock(&mu_);
  const auto found = pending_.find(request);
  SLUICE_CHECK(found != pending_.end());  // The engine gives each request one event.
  Sampled sampled = std::move(found->second);
  pending_.erase(found);
  return sampled;
}

void Rescorer::Compare(const Sampled& sampled, const TokenEvent& event) const {
  // Another version was loaded before the request ran, so there is nothing to compare.
  if (event.version != sampled.version) return;

  // The scores begin with the prompt's second token; those of the answer begin at `first`.
  const std::vector<float> scores = ReadScores(event);
  const size_t first = sampled.prompt - 1;
  double sum = 0, worst = -1;
  size_t worst_at = 0;
  for (size_t i = 0; i < sampled.logprobs.size(); ++i) {
    double gap =
        std::abs(static_cast<double>(sampled.logprobs[i]) - static_cast<double>(scores[first + i]));
    if (std::isnan(gap)) gap = HUGE_VAL;
    sum += gap;
    if (gap <= worst) continue;
    worst = gap;
    worst_at = sampled.prompt + i;
  }

  const double mean = sum / static_cast<double>(sampled.logprobs.size());
  metrics_.rescore_gap.Observe(mean);
  if (mean <= kWarnAbove) return;
  log::Warning("rescore_gap", {{"job_id", options_.job_name},
                               {"group", GroupInHex(sampled.ref)},
                               {"member", sampled.ref.member()},
                               {"attempt", sampled.ref.attempt()},
                               {"mean_nats", mean},
                               {"max_nats", worst},
                               {"position", static_cast<int64_t>(worst_at)},
                               {"version", sampled.version.str()},
                               {"hint",
                                "its log-probs are not those of this version: test the memory, and "
                                "report the worst token's position"}});
}

}  // namespace sluice::rollout
