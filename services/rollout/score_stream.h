#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/rl/version.h"
#include "common/rpc/payload.h"
#include "common/rpc/server_stream.h"
#include "services/rollout/http/guests.h"
#include "sluice/engine/v1/engine.pb.h"

namespace sluice::rollout {

// One call of EngineService.Score. Its records form sequences: a group's prompt, followed by the
// pieces of one member in order. A sequence ends with a record that has `last` set, before the
// first record of another owner, or with the last request. The engine then computes it by prefill
// under one version, and its records are sent back with `logprobs`. The records of a group's prompt
// are sent back without fields.
class ScoreStream : public rpc::BidiStream<grpc::ByteBuffer, grpc::ByteBuffer>,
                    public std::enable_shared_from_this<ScoreStream> {
 public:
  // Most sequences that are in the engine at once.
  static constexpr size_t kMostInEngine = 8;
  // Most bytes of records and tokens without an answer. If a caller sends more, the call ends.
  static constexpr uint64_t kWindowBytes = 32 << 20;

  // Checks the caller and returns the model of its job. An error ends the call.
  using FindModel =
      std::function<absl::StatusOr<std::shared_ptr<http::Model>>(const common::v1::Call& call)>;
  // `guests` outlives the stream.
  ScoreStream(http::Guests* guests, FindModel find_model)
      : guests_(guests), find_model_(std::move(find_model)) {}

  // Sends an empty message, unless others are being sent, so that the caller sees that the
  // connection lives.
  void SendKeepalive();

 private:
  // A sequence, or a record of a group's prompt, which needs no computation but is answered in its
  // place.
  struct Sequence {
    std::vector<common::v1::Record> records;  // Without their fields.
    uint32_t segment = 0;                     // Segment of the last record.
    std::vector<int32_t> tokens;
    // By token, with 0 for the first one. Empty before it is scored, and for a group's prompt.
    std::vector<float> logprobs;
    PolicyVersion version;  // The version that scored it.
    uint64_t guest = 0;     // Number of the guest in the engine; 0: none yet.
    bool done = false;      // It can be answered.
    uint64_t bytes() const;
  };

  // These run on the thread that reads the stream.
  void OnMessage(grpc::ByteBuffer& message) override;
  void OnReadsDone() override;
  absl::Status Read(const grpc::ByteBuffer& message);
  absl::Status ReadSettings(const engine::v1::ScoreHeader& header);
  absl::Status ReadRecord(const common::v1::Record& record, rpc::PayloadReader* payload);
  absl::Status CheckPlace(const common::v1::Record& record, const Sequence& sequence) const;
  // Ends the sequence that is being read, if there is one, and enqueues it.
  absl::Status EndSequence();
  absl::Status Enqueue(std::shared_ptr<Sequence> sequence) ABSL_LOCKS_EXCLUDED(mu_);

  static absl::StatusOr<grpc::ByteBuffer> Encode(const Sequence& sequence);

  // These run on any thread.
  //
  // Gives waiting sequences to the engine, up to kMostInEngine.
  void SubmitWaiting() ABSL_LOCKS_EXCLUDED(mu_);
  // Takes the engine's result for a sequence.
  void TakeScores(const std::shared_ptr<Sequence>& sequence, const StepEvents& events)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Sends the answers that are done, in order.
  void Flush() ABSL_LOCKS_EXCLUDED(mu_);
  void OnSent() override { Flush(); }
  void OnClosed() override ABSL_LOCKS_EXCLUDED(mu_);

  http::Guests* const guests_;
  const FindModel find_model_;
  // Set by the first message, and constant afterwards.
  std::shared_ptr<http::Model> model_;
  std::optional<PolicyVersion> version_;
  float temperature_ = 1;
  // Used by the thread that reads. `prompt_` is the prompt of the last group, with only its last
  // record. `reading_` is the sequence that is being read; null: none.
  Sequence prompt_;
  std::shared_ptr<Sequence> reading_;

  Mutex mu_;
  // In the order of the requests. waiting_ has those that the engine has not got yet.
  std::deque<std::shared_ptr<Sequence>> unanswered_ ABSL_GUARDED_BY(mu_);
  std::deque<std::shared_ptr<Sequence>> waiting_ ABSL_GUARDED_BY(mu_);
  size_t in_engine_ ABSL_GUARDED_BY(mu_) = 0;  // Number of sequences in the engine.
  uint64_t bytes_ ABSL_GUARDED_BY(mu_) = 0;    // Bytes of unanswered_.
  bool reads_done_ ABSL_GUARDED_BY(mu_) = false;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace sluice::rollout
