#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "common/base/mutex.h"
#include "common/daemon/waits.h"
#include "common/rpc/cancel.h"
#include "common/rpc/channel_cache.h"
#include "common/rpc/role.h"
#include "services/rollout/core/eval/row_scoring.h"

namespace sluice::reward::v1 {
class ScoreRequest;
class ScoreResponse;
}  // namespace sluice::reward::v1

namespace sluice::rollout {

// Lets the job's reward daemons score answers of evaluations, whose rewards this daemon cannot
// compute: judges, plug-ins and programs. While no reward daemon can be reached it waits, as
// training does too, and says so for `sluice why`.
//
// Thread-safe.
class RemoteScorer {
 public:
  struct Options {
    std::string job;     // 32 hex digits.
    std::string worker;  // This daemon's id.
    int64_t incarnation = 0;
  };
  // `waits` outlives the scorer.
  RemoteScorer(Options options, daemon::Waits* waits)
      : options_(std::move(options)), waits_(waits) {}

  // Sets the reward daemons (HOST:PORT) that work for the job.
  void SetRewards(std::vector<std::string> rewards) ABSL_LOCKS_EXCLUDED(mu_);

  // Scores the answers to a row of `dataset`, an EvalScorer. Daemons take turns. Once `cancel` is
  // triggered, all verdicts are CANCELLED.
  RowScores Score(const std::string& dataset, absl::Span<const EvalText> answers,
                  const std::string& row_json, rpc::Cancel* cancel) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  std::optional<std::string> NextReward() ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<reward::v1::ScoreResponse> CallReward(const std::string& address,
                                                       const reward::v1::ScoreRequest& request,
                                                       rpc::Cancel* cancel);

  const Options options_;
  daemon::Waits* const waits_;
  rpc::ChannelCache channels_{{rpc::Role::kReward}};

  Mutex mu_;
  std::vector<std::string> rewards_ ABSL_GUARDED_BY(mu_);
  size_t next_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace sluice::rollout
