#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "common/rl/version.h"
#include "common/rpc/server_stream.h"
#include "services/rollout/http/guests.h"
#include "sluice/engine/v1/engine.pb.h"

namespace sluice::rollout {

// FAILED_PRECONDITION NOT_YET: `model` does not sample under `wanted`, or, if that is unset, under
// no published version yet.
absl::Status CheckLoaded(const http::Model& model, const std::optional<PolicyVersion>& wanted);
// ABORTED LOST_RACE: `version` is not `wanted` any more.
absl::Status CheckStill(const std::optional<PolicyVersion>& wanted, PolicyVersion version);

// One call of Generate: a guest of the engine. What an answer grew by while a message was being
// written goes with the next one, so that a slow reader holds no more than the answers themselves.
class GenerateStream : public rpc::WriteStream<engine::v1::GenerateResponse>,
                       public std::enable_shared_from_this<GenerateStream> {
 public:
  // `guests` outlives the stream.
  explicit GenerateStream(http::Guests* guests) : guests_(guests) {}

  // Asks `model` for the answers; an error ends the call. Once, before the stream is handed to
  // gRPC.
  absl::Status Start(const std::shared_ptr<http::Model>& model,
                     const engine::v1::GenerateRequest& request);
  // An empty message, if nothing else is on its way.
  void Beat();

 private:
  // The step thread.
  void Take(const StepEvents& events) ABSL_LOCKS_EXCLUDED(mu_);
  void Add(const TokenEvent& event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Flush() ABSL_LOCKS_EXCLUDED(mu_);

  void Sent() override { Flush(); }
  void Closed() override { guests_->Leave(guest_); }

  http::Guests* const guests_;
  uint64_t guest_ = 0;                    // 0: none yet, or refused.
  std::optional<PolicyVersion> version_;  // That all tokens must be of.

  Mutex mu_;
  // By member: what is not sent.
  std::map<uint32_t, engine::v1::GenerateResponse> waiting_ ABSL_GUARDED_BY(mu_);
  uint32_t open_ ABSL_GUARDED_BY(mu_) = 0;  // Answers that go on.
};

}  // namespace sluice::rollout
