#include "common/base/pipe.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "common/base/file.h"

namespace sluice {

absl::StatusOr<Pipe> MakePipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return ErrnoStatus(errno, "pipe");
  return Pipe{Fd(ends[0]), Fd(ends[1])};
}

}  // namespace sluice
