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

// The call Get. It reads the wanted data want by want as the reader takes it, so that a reader that
// stops makes the queue hold no more than kInFlight messages and the records of one want. The job's
// lock is held while one want is looked up, but never while bytes are copied or sent.
class GetStream : public rpc::WriteStream<grpc::ByteBuffer> {
 public:
  static constexpr size_t kInFlight = 4;  // Messages.
  // A reader that takes nothing for this long is cut off.
  static constexpr absl::Duration kPatience = absl::Seconds(60);

  struct Request {
    std::shared_ptr<JobRunner> runner;
    Caller caller;
    bool controller = false;  // The controller needs no lease.
    Id16 lease;
    std::vector<Want> wants;
    bool shared = false;  // The reader has attached to shared memory.
  };
  // `context` is that of the call, and is used to end it. `clock` outlives the stream.
  GetStream(grpc::CallbackServerContext* context, Clock* clock)
      : clock_(clock), context_(context) {}

  void Start(Request request);
  // Ends the call if the reader has taken nothing for kPatience.
  void CutIfStuck() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void OnSent() override;
  void OnClosed() override;
  void Fill();
  // Makes the next message. Nullopt if everything was sent.
  absl::StatusOr<std::optional<grpc::ByteBuffer>> MakeMessage();
  // Reads the records of the next want.
  absl::Status ReadWant();

  struct Message;
  // Adds the rest of the present record to the message. False if the message is full first.
  bool AddRecord(Message* message);
  bool AddField(const Field& field, Message* message);

  Clock* const clock_;
  Request request_;
  // Used only by the thread that fills (filling_). `records_` are those of the want that was read
  // last; everything before byte from_ of field field_ of record record_ has been put into
  // messages.
  size_t next_want_ = 0;
  std::vector<Record> records_;
  size_t record_ = 0, field_ = 0;
  uint64_t from_ = 0;
  std::vector<Want> missing_;
  bool done_ = false;

  Mutex mu_;
  grpc::CallbackServerContext* context_ ABSL_GUARDED_BY(mu_);  // Null once the call is over.
  // filling_: a thread runs Fill(). again_: it must look for room once more before it stops.
  bool filling_ ABSL_GUARDED_BY(mu_) = false, again_ ABSL_GUARDED_BY(mu_) = false;
  Instant progress_ ABSL_GUARDED_BY(mu_);  // When the reader last took a message.
};

}  // namespace sluice::queue
