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

// What a client shares with a queue on its host: its own buffer, to write what it will Put, and its
// job's segments, to read. Ends when either side does; then attach again.
//
// Thread-safe.
class Attachment {
 public:
  // `address`: of the queue's gRPC server; `call` names job, worker and incarnation. UNAVAILABLE:
  // the queue is not on this host, or shares no memory. Otherwise why it refuses.
  static absl::StatusOr<std::shared_ptr<Attachment>> Attach(const std::string& address,
                                                            const common::v1::Call& call);

  const std::string& session() const { return session_; }
  // The session means nothing to the queue any more, or it has not answered: attach again.
  bool ended() const { return broken_ || socket_.Closed(); }

  // Memory of the own buffer. None: it is full; send the bytes in the message.
  std::optional<shm::Slice> Allocate(uint64_t bytes) ABSL_LOCKS_EXCLUDED(mu_);
  char* at(const shm::Slice& slice) { return buffer_.data() + slice.offset; }
  void Free(const shm::Slice& slice) ABSL_LOCKS_EXCLUDED(mu_);

  // The segments that slices lie in, each asked for where it is not mapped yet. ABORTED, ask for
  // the bytes again, in messages: NOT_SHARED, one cannot be had (it went back to the system, or the
  // queue does not answer); RECYCLED, a slice is of a block that was used again since.
  // INVALID_ARGUMENT: out of bounds.
  absl::Status Map(absl::Span<const shm::Slice> slices,
                   std::vector<std::shared_ptr<const shm::Segment>>* segments)
      ABSL_LOCKS_EXCLUDED(mu_);
  // What was copied out of the slices before this call is what they named. ABORTED: else.
  static absl::Status CheckStill(absl::Span<const shm::Slice> slices,
                                 absl::Span<const std::shared_ptr<const shm::Segment>> segments);

 private:
  Attachment(shm::Socket socket, shm::Segment buffer, std::string session,
             const common::v1::Call& call)
      : session_(std::move(session)),
        call_(call),
        buffer_(std::move(buffer)),
        socket_(std::move(socket)),
        holes_(buffer_.bytes()) {}
  absl::StatusOr<std::shared_ptr<const shm::Segment>> Ask(uint32_t segment)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::string session_;
  const common::v1::Call call_;
  shm::Segment buffer_;
  mutable Mutex mu_;
  std::atomic<bool> broken_ = false;
  shm::Socket socket_;  // Asked under the lock, one question at a time.
  shm::OffsetAllocator holes_ ABSL_GUARDED_BY(mu_);  // Of the buffer.
  struct Mapped {
    std::shared_ptr<const shm::Segment> segment;
    absl::Time used;
  };
  // Those used of late: what is mapped cannot go back to the system.
  std::map<uint32_t, Mapped> segments_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice
