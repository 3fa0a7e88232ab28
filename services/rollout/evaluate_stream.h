#pragma once

#include <atomic>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/rpc/server_stream.h"
#include "services/rollout/core/eval/eval.h"
#include "sluice/engine/v1/engine.pb.h"

namespace sluice::rollout {
class Session;

// One call of EngineService.Evaluate. If the call ends, whichever side ends it, the evaluation is
// cancelled.
class EvaluateStream : public rpc::WriteStream<engine::v1::EvaluateResponse>,
                       public std::enable_shared_from_this<EvaluateStream> {
 public:
  // Starts the evaluation. After an error the caller ends the stream with it. Call it once, before
  // gRPC gets the stream.
  absl::Status Start(const std::shared_ptr<Session>& session,
                     const engine::v1::EvaluateRequest& request);
  // Sends an empty message, unless another is being sent, so that the caller sees that the
  // connection lives.
  void SendKeepalive();

 private:
  // Runs on the evaluation's thread.
  void OnFinished(const absl::StatusOr<EvalResult>& result);
  void OnClosed() override;

  std::weak_ptr<Session> session_;
  uint64_t task_ = 0;  // Number of the evaluation; 0: none was started.
  // Set when the evaluation is over, so that OnClosed() has nothing to cancel.
  std::atomic<bool> finished_{false};
};

}  // namespace sluice::rollout
