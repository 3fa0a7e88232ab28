#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace sluice {

// Whole files and folders. Errors name the path and the system's reason: NOT_FOUND,
// PERMISSION_DENIED, RESOURCE_EXHAUSTED (disk full), FAILED_PRECONDITION (not a file or folder),
// else UNKNOWN.

// A descriptor to read `path` with, which the caller closes. FAILED_PRECONDITION, at once, where it
// is no regular file but a directory, FIFO, socket or device: somebody else decides when, or
// whether, those give bytes.
//
// A stream that the process was given (/dev/stdin, /dev/fd/N or /proc/self/fd/N, as of a shell's
// <(..)) is opened as it is.
absl::StatusOr<int> OpenToRead(const std::string& path);

// OpenToRead's file, to its end. RESOURCE_EXHAUSTED also if the file is larger than `limit` bytes;
// nothing is allocated then.
absl::StatusOr<std::string> ReadFile(const std::string& path, uint64_t limit = 1ull << 32);

// OpenToRead's file, handed over from start to end in pieces of at most a megabyte, so that a file
// may be larger than the memory. An error of `take` ends the reading and is returned.
absl::Status ReadFileInPieces(const std::string& path,
                              const std::function<absl::Status(absl::string_view piece)>& take);

// Tells whether two files hold the same bytes.
struct FileDigest {
  uint64_t bytes = 0;
  std::string sha256;  // 32 bytes.

  bool operator==(const FileDigest&) const = default;
};

// Reads the whole file, of any size, in bounded memory.
absl::StatusOr<FileDigest> DigestFile(const std::string& path);

// Writes a temporary file beside `path`, syncs it, renames it over `path`, syncs the folder: after
// a crash there is the old file or the new one, whole.
absl::Status WriteFileAtomic(const std::string& path, absl::string_view bytes);
// The same for a file whose bytes lie in several pieces. With `digest`, the bytes are hashed while
// they are written, so the digest is of what was meant to be written, whatever the disk made of it.
absl::Status WriteFileAtomic(const std::string& path, absl::Span<const absl::string_view> pieces,
                             FileDigest* digest = nullptr);

// Copies `from`, followed by `tail`, to the new file `to` and syncs that, in bounded memory.
// ALREADY_EXISTS: `to` is there. After another error `to` may hold a part.
struct CopiedFile {
  FileDigest from;
  FileDigest to;  // With `tail`.
};
absl::StatusOr<CopiedFile> CopyFile(const std::string& from, const std::string& to,
                                    absl::string_view tail = {});

// Writes all of `bytes` at the file's position. The error names `path`. RESOURCE_EXHAUSTED: the
// disk is full.
absl::Status WriteAll(int fd, absl::string_view bytes, const std::string& path);

absl::Status MakeDirs(const std::string& path);
absl::Status RemoveTree(const std::string& path);
absl::Status SyncDir(const std::string& path);
bool PathExists(const std::string& path);
// Names in `path`, sorted, without . and ..
absl::StatusOr<std::vector<std::string>> ListDir(const std::string& path);

// `path` if absolute, else `base`/`path`.
std::string ResolvePath(absl::string_view base, absl::string_view path);

absl::Status ErrnoStatus(int error, absl::string_view what);

// An exclusive lock on a folder (its file `lock`), held until destruction or the process's end.
class DirLock {
 public:
  // FAILED_PRECONDITION: another process holds it; the message names its pid.
  static absl::StatusOr<DirLock> Take(const std::string& dir);
  // Keeps an owner away while somebody reads; changes nothing. FAILED_PRECONDITION as above;
  // NOT_FOUND: never owned.
  static absl::StatusOr<DirLock> TakeToRead(const std::string& dir);
  ~DirLock();
  DirLock(DirLock&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  DirLock& operator=(DirLock&&) = delete;

 private:
  static absl::StatusOr<DirLock> Lock(const std::string& dir, int open_flags, int how);
  explicit DirLock(int fd) : fd_(fd) {}
  int fd_;
};

}  // namespace sluice
