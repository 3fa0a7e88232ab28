#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/mutex.h"
#include "common/rpc/backoff.h"
#include "common/rpc/cancel.h"
#include "common/rpc/channel.h"
#include "common/rpc/payload.h"
#include "sluice/queue/v1/queue.pb.h"

// The client of the queue, for rollouts, reward workers and trainers. It hides channels, retries
// and the caller's name; messages are those of the proto files. Leases are renewed by
// lease_keeper.h, trajectories are written by put_stream.h, and changes arrive by queue_watch.h.
namespace sluice {
class Attachment;

// The calls of one worker for one job, to one queue.
//
// Thread-safe. Each call blocks its caller. A call is repeated after UNAVAILABLE and
// DEADLINE_EXCEEDED for up to `give_up`, so it waits for a queue that is away or does not know this
// worker yet. Other errors are returned at once, with their reason:
// ABORTED FENCED: another incarnation of this worker has taken over; stop.
// ABORTED LEASE_LOST: the lease has ended.
// FAILED_PRECONDITION NOT_YET or RESTORE_FIRST: the job is still being set up.
// CANCELLED: `cancel` or `drain` was triggered.
class QueueClient {
 public:
  struct Options {
    std::string job;          // 32 hex digits.
    std::string worker;       // The daemon's id.
    int64_t incarnation = 0;  // For a trainer its trainer group's, else the daemon's own.
    // Ends calls. May be null; outlives the client, as `drain` does.
    rpc::Cancel* cancel = nullptr;
    // If set, ends Admit, LeaseTasks and AcquireBatch in place of `cancel`: a worker that drains
    // takes no new work, and still seals, releases and renews.
    rpc::Cancel* drain = nullptr;
    // Send payload through memory shared with the queue, if the queue is on this host.
    bool shared_memory = true;
    absl::Duration give_up = absl::InfiniteDuration();
    rpc::BackoffOptions backoff;
  };

  QueueClient(std::shared_ptr<rpc::Channel> channel, Options options);

  const Options& options() const { return options_; }
  const rpc::Channel& channel() const { return *channel_; }

  // These calls fill in request.call. Admit, LeaseTasks and AcquireBatch wait at the queue for up
  // to `wait` (30 s if it is unset); an empty answer means that the caller should ask again.
  absl::StatusOr<queue::v1::AdmitResponse> Admit(queue::v1::AdmitRequest request);
  absl::StatusOr<queue::v1::LeaseTasksResponse> LeaseTasks(queue::v1::LeaseTasksRequest request);
  absl::StatusOr<queue::v1::AcquireBatchResponse> AcquireBatch(
      queue::v1::AcquireBatchRequest request);
  absl::StatusOr<queue::v1::SealResponse> Seal(queue::v1::SealRequest request);
  absl::StatusOr<queue::v1::DropResponse> Drop(queue::v1::DropRequest request);
  absl::StatusOr<queue::v1::RenewResponse> Renew(queue::v1::RenewRequest request);
  absl::StatusOr<queue::v1::ReleaseResponse> Release(queue::v1::ReleaseRequest request);
  absl::StatusOr<queue::v1::ApplyResponse> Apply(queue::v1::ApplyRequest request);
  absl::StatusOr<queue::v1::DurableResponse> Durable(queue::v1::DurableRequest request);
  absl::StatusOr<queue::v1::RestoreResponse> Restore(queue::v1::RestoreRequest request);
  absl::StatusOr<queue::v1::AdvanceVersionResponse> AdvanceVersion(
      queue::v1::AdvanceVersionRequest request);

  // Says where the bytes of record.fields(field) go: returns memory for its `bytes` bytes, which
  // begin at offset `from` of the whole field, or null to skip them.
  //
  // A field of more than 4 MiB comes in parts, in order, with one call for each; its `total` says
  // how large it is. A record of more than 4 MiB, or with very many fields, comes in parts too; all
  // but the last have `more` set.
  using Place = std::function<char*(const common::v1::Record& record, int field)>;
  // Reads fields under a lease. Each field, inline ones too, is copied straight to its place, and
  // its CRC is checked. Records come in the order of `wants`.
  //
  // A place may be asked for twice, and its memory written twice: a stream that broke is read again
  // from its start, and so is one whose shared memory was used again before it was copied (which
  // happens when the lease has ended).
  //
  // Items that the queue no longer has are appended to `missing`.
  // NOT_FOUND GONE: there are such items, and `missing` is null.
  // DATA_LOSS BAD_CRC: bytes have changed on the way.
  // INVALID_ARGUMENT: the queue's message is malformed.
  absl::Status Get(absl::string_view lease, absl::Span<const common::v1::Want> wants,
                   const Place& place, std::vector<common::v1::Want>* missing = nullptr);

  // A record as it was put, with the bytes of each of its fields, even if it came in parts.
  struct Fetched {
    common::v1::Record record;
    std::vector<std::string> fields;
  };
  // The same into strings, for small amounts of data. Records without fields are left out.
  absl::StatusOr<std::vector<Fetched>> GetAll(absl::string_view lease,
                                              absl::Span<const common::v1::Want> wants,
                                              std::vector<common::v1::Want>* missing = nullptr);

  // The memory shared with the queue. Attaches again if the last attachment has ended. Null:
  // payload must go in messages.
  std::shared_ptr<Attachment> EnsureAttached() ABSL_LOCKS_EXCLUDED(mu_);

  // The Call that names this worker. `with_request` adds a new random request id, by which the
  // queue recognises a repeat.
  common::v1::Call MakeCall(bool with_request = false) const;

 private:
  template <typename Request, typename Response>
  absl::StatusOr<Response> Call(Request* request);
  // Makes a call that may wait at the queue. If `drain` is set, `drain` ends the call.
  template <typename Request, typename Response>
  absl::StatusOr<Response> CallParked(Request* request, bool with_request);
  absl::Status CallUntil(const google::protobuf::Message& request,
                         google::protobuf::Message* response, rpc::Cancel* cancel);
  // Reads until it succeeds or fails for good. `begin` runs before each attempt.
  absl::Status GetWithRetries(absl::string_view lease, absl::Span<const common::v1::Want> wants,
                              const std::function<void()>& begin, const Place& place,
                              std::vector<common::v1::Want>* missing);
  // One attempt. `attachment` may be null.
  absl::Status GetOnce(const queue::v1::GetRequest& request, Attachment* attachment,
                       const Place& place, std::vector<common::v1::Want>* missing);

  const std::shared_ptr<rpc::Channel> channel_;
  const Options options_;
  Mutex mu_;
  std::shared_ptr<Attachment> attachment_ ABSL_GUARDED_BY(mu_);
};

// Adds a field to `record`, with its CRC. Its bytes go to the end of `payload`. AddInlineField()
// puts them into the field itself (at most 64 bytes, else it aborts).
void AddField(absl::string_view name, common::v1::Dtype dtype, absl::Span<const int64_t> shape,
              absl::string_view bytes, common::v1::Record* record, std::string* payload);
// The same with borrowed bytes, which are not copied. `owner` keeps them until the record's outcome
// is known.
void AddField(absl::string_view name, common::v1::Dtype dtype, absl::Span<const int64_t> shape,
              absl::string_view bytes, std::shared_ptr<const void> owner,
              common::v1::Record* record, std::vector<rpc::PayloadSlice>* payload);
void AddInlineField(absl::string_view name, common::v1::Dtype dtype, absl::string_view bytes,
                    common::v1::Record* record);

}  // namespace sluice
