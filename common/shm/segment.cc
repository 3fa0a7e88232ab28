#include "common/shm/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/base/status.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace sluice::shm {
namespace {
absl::Status NoMemoryError(const char* what, uint64_t bytes) {
  return Error(absl::StatusCode::kResourceExhausted, "NO_MEMORY",
               absl::StrCat(what, " of a segment of ", bytes, " bytes: ", std::strerror(errno)));
}
}  // namespace

absl::StatusOr<Segment> Segment::Create(const char* name, uint64_t bytes, Access access,
                                        bool touch) {
  Fd fd(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid() || ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0)
    return NoMemoryError("memfd_create", bytes);
  // Allocate all pages now. If memory ran out later, the process would get a signal instead of an
  // error.
  if (touch && fallocate(fd.get(), 0, 0, static_cast<off_t>(bytes)) != 0)
    return NoMemoryError("fallocate", bytes);
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | (touch ? MAP_POPULATE : 0),
                    fd.get(), 0);
  if (data == MAP_FAILED) return NoMemoryError("mmap", bytes);
  Segment segment(std::move(fd), static_cast<char*>(data), bytes);
  const int seals = F_SEAL_SHRINK | F_SEAL_GROW |
                    (access == Access::kOwner ? F_SEAL_FUTURE_WRITE : 0) | F_SEAL_SEAL;
  if (fcntl(segment.fd(), F_ADD_SEALS, seals) != 0) return NoMemoryError("sealing", bytes);
  return segment;
}

absl::StatusOr<Fd> Segment::MakeConstant(const char* name,
                                         absl::Span<const absl::string_view> pieces) {
  uint64_t total = 0;
  for (const absl::string_view piece : pieces) total += piece.size();
  Fd fd(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return NoMemoryError("memfd_create", total);
  for (const absl::string_view piece : pieces) {
    if (!WriteAll(fd.get(), piece, name).ok()) return NoMemoryError("writing", total);
  }
  const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL;
  if (fcntl(fd.get(), F_ADD_SEALS, seals) != 0) return NoMemoryError("sealing", total);
  return fd;
}

bool Segment::is_constant() const {
  const int seals = fcntl(fd_.get(), F_GET_SEALS);
  return seals >= 0 && (seals & F_SEAL_WRITE) != 0;
}

absl::StatusOr<Segment> Segment::Map(Fd fd, uint64_t bytes, bool writable) {
  struct stat found = {};
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  const int fixed = F_SEAL_SHRINK | F_SEAL_GROW;
  if (seals < 0 || (seals & fixed) != fixed || fstat(fd.get(), &found) != 0 ||
      static_cast<uint64_t>(found.st_size) != bytes || bytes == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a segment of ", bytes,
        " bytes was announced; the file has another size, or its size can still change"));
  }
  // Before Linux 6.7 a file that nobody can write to any more cannot be mapped with MAP_SHARED, not
  // even to read it. Its pages are the same with MAP_PRIVATE.
  const bool constant = !writable && (seals & F_SEAL_WRITE) != 0;
  void* data = mmap(nullptr, bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ,
                    constant ? MAP_PRIVATE : MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) return NoMemoryError("mmap", bytes);
  return Segment(std::move(fd), static_cast<char*>(data), bytes);
}

Segment::~Segment() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

}  // namespace sluice::shm
