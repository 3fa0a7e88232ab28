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

// What the queue said of one record.
struct PutOutcome {
  // OK: stored, now or before. Else ABORTED LEASE_LOST, FAILED_PRECONDITION NOT_YET (a gap), ..
  absl::Status status;
  uint64_t watermark = 0;  // With an error: the tokens that the queue holds of the member.
};

// Writes records to the queue, many per message, in order, over one stream that is opened again
// when it breaks; what was not acknowledged is then sent again (the queue takes equal bytes as a
// repeat). Where the queue is on this host and shares its memory, payload is copied there once and
// the messages only name it.
//
// Thread-safe. Owns a thread, `put`, which sends, and a reader for each stream, which runs the
// outcomes' callbacks.
class PutStream {
 public:
  struct Options {
    // Sent and not acknowledged. More does not flow faster, and what comes behind waits longer.
    size_t window_bytes = 8 << 20;
    size_t buffer_bytes = 256 << 20;  // Held in all.
  };

  // `client` outlives the stream.
  explicit PutStream(QueueClient* client);
  PutStream(QueueClient* client, const Options& options);
  // Stop().
  ~PutStream();
  PutStream(const PutStream&) = delete;
  PutStream& operator=(const PutStream&) = delete;

  using Done = std::function<void(const PutOutcome& outcome)>;
  // Sends `record` behind all put before; `payload` holds the bytes of its fields without inline,
  // in order (AddField). A record too large for a message goes in parts and is stored with the last
  // of them, as a whole. `done` runs once, on a thread of the stream, in the order of Put; it must
  // not block, and may call Put.
  // Never blocks. RESOURCE_EXHAUSTED: the buffer is full, nothing was taken: put the same again
  // when something is acknowledged. Any other error: why the stream has ended for good.
  absl::Status Put(common::v1::Record record, std::string payload, Done done);
  // The same with payload that is borrowed: its owners keep it, unchanged, until `done` has run.
  absl::Status Put(common::v1::Record record, std::vector<rpc::PayloadSlice> payload, Done done);

  // Waits until all put before has its outcome. DEADLINE_EXCEEDED: not within `timeout`. Else why
  // the stream has ended.
  absl::Status Flush(absl::Duration timeout = absl::InfiniteDuration());

  // Held and without an outcome yet, at this moment.
  struct Backlog {
    size_t records = 0, bytes = 0;
  };
  Backlog backlog() const;

  // Ends the stream; what has no outcome yet gets CANCELLED. Not from a callback. Idempotent.
  void Stop();

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace sluice
