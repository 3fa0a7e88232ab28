#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/rpc/payload.h"
#include "common/rpc/server_stream.h"
#include "common/shm/block.h"
#include "services/queue/core/job.h"
#include "services/queue/runner.h"
#include "sluice/queue/v1/queue.pb.h"

namespace grpc {
class CallbackServerContext;
}  // namespace grpc

namespace sluice::queue {

// Get: reads what is wanted piece by piece as the reader takes it, so that a reader who stops holds
// four messages and one want's records, no more. The job's lock is held to look up one want at a
// time, never while bytes are copied or sent.
class GetStream : public rpc::WriteStream<grpc::ByteBuffer> {
 public:
  static constexpr size_t kInFlight = 4;  // Messages.
  static constexpr absl::Duration kPatience = absl::Seconds(60);

  struct Request {
    std::shared_ptr<JobRunner> runner;
    Caller caller;
    bool controller = false;  // Needs no lease.
    Id16 lease;
    std::vector<Want> wants;
    bool shared = false;  // The reader has attached.
  };
  // `context`: of the call, to end it. `clock` outlives the stream.
  GetStream(grpc::CallbackServerContext* context, Clock* clock)
      : clock_(clock), context_(context) {}

  void Start(Request request);
  // Ends the call of a reader who has taken nothing for kPatience.
  void CutIfStuck() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Sent() override;
  void Closed() override;
  void Fill();
  // The next message. No value: all was sent.
  absl::StatusOr<std::optional<grpc::ByteBuffer>> Next();
  absl::Status ReadWant();

  struct Message;
  // Moves the rest of the first record into the message; false: it is full.
  bool AddRecord(Message* message);
  bool AddField(const Field& field, Message* message);

  Clock* const clock_;
  Request request_;
  // Of whoever fills.
  size_t next_want_ = 0;
  std::vector<Record> records_;    // Of the wants read, oldest first; ..
  size_t record_ = 0, field_ = 0;  // .. so far they are sent, ..
  uint64_t from_ = 0;              // .. and of this field so many bytes.
  std::vector<Want> missing_;
  bool done_ = false;

  Mutex mu_;
  grpc::CallbackServerContext* context_ ABSL_GUARDED_BY(mu_);  // Null: the call is over.
  bool filling_ ABSL_GUARDED_BY(mu_) = false, again_ ABSL_GUARDED_BY(mu_) = false;
  Instant progress_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice::queue
