#include "common/base/roots.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/syscall.h>

#include <atomic>
#include <cerrno>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/file.h"
#include "common/base/mutex.h"
#include "common/base/status.h"

namespace sluice {
namespace {

// Whether a path is absolute and its text alone says where it leads, but for links.
bool IsPlain(absl::string_view path) {
  if (!absl::ConsumePrefix(&path, "/")) return false;
  for (const absl::string_view name : absl::StrSplit(path, '/')) {
    if (name.empty() || name == "." || name == "..") return false;
  }
  return !absl::StrContains(path, '\0');
}

int OpenBeneath(int folder, const char* path, int flags, mode_t mode) {
  open_how how{};
  how.flags = static_cast<uint64_t>(flags | O_CLOEXEC);
  how.mode = mode;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS;
  while (true) {
    const auto fd = static_cast<int>(syscall(SYS_openat2, folder, path, &how, sizeof(how)));
    // EAGAIN: something on the way was renamed meanwhile, so the kernel could not be sure.
    if (fd >= 0 || (errno != EAGAIN && errno != EINTR)) return fd;
  }
}

absl::Status OutsideError(absl::string_view path, absl::string_view why) {
  return ErrorWith(absl::StatusCode::kPermissionDenied,
                   {.reason = "OUTSIDE_ROOTS",
                    .catalogue = "SLUICE-AUTH-0010",
                    .hint = "move the files there, or ask the operator to start the daemons with "
                            "--read-root or --write-root of their folder"},
                   absl::StrCat(path, why));
}

Mutex mu;
std::shared_ptr<const Roots>& CurrentRoots() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
  static auto* const roots = new std::shared_ptr<const Roots>();
  return *roots;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Roots>> Roots::Rules(const std::vector<std::string>& read,
                                                          const std::vector<std::string>& write) {
  return Make(read, write, [](const std::string&) { return Fd(); });
}

absl::StatusOr<std::shared_ptr<const Roots>> Roots::Open(const std::vector<std::string>& read,
                                                         const std::vector<std::string>& write,
                                                         bool must_exist) {
  return Make(read, write, [&](const std::string& path) -> absl::StatusOr<Fd> {
    Fd folder(open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (!folder.valid() && (must_exist || errno != ENOENT))
      return ErrnoStatus(errno, absl::StrCat("open the root ", path));
    const Fd probe(OpenBeneath(folder.get(), ".", O_PATH, 0));
    if (!probe.valid() && errno == ENOSYS)
      return absl::UnimplementedError("roots need openat2(), which Linux has from version 5.6 on");
    return folder;
  });
}

absl::StatusOr<std::shared_ptr<const Roots>> Roots::Make(
    const std::vector<std::string>& read, const std::vector<std::string>& write,
    const std::function<absl::StatusOr<Fd>(const std::string& path)>& open_folder) {
  auto roots = std::make_shared<Roots>();
  const auto add = [&](const std::string& path, Access access) -> absl::Status {
    if (!IsPlain(path)) {
      return Error(absl::StatusCode::kInvalidArgument, "BAD_ROOT",
                   absl::StrCat("\"", path,
                                "\" cannot be a root; wanted: the absolute path of a folder, "
                                "without a slash at its end, \".\" or \"..\""));
    }
    SLUICE_ASSIGN_OR_RETURN(Fd folder, open_folder(path));
    roots->roots_.push_back({path, access, std::move(folder)});
    return absl::OkStatus();
  };
  for (const std::string& path : write) SLUICE_RETURN_IF_ERROR(add(path, Access::kWrite));
  for (const std::string& path : read) SLUICE_RETURN_IF_ERROR(add(path, Access::kRead));
  return roots;
}

const Roots::Root* Roots::Find(absl::string_view path) const {
  const Root* found = nullptr;
  for (const Root& root : roots_) {
    const bool below = absl::StartsWith(path, root.path) &&
                       (path.size() == root.path.size() || path[root.path.size()] == '/');
    // The first of equal roots counts, and those for writing come first.
    if (below && (found == nullptr || root.path.size() > found->path.size())) found = &root;
  }
  return found;
}

absl::Status Roots::Check(absl::string_view path, Access access) const {
  const Root* const root = IsPlain(path) ? Find(path) : nullptr;
  if (root != nullptr && (access == Access::kRead || root->access == Access::kWrite))
    return absl::OkStatus();
  std::vector<std::string> allowed;
  for (const Root& other : roots_) {
    if (access == Access::kRead || other.access == Access::kWrite) allowed.push_back(other.path);
  }
  return OutsideError(path, absl::StrCat(" is not below a folder that jobs may ",
                                         access == Access::kRead ? "read" : "write", ", which are ",
                                         allowed.empty() ? "none" : absl::StrJoin(allowed, ", ")));
}

void SetProcessRoots(std::shared_ptr<const Roots> roots) {
  MutexLock lock(&mu);
  CurrentRoots() = std::move(roots);
}

std::shared_ptr<const Roots> ProcessRoots() {
  MutexLock lock(&mu);
  return CurrentRoots();
}

absl::StatusOr<int> OpenPath(const std::string& path, int flags, mode_t mode) {
  const std::shared_ptr<const Roots> roots = ProcessRoots();
  const Roots::Root* const root = roots == nullptr ? nullptr : roots->Find(path);
  if (root == nullptr) {
    const int fd = open(path.c_str(), flags | O_CLOEXEC, mode);
    if (fd < 0) return ErrnoStatus(errno, absl::StrCat("open ", path));
    return fd;
  }

  const bool writes =
      (flags & O_PATH) == 0 && (flags & (O_ACCMODE | O_CREAT | O_TRUNC)) != O_RDONLY;
  if (writes && root->access == Roots::Access::kRead)
    return OutsideError(path,
                        absl::StrCat(" lies below ", root->path, ", which jobs may only read"));
  if (!root->folder.valid()) return ErrnoStatus(ENOENT, absl::StrCat("open ", path));
  const size_t skipped = std::min(path.size(), root->path.size() + 1);
  const std::string below = skipped == path.size() ? "." : path.substr(skipped);
  const int fd = OpenBeneath(root->folder.get(), below.c_str(), flags, mode);
  if (fd >= 0) return fd;
  if (errno == EXDEV)
    return OutsideError(path,
                        absl::StrCat(" leads out of ", root->path, " through a link or \"..\""));
  return ErrnoStatus(errno, absl::StrCat("open ", path));
}

absl::StatusOr<PathInFolder> PathInFolder::Open(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (ProcessRoots() == nullptr || slash == std::string::npos || slash == 0)
    return PathInFolder(Fd(), path);
  SLUICE_ASSIGN_OR_RETURN(const int folder, OpenPath(path.substr(0, slash), O_PATH | O_DIRECTORY));
  Fd owned(folder);
  std::string in_folder = absl::StrCat("/proc/self/fd/", folder, path.substr(slash));
  return PathInFolder(std::move(owned), std::move(in_folder));
}

}  // namespace sluice
