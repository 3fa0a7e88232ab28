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

// One open file. Closed by its destructor. Calls may come from several threads, one at a time.
class File {
 public:
  virtual ~File() = default;
  // Writes the pieces one behind the other from `offset` on: all, or an error (some may be written
  // then).
  virtual absl::Status Write(uint64_t offset, absl::Span<const absl::string_view> pieces) = 0;
  // What was written is on the disk, with the size needed to read it (fdatasync).
  virtual absl::Status Sync() = 0;
  // The first `size` bytes have room on the disk; the file is at least that large afterwards
  // (posix_fallocate).
  virtual absl::Status Allocate(uint64_t size) = 0;
  virtual absl::Status Truncate(uint64_t size) = 0;
  // Bytes read: fewer than `size` only at the end of the file.
  virtual absl::StatusOr<size_t> Read(uint64_t offset, char* to, size_t size) = 0;
  virtual absl::StatusOr<uint64_t> Size() = 0;
};

// What the log asks of the system, so that tests can lose unsynced bytes, fill the disk and break
// calls (common/testing/fault_file_system.h). Errors name the path: NOT_FOUND, PERMISSION_DENIED,
// RESOURCE_EXHAUSTED (disk full), else as common/base/file.h.
//
// Thread-safe.
class FileSystem {
 public:
  // Whoever holds it is the directory's one owner; given back by the destructor.
  class Lock {
   public:
    virtual ~Lock() = default;
  };

  virtual ~FileSystem() = default;
  virtual absl::StatusOr<std::unique_ptr<File>> OpenForRead(const std::string& path) = 0;
  // For reading and writing; made if absent.
  virtual absl::StatusOr<std::unique_ptr<File>> OpenForWrite(const std::string& path) = 0;
  // Replaces `to`.
  virtual absl::Status Rename(const std::string& from, const std::string& to) = 0;
  virtual absl::Status Remove(const std::string& path) = 0;
  // Names in `dir`, sorted.
  virtual absl::StatusOr<std::vector<std::string>> List(const std::string& dir) = 0;
  virtual absl::Status MakeDirs(const std::string& dir) = 0;
  // Renames, new and removed names of `dir` are on the disk.
  virtual absl::Status SyncDir(const std::string& dir) = 0;
  virtual absl::StatusOr<uint64_t> FreeBytes(const std::string& dir) = 0;
  // FAILED_PRECONDITION (DATA_DIR_IN_USE): another owner holds it.
  virtual absl::StatusOr<std::unique_ptr<Lock>> TakeLock(const std::string& dir) = 0;

  // The machine's; lives for ever.
  static FileSystem* Real();
};

}  // namespace sluice::wal
