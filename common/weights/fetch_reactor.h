#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/weights/weight_source.h"
#include "sluice/weights/v1/weights.pb.h"

namespace sluice {
class UcxStage;

// The answer of one Fetch call: sends each object in pieces as soon as the source has it, and waits
// for those that are coming. Or it stages the object and sends its place, and holds what it has
// staged until the caller ends the stream. It keeps itself alive until gRPC has finished with it.
//
// Thread-safe. Owns no thread: gRPC's threads write, and those that bring objects wake it.
class FetchReactor : public grpc::ServerWriteReactor<grpc::ByteBuffer>,
                     public std::enable_shared_from_this<FetchReactor> {
 public:
  // Sends an error alone.
  static FetchReactor* Refuse(const absl::Status& why);
  // Call Start() once. `stage` may be null, and outlives the reactor.
  static std::shared_ptr<FetchReactor> Make(const weights::v1::FetchRequest& request,
                                            std::shared_ptr<WeightSource> source, UcxStage* stage);
  void Start();
  // Tells the caller that this daemon lives, if the stream waits for objects; ends the wait if it
  // has lasted as long as the caller wants, and the stream if it holds something for too long. To
  // be called about every kBeatInterval.
  static constexpr absl::Duration kBeatInterval = absl::Milliseconds(250);
  void Beat() ABSL_LOCKS_EXCLUDED(mu_);
  void EndStream(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);
  // Called once, when gRPC has finished with the stream. To be set before Start().
  std::function<void()> on_done;

  void OnWriteDone(bool ok) override ABSL_LOCKS_EXCLUDED(mu_);
  void OnCancel() override;
  void OnDone() override;

 private:
  struct Wanted {
    uint32_t index;  // In the request.
    weights::v1::ObjectRange range;
  };
  void Wake() ABSL_LOCKS_EXCLUDED(mu_);
  // Writes what is next, unless a write is under way.
  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Makes the first object that is here, or is missing for good, the current one. Returns false if
  // there is none.
  bool TakeNextObject() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void WritePiece() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Stages the current object and writes its place. Returns false if that cannot be done.
  bool WritePlace(weights::v1::FetchHeader* header) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Write(weights::v1::FetchHeader header, absl::string_view piece)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void FinishWith(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  std::shared_ptr<FetchReactor> self_;  // Until OnDone().
  std::shared_ptr<WeightSource> source_;
  Clock* const clock_ = Clock::Real();
  UcxStage* stage_ = nullptr;  // Null: all is sent.
  std::string job_;
  PolicyVersion version_;
  absl::Duration begun_ = clock_->Monotonic(), deadline_;

  Mutex mu_;
  std::list<Wanted> wanted_ ABSL_GUARDED_BY(mu_);  // Not sent yet, without the current one.
  // The object that is being sent, the range of it that is left, and its place in the request.
  // Null: the current one is missing, if `has_current_`.
  std::shared_ptr<const std::string> current_ ABSL_GUARDED_BY(mu_);
  bool has_current_ ABSL_GUARDED_BY(mu_) = false;
  Wanted current_wanted_ ABSL_GUARDED_BY(mu_);
  uint64_t at_ ABSL_GUARDED_BY(mu_) = 0, end_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<std::shared_ptr<const void>> holds_ ABSL_GUARDED_BY(mu_);  // What is staged.

  grpc::ByteBuffer frame_ ABSL_GUARDED_BY(mu_);  // That is being written.
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;  // Nothing more is written after that.
  grpc::Status final_ ABSL_GUARDED_BY(mu_);
  bool listens_ ABSL_GUARDED_BY(mu_) = false;  // The source will call Wake().
  // Since when there is nothing to send. InfiniteDuration(): there is something.
  absl::Duration parked_since_ ABSL_GUARDED_BY(mu_) = absl::InfiniteDuration();
};

}  // namespace sluice
