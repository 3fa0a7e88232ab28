#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace sluice {

// Functions on whole files and folders. All are thread-safe. Errors name the path and the system's
// reason:
// NOT_FOUND: no such file or folder.
// PERMISSION_DENIED: the process may not do this.
// RESOURCE_EXHAUSTED: the disk is full.
// FAILED_PRECONDITION: the path is a folder where a file is needed, or the other way round.
// ALREADY_EXISTS: there is something at the path already.
// UNKNOWN: any other reason.
// Paths below the roots of this process are confined to them (roots.h).

// Opens `path` for reading. The caller closes the descriptor.
// FAILED_PRECONDITION: `path` is not a regular file but a directory, FIFO, socket or device.
// Another process decides whether and when those deliver bytes, so a read could block for ever.
//
// A stream that the process was given (/dev/stdin, /dev/fd/N or /proc/self/fd/N, as from a shell's
// <(..)) is opened even if it is not a regular file.
absl::StatusOr<int> OpenToRead(const std::string& path);

// Reads a file that OpenToRead() accepts, to its end.
// RESOURCE_EXHAUSTED: the file is larger than `limit` bytes. If its size already says so, nothing
// is allocated.
absl::StatusOr<std::string> ReadFile(const std::string& path, uint64_t limit = 1ull << 32);

// Reads a file that OpenToRead() accepts, and passes it to `take` in pieces of at most one MiB, so
// that the file may be larger than memory. An error of `take` ends the reading and is returned.
absl::Status ReadFileInPieces(const std::string& path,
                              const std::function<absl::Status(absl::string_view piece)>& take);

// Size and hash of a file. Two files with equal digests hold the same bytes.
struct FileDigest {
  uint64_t bytes = 0;
  std::string sha256;  // 32 bytes.

  bool operator==(const FileDigest&) const = default;
};

// Reads a file of any size, in bounded memory.
absl::StatusOr<FileDigest> DigestFile(const std::string& path);

// Writes a temporary file beside `path`, syncs it, renames it over `path` and syncs the folder.
// After a crash either the complete old file or the complete new file is there.
absl::Status WriteFileAtomic(const std::string& path, absl::string_view bytes);
// The same for a file that only its owner may read or write, such as a private key.
absl::Status WriteSecretAtomic(const std::string& path, absl::string_view bytes);
// The same for a file whose bytes lie in several pieces. With `digest`, the bytes are hashed while
// they are written, so the digest describes the bytes passed in even if the disk stores other
// bytes.
absl::Status WriteFileAtomic(const std::string& path, absl::Span<const absl::string_view> pieces,
                             FileDigest* digest = nullptr);

// The same for a file that `fill` writes by calls of `append`, which may be larger than memory. An
// error of `fill` ends the writing and is returned.
using AppendFn = absl::FunctionRef<absl::Status(absl::string_view piece)>;
absl::Status WriteFileInPieces(const std::string& path,
                               absl::FunctionRef<absl::Status(AppendFn append)> fill,
                               FileDigest* digest = nullptr);

// Makes the folder `path` completely or not at all: `fill` writes into a temporary folder beside
// it, which is then synced and renamed to `path`. Only the folder itself is synced here, so `fill`
// must sync the files that it writes, as WriteFileAtomic() and CopyFile() do.
//
// After an error the temporary folder is removed; after a crash it remains, named like `path` with
// `.tmp-` and eight hex digits.
// ALREADY_EXISTS: `path` exists.
absl::Status WriteDirAtomic(const std::string& path,
                            const std::function<absl::Status(const std::string& temporary)>& fill);

// The digests of both files of CopyFile().
struct CopiedFile {
  FileDigest from;
  FileDigest to;  // Includes `tail`.
};
// Copies `from`, followed by `tail`, to the new file `to` and syncs it, in bounded memory.
// ALREADY_EXISTS: `to` exists. After any other error `to` may hold a part of the copy.
absl::StatusOr<CopiedFile> CopyFile(const std::string& from, const std::string& to,
                                    absl::string_view tail = {});

// Writes all of `bytes` at the current position of `fd`. `path` is only for the error message.
// RESOURCE_EXHAUSTED: the disk is full.
absl::Status WriteAll(int fd, absl::string_view bytes, const std::string& path);

// Creates the folder `path` and its missing parents. OK if it exists.
absl::Status MakeDirs(const std::string& path);
// Removes `path` and everything below it. OK if it does not exist.
absl::Status RemoveTree(const std::string& path);
// Makes earlier creations, renames and removals in the folder `path` durable.
absl::Status SyncDir(const std::string& path);
bool PathExists(const std::string& path);
// The names in the folder `path`, sorted, without "." and "..".
absl::StatusOr<std::vector<std::string>> ListDir(const std::string& path);

// `path` if it is absolute or `base` is empty, else `base`/`path`, normalised.
std::string ResolvePath(absl::string_view base, absl::string_view path);

// The status for the errno value `error`, with the codes listed above; `what` says what was tried.
absl::Status ErrnoStatus(int error, absl::string_view what);

// A lock on a folder, by its file `lock`. It is held until the object is destroyed or the process
// ends.
class DirLock {
 public:
  // Takes the lock exclusively, as the owner of the folder, and writes this process's pid into the
  // file. Creates the folder if needed.
  // FAILED_PRECONDITION: another process holds the lock; the message names its pid if it is the
  // owner, and else says that the folder is being read.
  static absl::StatusOr<DirLock> Acquire(const std::string& dir);
  // Takes a shared lock, so that no owner can start while this process reads. Changes no file.
  // FAILED_PRECONDITION: the folder has an owner; the message names its pid.
  // NOT_FOUND: the folder never had an owner.
  static absl::StatusOr<DirLock> AcquireShared(const std::string& dir);
  ~DirLock();
  DirLock(DirLock&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  DirLock& operator=(DirLock&&) = delete;

 private:
  static absl::StatusOr<DirLock> Lock(const std::string& dir, int open_flags, int how);
  explicit DirLock(int fd) : fd_(fd) {}
  int fd_;
};

}  // namespace sluice
