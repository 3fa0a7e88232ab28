#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/judges/http_client.h"
#include "common/judges/judge_file.h"
#include "common/judges/throttle.h"

namespace sluice {

// Asks one judge over HTTP, within the limits of its JudgeConfig. All jobs of a daemon share it.
// Thread-safe.
class JudgeClient {
 public:
  explicit JudgeClient(JudgeConfig config);

  const std::string& name() const { return config_.name; }

  // Returns the text of the judge's reply to two messages, of the system and of a user. Blocks at
  // most `timeout`; meanwhile a call that is refused as one too many is made again.
  // RESOURCE_EXHAUSTED JUDGE_BUSY: no call was admitted in that time.
  // RESOURCE_EXHAUSTED JUDGE_BUDGET: the operator's limit of tokens is reached.
  // UNAVAILABLE JUDGE_FAULT: the judge did not answer, or not as an OpenAI-compatible API does.
  // CANCELLED: `stop` was triggered.
  absl::StatusOr<std::string> Ask(const std::string& system, const std::string& user,
                                  absl::Duration timeout, const rpc::Cancel& stop);

  // RESOURCE_EXHAUSTED JUDGE_BUDGET, or OK.
  absl::Status CheckBudget() const;

 private:
  // Waits until a call may begin.
  absl::Status AwaitTurn(absl::Duration deadline, const rpc::Cancel& stop);

  const JudgeConfig config_;
  Clock* const clock_ = Clock::Real();
  HttpClient http_;
  mutable Mutex mu_;
  CondVar ended_;  // A call has ended.
  Throttle throttle_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice
