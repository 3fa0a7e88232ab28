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

// One call of Evaluate. The evaluation ends with the call, by whichever side.
class EvaluateStream : public rpc::WriteStream<engine::v1::EvaluateResponse>,
                       public std::enable_shared_from_this<EvaluateStream> {
 public:
  // An error ends the call. Once, before the stream is handed to gRPC.
  absl::Status Start(const std::shared_ptr<Session>& session,
                     const engine::v1::EvaluateRequest& request);
  // An empty message, if nothing else is on its way.
  void Beat();

 private:
  void Finished(const absl::StatusOr<EvalResult>& result);
  void Closed() override;

  std::weak_ptr<Session> session_;
  uint64_t task_ = 0;  // 0: none was begun.
  // The evaluation is over, and its thread may be in this stream.
  std::atomic<bool> finished_{false};
};

}  // namespace sluice::rollout
