#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/rpc/payload.h"
#include "sluice/common/v1/common.pb.h"

namespace sluice {
class QueueClient;

// What became of one record.
struct PutOutcome {
  // OK: the record is stored, now or by an earlier attempt.
  // ABORTED LEASE_LOST: the lease has ended.
  // FAILED_PRECONDITION NOT_YET: tokens before the record are missing; continue at `watermark`.
  // Other errors are the queue's, or say why the stream has ended.
  absl::Status status;
  uint64_t watermark = 0;  // After an error: how many tokens of the member the queue holds.
};

// Writes records to the queue, in order and many per message, over one stream. When the stream
// breaks, it is opened again and everything that was not acknowledged is sent again; the queue
// recognises equal bytes as a repeat. If the queue is on this host and shares memory, the payload
// is copied there once, and messages only name it.
//
// Thread-safe. Owns one thread, `put`, which sends, and for each stream a reader thread. The reader
// runs the callbacks of acknowledged records. When the stream has ended for good, `put` runs those
// of the records that are left.
class PutStream {
 public:
  struct Options {
    // Bytes that may be sent and not acknowledged. A larger window does not raise the throughput,
    // and makes later records wait longer.
    size_t window_bytes = 8 << 20;
    size_t buffer_bytes = 256 << 20;  // Bytes that may be held in all.
  };

  // `client` outlives the stream.
  explicit PutStream(QueueClient* client);
  PutStream(QueueClient* client, const Options& options);
  // Calls Stop().
  ~PutStream();
  PutStream(const PutStream&) = delete;
  PutStream& operator=(const PutStream&) = delete;

  using Done = std::function<void(const PutOutcome& outcome)>;
  // Sends `record` after everything put before. `payload` holds the bytes of its fields without the
  // inline ones, in order (AddField). A record that is too large for one message is sent in parts;
  // the queue stores it as a whole with its last part.
  //
  // `done` runs once, on a thread of the stream, in the order of the calls of Put(). It must not
  // block, and may call Put(). If Put() fails, `done` does not run.
  //
  // Never blocks.
  // RESOURCE_EXHAUSTED BUFFER_FULL: nothing was taken; put the same record again when others are
  // acknowledged.
  // INVALID_ARGUMENT BAD_PAYLOAD: the fields need more or fewer bytes than `payload` has.
  // INVALID_ARGUMENT TOO_LARGE: the description of one field is too large for a message.
  // Any other error: the reason why the stream has ended for good.
  absl::Status Put(common::v1::Record record, std::string payload, Done done);
  // The same with a borrowed payload: its owners keep it, unchanged, until `done` has run.
  absl::Status Put(common::v1::Record record, std::vector<rpc::PayloadSlice> payload, Done done);

  // Waits until every record put before has its outcome.
  // DEADLINE_EXCEEDED: not within `timeout`.
  // Any other error: the reason why the stream has ended for good.
  absl::Status Flush(absl::Duration timeout = absl::InfiniteDuration());

  // What is held without an outcome at this moment.
  struct Backlog {
    size_t records = 0, bytes = 0;
  };
  Backlog backlog() const;

  // Ends the stream. Records without an outcome get CANCELLED. Must not be called from a callback.
  // Idempotent.
  void Stop();

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace sluice
