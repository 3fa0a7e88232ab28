#pragma once

#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/fd.h"

// Memory that processes of one host share. It consists of files without a name (memfd). Their
// descriptors are passed over a unix socket (socket.h), and an allocator of offsets divides them
// (allocator.h). Neither process trusts the other: the size of a file is fixed before its
// descriptor is passed on, and everything that is read is checked by generation and CRC.
namespace sluice::shm {

enum class Access {
  // Only the owner may write, through the mapping that it has. Nobody can make a writable mapping
  // later, not even the owner.
  kOwner,
  kEveryone,  // Every process that gets the descriptor may write.
};

// A mapped segment. Its file is sealed, so that its size never changes; otherwise a process could
// shrink it and so make a reader crash.
class Segment {
 public:
  // Creates a segment. `name` appears only in /proc. With `touch`, all its pages are allocated
  // before this returns, because the first write to a page costs about ten times as much as a write
  // to memory in use.
  // RESOURCE_EXHAUSTED NO_MEMORY: there is not enough memory, or no file descriptor.
  static absl::StatusOr<Segment> Create(const char* name, uint64_t bytes, Access access,
                                        bool touch);
  // Makes a file of the bytes of all `pieces`, which nobody can ever change, not even its owner. It
  // is not mapped here, but written; others map what they get.
  // RESOURCE_EXHAUSTED NO_MEMORY: there is not enough memory, or no file descriptor.
  static absl::StatusOr<Fd> MakeConstant(const char* name,
                                         absl::Span<const absl::string_view> pieces);
  // Maps a segment of `bytes` bytes that another process made.
  // INVALID_ARGUMENT: the file is not sealed, or has another size.
  // RESOURCE_EXHAUSTED NO_MEMORY: it cannot be mapped.
  static absl::StatusOr<Segment> Map(Fd fd, uint64_t bytes, bool writable);

  ~Segment();
  Segment(Segment&& other) noexcept
      : fd_(std::move(other.fd_)),
        data_(std::exchange(other.data_, nullptr)),
        bytes_(other.bytes_) {}
  Segment& operator=(Segment&&) = delete;

  int fd() const { return fd_.get(); }
  char* data() const { return data_; }  // Only for reading, unless it was mapped writable.
  uint64_t bytes() const { return bytes_; }
  // Whether nobody can change it, as one of MakeConstant(). Then what was checked once stays so.
  bool is_constant() const;
  // Whether the `length` bytes from `offset` on lie inside the segment.
  bool Contains(uint64_t offset, uint64_t length) const {
    return offset <= bytes_ && length <= bytes_ - offset;
  }

 private:
  Segment(Fd fd, char* data, uint64_t bytes) : fd_(std::move(fd)), data_(data), bytes_(bytes) {}
  Fd fd_;
  char* data_;
  uint64_t bytes_;
};

}  // namespace sluice::shm
