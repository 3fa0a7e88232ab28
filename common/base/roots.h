#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/fd.h"

// The files of jobs are named by people who may not read or write everything that a daemon can. An
// operator therefore confines them to folders, the roots. All functions here are thread-safe.
namespace sluice {

class Roots {
 public:
  enum class Access { kRead, kWrite };

  // Opens the folders. What may be written may also be read. Without `must_exist`, a folder that
  // this host does not have is only a rule of Check(), and nothing below it is found.
  // INVALID_ARGUMENT BAD_ROOT: a path is not absolute, ends with a slash, has an empty component,
  // "." or "..", or is "/".
  // NOT_FOUND: a folder does not exist, with `must_exist`.
  // PERMISSION_DENIED, FAILED_PRECONDITION: a folder cannot be opened.
  // UNIMPLEMENTED: the kernel has no openat2() (Linux 5.6).
  static absl::StatusOr<std::shared_ptr<const Roots>> Open(const std::vector<std::string>& read,
                                                           const std::vector<std::string>& write,
                                                           bool must_exist = true);
  // The same rules for Check(), without opening a folder, of this host or another.
  // INVALID_ARGUMENT BAD_ROOT as above.
  static absl::StatusOr<std::shared_ptr<const Roots>> Rules(const std::vector<std::string>& read,
                                                            const std::vector<std::string>& write);

  // OK: `path` is a root, or the path of something below a root that allows `access`.
  // PERMISSION_DENIED OUTSIDE_ROOTS: it is another path, or it is relative, or has an empty
  // component, "." or "..". The message names the roots.
  absl::Status Check(absl::string_view path, Access access) const;

 private:
  friend absl::StatusOr<int> OpenPath(const std::string& path, int flags, mode_t mode);
  struct Root {
    std::string path;
    Access access;
    Fd folder;
  };
  static absl::StatusOr<std::shared_ptr<const Roots>> Make(
      const std::vector<std::string>& read, const std::vector<std::string>& write,
      const std::function<absl::StatusOr<Fd>(const std::string& path)>& open_folder);
  // The innermost root that is `path` or above it. Null if there is none.
  const Root* Find(absl::string_view path) const;

  std::vector<Root> roots_;
};

// Confines the files of jobs to `roots` in this process; null: they are not confined.
void SetProcessRoots(std::shared_ptr<const Roots> roots);
std::shared_ptr<const Roots> ProcessRoots();

// open() with O_CLOEXEC. A path that begins with a root of this process can name only what lies
// below that root, whatever links lie on the way; and without write access of the root, only for
// reading. Other paths are not a job's, because Roots::Check() refuses those, and are opened as
// they are. The caller closes the descriptor.
// PERMISSION_DENIED OUTSIDE_ROOTS: a link leads out of the root, or the root is only for reading.
// Else ErrnoStatus() of file.h.
absl::StatusOr<int> OpenPath(const std::string& path, int flags, mode_t mode = 0);

// A path for calls that have no openat2(), such as rename(). Its folder is opened as OpenPath()
// does, and stays open.
class PathInFolder {
 public:
  // The errors of OpenPath() for the folder of `path`.
  static absl::StatusOr<PathInFolder> Open(const std::string& path);
  const std::string& get() const { return path_; }

 private:
  PathInFolder(Fd folder, std::string path) : folder_(std::move(folder)), path_(std::move(path)) {}
  Fd folder_;  // Not valid if the path begins with no root.
  std::string path_;
};

}  // namespace sluice
