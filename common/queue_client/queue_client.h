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

// The queue as rollouts, rewards and trainers use it: channels, retries and the caller's name are
// hidden, messages are the contracts' own. Leases are kept by lease_keeper.h, pieces go through
// put_stream.h, changes come by queue_watch.h.
namespace sluice {
class Attachment;

// One worker's calls for one job, to one queue.
//
// Thread-safe; each call blocks its caller. A call goes on through UNAVAILABLE and
// DEADLINE_EXCEEDED for `give_up`: a queue that is away, or has not heard of this worker yet, is
// waited for. Other errors go up at once, with their reason: ABORTED FENCED (another incarnation
// has taken over: stop), ABORTED LEASE_LOST, FAILED_PRECONDITION NOT_YET or RESTORE_FIRST.
// CANCELLED: `cancel` or `drain` was triggered.
class QueueClient {
 public:
  struct Options {
    std::string job;                // 32 hex digits.
    std::string worker;             // Daemon id.
    int64_t incarnation = 0;        // Of trainers the gang's, else the daemon's own.
    rpc::Cancel* cancel = nullptr;  // Ends calls; outlives the client, as does the next.
    // If set, Admit, LeaseTasks and AcquireBatch end by this one instead: a worker that drains
    // takes no more, and still seals, releases and renews.
    rpc::Cancel* drain = nullptr;
    // Payload goes through memory shared with the queue where that is on this host.
    bool shared_memory = true;
    absl::Duration give_up = absl::InfiniteDuration();
    rpc::BackoffOptions backoff;
  };

  QueueClient(std::shared_ptr<rpc::Channel> channel, Options options);

  const Options& options() const { return options_; }
  const rpc::Channel& channel() const { return *channel_; }

  // Fills in request.call. A parked call's `wait` unset: 30 s; its empty answer means: ask again.
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

  // Where the bytes of record.fields(field) go: memory for its `bytes` bytes, which begin at its
  // `from`; null: nowhere. A field beyond 4 MiB comes in parts, each asked for by itself, in order
  // (its `total` says how much there is); a record beyond that, or with very many fields, in parts
  // too, all but the last with `more`.
  using Place = std::function<char*(const common::v1::Record& record, int field)>;
  // Reads fields under a lease, each straight into its place, inline ones too, CRC checked. Records
  // come in the order of `wants`. A broken stream is read again from its start, so a place may be
  // asked for twice; so is one whose shared memory was used again before it was copied (the lease
  // has ended). What the queue no longer has is appended to `missing`, or, where that is null, is
  // NOT_FOUND GONE.
  // DATA_LOSS BAD_CRC: bytes changed on the way. INVALID_ARGUMENT: the queue's message is
  // malformed.
  absl::Status Get(absl::string_view lease, absl::Span<const common::v1::Want> wants,
                   const Place& place, std::vector<common::v1::Want>* missing = nullptr);

  // A record with the bytes of each of its fields, as it was put, whatever the messages it came in.
  struct Fetched {
    common::v1::Record record;
    std::vector<std::string> fields;
  };
  // The same into strings; right where little is read.
  absl::StatusOr<std::vector<Fetched>> GetAll(absl::string_view lease,
                                              absl::Span<const common::v1::Want> wants,
                                              std::vector<common::v1::Want>* missing = nullptr);

  // What is shared with the queue, attached anew where the last attachment ended; null: payload
  // goes in messages.
  std::shared_ptr<Attachment> Attached() ABSL_LOCKS_EXCLUDED(mu_);

  // JobRef of this worker; with a new request id where asked for.
  common::v1::Call MakeCall(bool with_request = false) const;

 private:
  template <typename Request, typename Response>
  absl::StatusOr<Response> Call(Request* request);
  template <typename Request, typename Response>
  absl::StatusOr<Response> CallParked(Request* request, bool with_request);
  absl::Status CallUntil(const google::protobuf::Message& request,
                         google::protobuf::Message* response, rpc::Cancel* cancel);
  // `begin` runs before the stream is read, each time.
  absl::Status GetFrom(absl::string_view lease, absl::Span<const common::v1::Want> wants,
                       const std::function<void()>& begin, const Place& place,
                       std::vector<common::v1::Want>* missing);
  absl::Status GetOnce(const queue::v1::GetRequest& request, Attachment* attachment,
                       const Place& place, std::vector<common::v1::Want>* missing);

  const std::shared_ptr<rpc::Channel> channel_;
  const Options options_;
  Mutex mu_;
  std::shared_ptr<Attachment> attachment_ ABSL_GUARDED_BY(mu_);
};

// Adds a field to a record whose bytes ride in `payload`, or in the field itself (at most 64
// bytes), with their CRC.
void AddField(absl::string_view name, common::v1::Dtype dtype, absl::Span<const int64_t> shape,
              absl::string_view bytes, common::v1::Record* record, std::string* payload);
// The same with bytes that are borrowed, not copied, until the record's outcome is known; `owner`
// keeps them.
void AddField(absl::string_view name, common::v1::Dtype dtype, absl::Span<const int64_t> shape,
              absl::string_view bytes, std::shared_ptr<const void> owner,
              common::v1::Record* record, std::vector<rpc::PayloadSlice>* payload);
void AddInlineField(absl::string_view name, common::v1::Dtype dtype, absl::string_view bytes,
                    common::v1::Record* record);

}  // namespace sluice
