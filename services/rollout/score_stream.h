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

// One call of Score. Its records make sequences: a group's prompt, and behind it the pieces of a
// member in order. A sequence is whole with a record that says `last`, with the first record of
// another owner, or with the end of the requests; the engine then computes it by prefill, under one
// version, and its records go back with `logprobs`. Those of a group's prompt go back as they came.
class ScoreStream : public rpc::BidiStream<grpc::ByteBuffer, grpc::ByteBuffer>,
                    public std::enable_shared_from_this<ScoreStream> {
 public:
  // Sequences in the engine, where each has a step's chunk.
  static constexpr size_t kAtOnce = 8;
  // Of records and tokens that are not answered; beyond it the call ends.
  static constexpr uint64_t kWindowBytes = 32 << 20;

  // The model that the caller may ask; an error ends the call.
  using Admit =
      std::function<absl::StatusOr<std::shared_ptr<http::Model>>(const common::v1::Call& call)>;
  // `guests` outlives the stream.
  ScoreStream(http::Guests* guests, Admit admit) : guests_(guests), admit_(std::move(admit)) {}

  // An empty message, if nothing else is on its way.
  void Beat();

 private:
  struct Sequence {
    std::vector<common::v1::Record> records;  // Without their fields.
    uint32_t segment = 0;                     // Of the last record.
    std::vector<int32_t> tokens;
    std::vector<float> logprobs;  // By token, of the first 0. None: a group's prompt.
    PolicyVersion version;        // That scored it.
    uint64_t guest = 0;
    bool done = false;
    uint64_t bytes() const;
  };

  // The thread that reads.
  void Received(grpc::ByteBuffer& message) override;
  void ReadsDone() override;
  absl::Status Read(const grpc::ByteBuffer& message);
  absl::Status Open(const engine::v1::ScoreHeader& header);
  absl::Status ReadRecord(const common::v1::Record& record, rpc::PayloadReader* payload);
  absl::Status CheckPlace(const common::v1::Record& record, const Sequence& sequence) const;
  absl::Status Whole();  // So is what was coming.
  absl::Status Enqueue(std::shared_ptr<Sequence> sequence) ABSL_LOCKS_EXCLUDED(mu_);

  static absl::StatusOr<grpc::ByteBuffer> Encode(const Sequence& sequence);

  // Any thread.
  void Ask() ABSL_LOCKS_EXCLUDED(mu_);
  void Take(const std::shared_ptr<Sequence>& sequence, const StepEvents& events)
      ABSL_LOCKS_EXCLUDED(mu_);
  void Flush() ABSL_LOCKS_EXCLUDED(mu_);
  void Sent() override { Flush(); }
  void Closed() override ABSL_LOCKS_EXCLUDED(mu_);

  http::Guests* const guests_;
  const Admit admit_;
  // Set by the first message.
  std::shared_ptr<http::Model> model_;
  std::optional<PolicyVersion> version_;
  float temperature_ = 1;
  // Of the thread that reads.
  Sequence prompt_;                   // Of the group last seen; its records: the last one.
  std::shared_ptr<Sequence> coming_;  // Null: none.

  Mutex mu_;
  std::deque<std::shared_ptr<Sequence>> unanswered_ ABSL_GUARDED_BY(mu_);
  std::deque<std::shared_ptr<Sequence>> unasked_ ABSL_GUARDED_BY(mu_);  // Of these.
  size_t asked_ ABSL_GUARDED_BY(mu_) = 0;                               // In the engine.
  uint64_t bytes_ ABSL_GUARDED_BY(mu_) = 0;                             // Unanswered.
  bool reads_done_ ABSL_GUARDED_BY(mu_) = false;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace sluice::rollout
