#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/judges/http_client.h"
#include "common/judges/judge_file.h"
#include "common/judges/throttle.h"
#include "nlohmann/json_fwd.hpp"

namespace sluice {

// Asks one judge over HTTP, within the limits of its JudgeConfig. All jobs of a daemon share it.
// Thread-safe.
class JudgeClient {
 public:
  explicit JudgeClient(JudgeConfig config);

  // Says which model judges, and how.
  std::string Identity() const;
  // How many answers are worth waiting for it now: as many as it bears, and as many again.
  uint32_t Capacity() const;

  // Returns the text of the judge's reply to two messages, of the system and of a user. Blocks at
  // most `timeout` until the call may begin, and as long again for the call. A call that is refused
  // as one too many is made again within the first of them.
  // RESOURCE_EXHAUSTED JUDGE_BUSY: no call was admitted in that time, or the judge is down.
  // RESOURCE_EXHAUSTED JUDGE_BUDGET: the operator's limit of tokens is reached.
  // UNAVAILABLE JUDGE_FAULT: the judge did not answer, or not as an OpenAI-compatible API does.
  // OUT_OF_RANGE JUDGE_CONTENT: the judge cannot judge this text: it is too long for it, its
  // provider filters it, or the reply does not end within max_reply.
  // CANCELLED: `stop` was triggered.
  absl::StatusOr<std::string> Ask(const std::string& system, const std::string& user,
                                  absl::Duration timeout, const rpc::Cancel& stop);

  // OK, or RESOURCE_EXHAUSTED: JUDGE_BUDGET, or JUDGE_BUSY if it is down and to be left alone.
  absl::Status CheckReady() const;

 private:
  absl::Status CheckReadyLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Waits until a call may begin.
  absl::Status AwaitTurn(absl::Duration deadline, const rpc::Cancel& stop);
  // The judge's text, or why there is none.
  absl::StatusOr<std::string> Read(const absl::StatusOr<HttpReply>& reply,
                                   const nlohmann::json& parsed) const;
  uint64_t TokensOf(const absl::StatusOr<HttpReply>& reply, const nlohmann::json& parsed,
                    size_t request_bytes) const;

  const JudgeConfig config_;
  Clock* const clock_ = Clock::Real();
  HttpClient http_;
  mutable Mutex mu_;
  CondVar ended_;  // A call has ended.
  Throttle throttle_ ABSL_GUARDED_BY(mu_);
  std::string last_fault_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice
