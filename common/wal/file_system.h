#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace sluice::wal {

// One open file; the destructor closes it. Several threads may use it, but only one at a time.
class File {
 public:
  virtual ~File() = default;
  // Writes the pieces one after the other, starting at `offset`. On an error some of them may have
  // been written.
  virtual absl::Status Write(uint64_t offset, absl::Span<const absl::string_view> pieces) = 0;
  // Brings all written bytes, and the file size needed to read them, to the disk (fdatasync).
  virtual absl::Status Sync() = 0;
  // Allocates disk space for the first `size` bytes and makes the file at least that large
  // (posix_fallocate).
  virtual absl::Status Allocate(uint64_t size) = 0;
  virtual absl::Status Truncate(uint64_t size) = 0;
  // Returns the number of bytes read. It is below `size` only at the end of the file.
  virtual absl::StatusOr<size_t> Read(uint64_t offset, char* to, size_t size) = 0;
  virtual absl::StatusOr<uint64_t> Size() = 0;
};

// The system calls that the log uses. It is an interface so that tests can lose unsynced bytes,
// fill the disk and make calls fail (common/testing/fault_file_system.h). Error messages name the
// path.
// NOT_FOUND, PERMISSION_DENIED: as usual.
// RESOURCE_EXHAUSTED: the disk is full.
// Any other error: as in common/base/file.h.
//
// Thread-safe.
class FileSystem {
 public:
  // Makes its holder the only owner of a directory; the destructor releases it.
  class Lock {
   public:
    virtual ~Lock() = default;
  };

  virtual ~FileSystem() = default;
  virtual absl::StatusOr<std::unique_ptr<File>> OpenForRead(const std::string& path) = 0;
  // Opens for reading and writing; creates the file if it does not exist.
  virtual absl::StatusOr<std::unique_ptr<File>> OpenForWrite(const std::string& path) = 0;
  // Replaces `to` if it exists.
  virtual absl::Status Rename(const std::string& from, const std::string& to) = 0;
  virtual absl::Status Remove(const std::string& path) = 0;
  // Returns the names in `dir`, sorted.
  virtual absl::StatusOr<std::vector<std::string>> List(const std::string& dir) = 0;
  virtual absl::Status MakeDirs(const std::string& dir) = 0;
  // Brings new, changed and removed names of `dir` to the disk.
  virtual absl::Status SyncDir(const std::string& dir) = 0;
  virtual absl::StatusOr<uint64_t> FreeBytes(const std::string& dir) = 0;
  // Takes the lock of `dir`. FAILED_PRECONDITION (DATA_DIR_IN_USE): another process holds it.
  virtual absl::StatusOr<std::unique_ptr<Lock>> TakeLock(const std::string& dir) = 0;

  // The real file system; never destroyed.
  static FileSystem* Real();
};

}  // namespace sluice::wal
