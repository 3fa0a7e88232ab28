#include "common/base/file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/digest.h"
#include "common/base/fd.h"
#include "common/base/id.h"
#include "common/base/roots.h"
#include "common/base/status.h"

namespace sluice {
namespace {
namespace fs = std::filesystem;

constexpr size_t kPieceBytes = 1 << 20;

// Returns the path without slashes at its end. Then an appended suffix gives a name in the same
// folder, and parent_path() is the folder that contains it.
std::string WithoutTrailingSlashes(absl::string_view path) {
  while (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  return std::string(path);
}

// A name beside `path` that no other writer uses.
std::string TemporaryName(absl::string_view path) {
  return absl::StrCat(WithoutTrailingSlashes(path), ".tmp-", ToHex(RandomId16()).substr(0, 8));
}

// Renames `from` to `to` in the same folder, and syncs that folder. The new name survives a crash
// only after the sync.
absl::Status RenameAndSync(const std::string& from, const std::string& to) {
  SLUICE_ASSIGN_OR_RETURN(const PathInFolder old_name, PathInFolder::Open(from));
  SLUICE_ASSIGN_OR_RETURN(const PathInFolder new_name, PathInFolder::Open(to));
  if (rename(old_name.get().c_str(), new_name.get().c_str()) != 0)
    return ErrnoStatus(errno, absl::StrCat("rename ", from, " to ", to));
  const std::string parent = fs::path(WithoutTrailingSlashes(to)).parent_path().string();
  return SyncDir(parent.empty() ? "." : parent);
}

// A SHA-256 that also counts the bytes.
class Hasher {
 public:
  void Add(absl::string_view bytes) {
    sha256_.Update(bytes);
    bytes_ += bytes.size();
  }
  FileDigest Finish() { return {bytes_, sha256_.Finish()}; }

 private:
  Sha256Stream sha256_;
  uint64_t bytes_ = 0;
};

// Says what a path is that is not a regular file.
absl::string_view KindName(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

absl::Status NotAFileError(const std::string& path, mode_t mode) {
  return absl::FailedPreconditionError(
      absl::StrCat(path, " is ", KindName(mode), "; a file is needed"));
}

// Hashes each piece just before it is written, while the bytes are in the CPU's cache.
absl::Status WriteAndHash(int fd, absl::string_view bytes, const std::string& path,
                          Hasher* hasher) {
  while (!bytes.empty()) {
    const absl::string_view piece = bytes.substr(0, kPieceBytes);
    hasher->Add(piece);
    SLUICE_RETURN_IF_ERROR(WriteAll(fd, piece, path));
    bytes.remove_prefix(piece.size());
  }
  return absl::OkStatus();
}

bool IsGivenStream(absl::string_view path) {
  return path == "/dev/stdin" || absl::StartsWith(path, "/dev/fd/") ||
         absl::StartsWith(path, "/proc/self/fd/");
}
}  // namespace

absl::Status WriteAll(int fd, absl::string_view bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t n = write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, absl::StrCat("write ", path));
    bytes.remove_prefix(n);
  }
  return absl::OkStatus();
}

absl::Status ErrnoStatus(int error, absl::string_view what) {
  const std::string message = absl::StrCat(what, ": ", std::strerror(error));
  switch (error) {
    case ENOENT: return absl::NotFoundError(message);
    case EACCES:
    case EPERM: return absl::PermissionDeniedError(message);
    case ENOSPC:
    case EDQUOT: return absl::ResourceExhaustedError(message);
    case EEXIST: return absl::AlreadyExistsError(message);
    case ENOTDIR:
    case EISDIR: return absl::FailedPreconditionError(message);
    default: return absl::UnknownError(message);
  }
}

absl::StatusOr<int> OpenToRead(const std::string& path) {
  const bool given = IsGivenStream(path);
  struct stat info;

  // Without O_NONBLOCK, opening a FIFO would wait for a writer. The flag has no effect on a regular
  // file.
  const absl::StatusOr<int> fd = OpenPath(path, O_RDONLY | O_NOCTTY | (given ? 0 : O_NONBLOCK));
  if (!fd.ok()) {
    // A socket, or a device without a driver, cannot be opened.
    const bool special = absl::IsUnknown(fd.status()) && stat(path.c_str(), &info) == 0;
    return special ? NotAFileError(path, info.st_mode) : fd.status();
  }

  absl::Status status;
  if (fstat(*fd, &info) != 0) {
    status = ErrnoStatus(errno, absl::StrCat("stat ", path));
  } else if (S_ISDIR(info.st_mode) || (!given && !S_ISREG(info.st_mode))) {
    status = NotAFileError(path, info.st_mode);
  }
  if (status.ok()) return *fd;
  close(*fd);
  return status;
}

absl::StatusOr<std::string> ReadFile(const std::string& path, uint64_t limit) {
  SLUICE_ASSIGN_OR_RETURN(const int opened, OpenToRead(path));
  const Fd fd(opened);
  struct stat info;
  if (fstat(fd.get(), &info) != 0) return ErrnoStatus(errno, absl::StrCat("stat ", path));

  if (static_cast<uint64_t>(info.st_size) > limit) {
    return absl::ResourceExhaustedError(
        absl::StrCat(path, " has ", info.st_size, " bytes, the limit is ", limit));
  }

  // The size is only a hint: files in /proc report 0, and a file may grow while it is read.
  std::string bytes(info.st_size + 1, '\0');
  size_t done = 0;
  while (true) {
    if (done == bytes.size()) bytes.resize(2 * bytes.size());
    const ssize_t n = read(fd.get(), bytes.data() + done, bytes.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, absl::StrCat("read ", path));
    if (n == 0) break;
    done += n;
    if (done > limit)
      return absl::ResourceExhaustedError(
          absl::StrCat(path, " has more than ", limit, " bytes, the limit"));
  }

  bytes.resize(done);
  return bytes;
}

absl::Status ReadFileInPieces(const std::string& path,
                              const std::function<absl::Status(absl::string_view piece)>& take) {
  SLUICE_ASSIGN_OR_RETURN(const int opened, OpenToRead(path));
  const Fd fd(opened);
  std::string piece(kPieceBytes, '\0');

  while (true) {
    const ssize_t n = read(fd.get(), piece.data(), piece.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, absl::StrCat("read ", path));
    if (n == 0) return absl::OkStatus();
    SLUICE_RETURN_IF_ERROR(take(absl::string_view(piece).substr(0, static_cast<size_t>(n))));
  }
}

absl::StatusOr<FileDigest> DigestFile(const std::string& path) {
  Hasher hasher;
  SLUICE_RETURN_IF_ERROR(ReadFileInPieces(path, [&](absl::string_view piece) {
    hasher.Add(piece);
    return absl::OkStatus();
  }));
  return hasher.Finish();
}

namespace {
// WriteFileAtomic() for a file with the permissions `mode`.
absl::Status WriteAtomic(const std::string& path, mode_t mode,
                         absl::FunctionRef<absl::Status(AppendFn append)> fill,
                         FileDigest* digest) {
  Hasher hasher;
  const std::string temporary = TemporaryName(path);
  absl::Status status;
  {
    SLUICE_ASSIGN_OR_RETURN(const int opened,
                            OpenPath(temporary, O_WRONLY | O_CREAT | O_EXCL, mode));
    const Fd fd(opened);
    status = fill([&](absl::string_view piece) {
      return digest == nullptr ? WriteAll(fd.get(), piece, temporary)
                               : WriteAndHash(fd.get(), piece, temporary, &hasher);
    });
    if (status.ok() && fsync(fd.get()) != 0)
      status = ErrnoStatus(errno, absl::StrCat("fsync ", temporary));
  }

  if (status.ok()) status = RenameAndSync(temporary, path);
  if (!status.ok()) {
    (void)RemoveTree(temporary);  // The first error is the one to report.
    return status;
  }
  if (digest != nullptr) *digest = hasher.Finish();
  return absl::OkStatus();
}
}  // namespace

absl::Status WriteFileAtomic(const std::string& path, absl::string_view bytes) {
  return WriteFileAtomic(path, absl::MakeConstSpan(&bytes, 1));
}

absl::Status WriteSecretAtomic(const std::string& path, absl::string_view bytes) {
  return WriteAtomic(path, 0600, [&](AppendFn append) { return append(bytes); }, nullptr);
}

absl::Status WriteFileAtomic(const std::string& path, absl::Span<const absl::string_view> pieces,
                             FileDigest* digest) {
  return WriteFileInPieces(
      path,
      [&](AppendFn append) {
        absl::Status status;
        for (size_t i = 0; i < pieces.size() && status.ok(); ++i) status = append(pieces[i]);
        return status;
      },
      digest);
}

absl::Status WriteFileInPieces(const std::string& path,
                               absl::FunctionRef<absl::Status(AppendFn append)> fill,
                               FileDigest* digest) {
  return WriteAtomic(path, 0644, fill, digest);
}

absl::Status WriteDirAtomic(const std::string& path,
                            const std::function<absl::Status(const std::string& temporary)>& fill) {
  if (PathExists(path)) {
    return absl::AlreadyExistsError(
        absl::StrCat(path, " exists already; name another folder or remove it"));
  }

  const std::string temporary = TemporaryName(path);
  absl::Status status = MakeDirs(temporary);
  if (status.ok()) status = fill(temporary);
  if (status.ok()) status = SyncDir(temporary);
  if (status.ok()) status = RenameAndSync(temporary, path);
  if (!status.ok()) (void)RemoveTree(temporary);  // The first error is the one to report.
  return status;
}

absl::StatusOr<CopiedFile> CopyFile(const std::string& from, const std::string& to,
                                    absl::string_view tail) {
  SLUICE_ASSIGN_OR_RETURN(const int opened, OpenPath(to, O_WRONLY | O_CREAT | O_EXCL, 0644));
  const Fd fd(opened);

  Hasher before, after;
  SLUICE_RETURN_IF_ERROR(ReadFileInPieces(from, [&](absl::string_view piece) {
    before.Add(piece);
    return WriteAndHash(fd.get(), piece, to, &after);
  }));
  SLUICE_RETURN_IF_ERROR(WriteAndHash(fd.get(), tail, to, &after));
  if (fsync(fd.get()) != 0) return ErrnoStatus(errno, absl::StrCat("fsync ", to));
  return CopiedFile{before.Finish(), after.Finish()};
}

absl::Status SyncDir(const std::string& path) {
  SLUICE_ASSIGN_OR_RETURN(const int opened, OpenPath(path, O_RDONLY | O_DIRECTORY));
  const Fd fd(opened);
  if (fsync(fd.get()) != 0) return ErrnoStatus(errno, absl::StrCat("fsync ", path));
  return absl::OkStatus();
}

absl::Status MakeDirs(const std::string& path) {
  // Each folder is made in its parent, which is opened below its root.
  fs::path made;
  for (const fs::path& name : fs::path(path)) {
    made /= name;
    if (PathExists(made.string())) continue;
    SLUICE_ASSIGN_OR_RETURN(const PathInFolder made_in, PathInFolder::Open(made.string()));
    if (mkdir(made_in.get().c_str(), 0777) != 0 && errno != EEXIST)
      return ErrnoStatus(errno, absl::StrCat("mkdir ", made.string()));
  }
  struct stat info;
  if (stat(path.c_str(), &info) != 0) return ErrnoStatus(errno, absl::StrCat("stat ", path));
  return S_ISDIR(info.st_mode) ? absl::OkStatus()
                               : ErrnoStatus(ENOTDIR, absl::StrCat("mkdir ", path));
}

absl::Status RemoveTree(const std::string& path) {
  const absl::StatusOr<PathInFolder> in_folder = PathInFolder::Open(path);
  if (absl::IsNotFound(in_folder.status())) return absl::OkStatus();
  SLUICE_RETURN_IF_ERROR(in_folder.status());
  std::error_code error;
  fs::remove_all(in_folder->get(), error);
  return error ? ErrnoStatus(error.value(), absl::StrCat("remove ", path)) : absl::OkStatus();
}

bool PathExists(const std::string& path) {
  std::error_code error;
  return fs::exists(path, error);
}

absl::StatusOr<std::vector<std::string>> ListDir(const std::string& path) {
  SLUICE_ASSIGN_OR_RETURN(const int opened, OpenPath(path, O_RDONLY | O_DIRECTORY));
  const Fd fd(opened);
  std::error_code error;
  fs::directory_iterator it(absl::StrCat("/proc/self/fd/", fd.get()), error);
  if (error) return ErrnoStatus(error.value(), absl::StrCat("list ", path));
  std::vector<std::string> names;
  for (const auto& entry : it) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

std::string ResolvePath(absl::string_view base, absl::string_view path) {
  if (absl::StartsWith(path, "/") || base.empty()) return std::string(path);
  return (fs::path(std::string(base)) / std::string(path)).lexically_normal().string();
}

absl::StatusOr<DirLock> DirLock::Lock(const std::string& dir, int open_flags, int how) {
  const std::string path = absl::StrCat(dir, "/lock");
  const int fd = open(path.c_str(), open_flags | O_CLOEXEC, 0644);
  if (fd < 0) return ErrnoStatus(errno, absl::StrCat("open ", path));

  if (flock(fd, how | LOCK_NB) != 0) {
    // A shared lock can be had only while no owner holds the lock. The pid in the file is then that
    // of an owner that has ended.
    if (flock(fd, LOCK_SH | LOCK_NB) == 0) {
      close(fd);
      return ErrorWith(absl::StatusCode::kFailedPrecondition,
                       {.reason = "DATA_DIR_IN_USE",
                        .hint = "wait until that process, such as `sluice queue fsck`, has ended"},
                       absl::StrCat("data directory ", dir, " is being read by another process"));
    }
    // The owner has written its pid into the file.
    char owner[32] = {};
    const ssize_t n = pread(fd, owner, sizeof owner - 1, 0);
    close(fd);
    return ErrorWith(absl::StatusCode::kFailedPrecondition,
                     {.reason = "DATA_DIR_IN_USE",
                      .hint = "stop that process, or give this one another --data-dir"},
                     absl::StrCat("data directory ", dir, " is in use by the process with pid ",
                                  n > 0 ? std::string(owner, n) : "unknown"));
  }
  return DirLock(fd);
}

absl::StatusOr<DirLock> DirLock::Acquire(const std::string& dir) {
  SLUICE_RETURN_IF_ERROR(MakeDirs(dir));
  SLUICE_ASSIGN_OR_RETURN(DirLock lock, Lock(dir, O_RDWR | O_CREAT, LOCK_EX));

  const std::string pid = absl::StrCat(getpid());
  if (ftruncate(lock.fd_, 0) != 0 || pwrite(lock.fd_, pid.data(), pid.size(), 0) < 0)
    return ErrnoStatus(errno, absl::StrCat("write ", dir, "/lock"));
  return lock;
}

absl::StatusOr<DirLock> DirLock::AcquireShared(const std::string& dir) {
  return Lock(dir, O_RDONLY, LOCK_SH);
}

DirLock::~DirLock() {
  if (fd_ >= 0) close(fd_);
}

}  // namespace sluice
