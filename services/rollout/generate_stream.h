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

// Checks that `model` samples with the version `wanted`; if that is unset, with any published
// version.
// FAILED_PRECONDITION NOT_YET: it does not.
absl::Status CheckLoaded(const http::Model& model, const std::optional<PolicyVersion>& wanted);
// Checks that a token's `version` is `wanted`, if that is set.
// ABORTED LOST_RACE: another version was loaded since CheckLoaded().
absl::Status CheckSameVersion(const std::optional<PolicyVersion>& wanted, PolicyVersion version);

// One call of EngineService.Generate. It is a guest of the engine (http/guests.h). New tokens that
// come while a message is being written are collected for the next one. So the memory that a slow
// reader costs is bounded by the size of the answers.
class GenerateStream : public rpc::WriteStream<engine::v1::GenerateResponse>,
                       public std::enable_shared_from_this<GenerateStream> {
 public:
  // `guests` outlives the stream.
  explicit GenerateStream(http::Guests* guests) : guests_(guests) {}

  // Asks `model` for the answers. After an error the caller ends the stream with it. Call it once,
  // before gRPC gets the stream.
  absl::Status Start(const std::shared_ptr<http::Model>& model,
                     const engine::v1::GenerateRequest& request);
  // Sends an empty message, unless another is being sent, so that the caller sees that the
  // connection lives.
  void SendKeepalive();

 private:
  // Takes events of this call's requests, on the thread that delivers them (http::Guests::Sink).
  void TakeEvents(const StepEvents& events) ABSL_LOCKS_EXCLUDED(mu_);
  // Adds a token to the waiting message of its member.
  void AddToken(const TokenEvent& event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Sends the next waiting message if none is being sent. Ends the call after the last one.
  void Flush() ABSL_LOCKS_EXCLUDED(mu_);

  void OnSent() override { Flush(); }
  void OnClosed() override { guests_->AbortGuest(guest_); }

  http::Guests* const guests_;
  uint64_t guest_ = 0;                    // Number of this call in guests_; 0: not accepted.
  std::optional<PolicyVersion> version_;  // The version that all tokens must have, if set.

  Mutex mu_;
  // By member: its tokens that are not sent yet.
  std::map<uint32_t, engine::v1::GenerateResponse> waiting_ ABSL_GUARDED_BY(mu_);
  uint32_t open_ ABSL_GUARDED_BY(mu_) = 0;  // Number of answers that have not ended.
};

}  // namespace sluice::rollout
