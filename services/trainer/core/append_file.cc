#include "services/trainer/core/append_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/base/roots.h"
#include "common/base/status.h"

namespace sluice::trainer {
absl::StatusOr<int64_t> AppendToFile(const std::string& path, absl::string_view bytes,
                                     const KeptBytes& find_kept) {
  SLUICE_ASSIGN_OR_RETURN(const int fd, OpenPath(path, O_RDWR | O_CREAT | O_APPEND, 0644));
  const absl::Cleanup close = [fd] { ::close(fd); };

  struct stat info;
  if (::fstat(fd, &info) != 0) return ErrnoStatus(errno, absl::StrCat("stat of ", path));
  SLUICE_ASSIGN_OR_RETURN(const int64_t size, find_kept(fd, info.st_size));
  SLUICE_CHECK(0 <= size && size <= info.st_size);
  if (size < info.st_size && ::ftruncate(fd, size) != 0) {
    return ErrnoStatus(errno, absl::StrCat("cutting ", path, " back to ", size, " bytes"));
  }

  if (absl::Status status = WriteAll(fd, bytes, path); !status.ok()) {
    (void)!::ftruncate(fd, size);
    return status;
  }
  return size + static_cast<int64_t>(bytes.size());
}

}  // namespace sluice::trainer
