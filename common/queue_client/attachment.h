#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/mutex.h"
#include "common/shm/allocator.h"
#include "common/shm/block.h"
#include "common/shm/segment.h"
#include "common/shm/socket.h"
#include "sluice/common/v1/common.pb.h"

namespace sluice {

// The memory that a client shares with a queue on the same host: the client's own buffer, into
// which it writes what it will Put, and the segments of its job, which it reads. The attachment
// ends when either side closes the connection; then attach again.
//
// Thread-safe.
class Attachment {
 public:
  // Attaches to the queue whose gRPC server listens on `address`. `call` names job, worker and
  // incarnation.
  // UNAVAILABLE: the queue is not on this host, or shares no memory.
  // Any other error: the reason why the queue refuses.
  static absl::StatusOr<std::shared_ptr<Attachment>> Attach(const std::string& address,
                                                            const common::v1::Call& call);

  // The id that the queue gave this attachment, 16 bytes. Put and Get name it.
  const std::string& session() const { return session_; }
  // Whether the queue has closed the connection, or once did not answer. Then attach again.
  bool ended() const { return broken_ || socket_.IsClosed(); }

  // Reserves memory in the client's own buffer. Allocate() and Free() never wait for the queue, not
  // even during a call of Map() that does. Returns nothing if the buffer is full; then send
  // the bytes in the message.
  std::optional<shm::Slice> Allocate(uint64_t bytes) ABSL_LOCKS_EXCLUDED(buffer_mu_);
  // The memory of a slice from Allocate().
  char* at(const shm::Slice& slice) { return buffer_.data() + slice.offset; }
  void Free(const shm::Slice& slice) ABSL_LOCKS_EXCLUDED(buffer_mu_);

  // Appends to `segments` the segment of each slice, in order. Segments that are not mapped yet are
  // requested from the queue. After ABORTED, read again with the bytes in messages.
  // ABORTED NOT_SHARED: a segment is not available. The queue has returned its memory to the
  // system, or does not answer.
  // ABORTED RECYCLED: the block of a slice was used again since.
  // INVALID_ARGUMENT BAD_SLICE: a slice lies outside of its segment.
  absl::Status Map(absl::Span<const shm::Slice> slices,
                   std::vector<std::shared_ptr<const shm::Segment>>* segments)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Checks that what was copied from the slices before this call is what they named.
  // ABORTED RECYCLED: a block was used again meanwhile.
  static absl::Status CheckNotRecycled(
      absl::Span<const shm::Slice> slices,
      absl::Span<const std::shared_ptr<const shm::Segment>> segments);

 private:
  Attachment(shm::Socket socket, shm::Segment buffer, std::string session,
             const common::v1::Call& call)
      : session_(std::move(session)),
        call_(call),
        buffer_(std::move(buffer)),
        free_parts_(buffer_.bytes()),
        socket_(std::move(socket)) {}
  // The segment with this number, from `segments_` or from the queue.
  absl::StatusOr<std::shared_ptr<const shm::Segment>> FindOrRequestSegment(uint32_t segment)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::string session_;
  const common::v1::Call call_;
  shm::Segment buffer_;  // The client's own buffer.

  Mutex buffer_mu_;
  shm::OffsetAllocator free_parts_ ABSL_GUARDED_BY(buffer_mu_);  // The free parts of buffer_.

  // Held while a request waits for the queue's answer, which may take seconds.
  Mutex mu_;
  std::atomic<bool> broken_ = false;  // An answer was lost, so the connection is useless.
  shm::Socket socket_;                // Used under mu_: one request at a time.
  struct Mapped {
    std::shared_ptr<const shm::Segment> segment;
    absl::Time used;  // Time of the last use.
  };
  // Segments used lately. The system cannot take back memory that is mapped here, so segments that
  // are not used are dropped.
  std::map<uint32_t, Mapped> segments_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice
