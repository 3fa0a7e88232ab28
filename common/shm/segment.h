#pragma once

#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

// Memory that processes of one host share: files without a name (memfd), handed on as descriptors
// over a unix socket (socket.h), parted by an allocator of offsets (allocator.h). Nothing here is
// trusted by its other side: sizes are fixed before a descriptor is given away, and what is read is
// checked by generation and CRC.
namespace sluice::shm {

// A file descriptor that is closed at the end.
class Fd {
 public:
  explicit Fd(int fd = -1) : fd_(fd) {}
  ~Fd();
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }

 private:
  int fd_;
};

enum class Access {
  kOwner,     // Others may only read: no mapping made later can write, whoever makes it.
  kExchange,  // Whoever gets the descriptor may write.
};

// A mapped segment. Its size never changes: the file is sealed, so that no reader can be made to
// fault.
class Segment {
 public:
  // `name` is seen in /proc alone. With `touch` every page is there before this returns: memory
  // touched for the first time costs about ten times a warm copy. RESOURCE_EXHAUSTED: no memory, or
  // no file descriptor.
  static absl::StatusOr<Segment> Create(const char* name, uint64_t bytes, Access access,
                                        bool touch);
  // Maps a segment that another process made. INVALID_ARGUMENT: it is no such file, has another
  // size or can still change it.
  static absl::StatusOr<Segment> Map(Fd fd, uint64_t bytes, bool writable);

  ~Segment();
  Segment(Segment&& other) noexcept
      : fd_(std::move(other.fd_)),
        data_(std::exchange(other.data_, nullptr)),
        bytes_(other.bytes_) {}
  Segment& operator=(Segment&&) = delete;

  int fd() const { return fd_.get(); }
  char* data() const { return data_; }  // Of a mapping that is not writable: for reading.
  uint64_t bytes() const { return bytes_; }
  // `length` bytes from `offset` on lie within.
  bool Holds(uint64_t offset, uint64_t length) const {
    return offset <= bytes_ && length <= bytes_ - offset;
  }

 private:
  Segment(Fd fd, char* data, uint64_t bytes) : fd_(std::move(fd)), data_(data), bytes_(bytes) {}
  Fd fd_;
  char* data_;
  uint64_t bytes_;
};

}  // namespace sluice::shm
