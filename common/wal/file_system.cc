#include "common/wal/file_system.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/base/status.h"

namespace sluice::wal {
namespace {

class RealFile : public File {
 public:
  RealFile(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  ~RealFile() override { close(fd_); }

  absl::Status Write(uint64_t offset, absl::Span<const absl::string_view> pieces) override {
    std::vector<iovec> rest;
    rest.reserve(pieces.size());
    for (const absl::string_view piece : pieces) {
      if (!piece.empty()) rest.push_back({const_cast<char*>(piece.data()), piece.size()});
    }

    // pwritev takes at most IOV_MAX pieces, and may write only a part of them.
    for (size_t at = 0; at < rest.size();) {
      const ssize_t n =
          pwritev(fd_, &rest[at], static_cast<int>(std::min<size_t>(rest.size() - at, IOV_MAX)),
                  static_cast<off_t>(offset));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return Failed("write");
      offset += n;
      size_t written = n;
      for (; at < rest.size() && written >= rest[at].iov_len; ++at) written -= rest[at].iov_len;
      if (written > 0)
        rest[at] = {static_cast<char*>(rest[at].iov_base) + written, rest[at].iov_len - written};
    }
    return absl::OkStatus();
  }
  absl::Status Sync() override {
    return fdatasync(fd_) == 0 ? absl::OkStatus() : Failed("fdatasync");
  }
  absl::Status Allocate(uint64_t size) override {
    int error;
    do error = posix_fallocate(fd_, 0, static_cast<off_t>(size));
    while (error == EINTR);
    return error == 0 ? absl::OkStatus()
                      : ErrnoStatus(error, absl::StrCat("allocate ", size, " bytes for ", path_));
  }
  absl::Status Truncate(uint64_t size) override {
    return ftruncate(fd_, static_cast<off_t>(size)) == 0 ? absl::OkStatus() : Failed("truncate");
  }
  absl::StatusOr<size_t> Read(uint64_t offset, char* to, size_t size) override {
    size_t done = 0;
    while (done < size) {
      const ssize_t n = pread(fd_, to + done, size - done, static_cast<off_t>(offset + done));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return Failed("read");
      if (n == 0) break;
      done += n;
    }
    return done;
  }
  absl::StatusOr<uint64_t> Size() override {
    struct stat info;
    if (fstat(fd_, &info) != 0) return Failed("stat");
    return static_cast<uint64_t>(info.st_size);
  }

 private:
  absl::Status Failed(const char* call) const {
    return ErrnoStatus(errno, absl::StrCat(call, " ", path_));
  }

  const int fd_;
  const std::string path_;
};

class RealLock : public FileSystem::Lock {
 public:
  explicit RealLock(DirLock lock) : lock_(std::move(lock)) {}

 private:
  const DirLock lock_;
};

class RealFileSystem : public FileSystem {
 public:
  absl::StatusOr<std::unique_ptr<File>> OpenForRead(const std::string& path) override {
    return Open(path, O_RDONLY);
  }
  absl::StatusOr<std::unique_ptr<File>> OpenForWrite(const std::string& path) override {
    return Open(path, O_RDWR | O_CREAT);
  }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    return rename(from.c_str(), to.c_str()) == 0
               ? absl::OkStatus()
               : ErrnoStatus(errno, absl::StrCat("rename ", from, " to ", to));
  }
  absl::Status Remove(const std::string& path) override {
    return unlink(path.c_str()) == 0 ? absl::OkStatus()
                                     : ErrnoStatus(errno, absl::StrCat("remove ", path));
  }
  absl::StatusOr<std::vector<std::string>> List(const std::string& dir) override {
    return ListDir(dir);
  }
  absl::Status MakeDirs(const std::string& dir) override { return sluice::MakeDirs(dir); }
  absl::Status SyncDir(const std::string& dir) override { return sluice::SyncDir(dir); }
  absl::StatusOr<uint64_t> FreeBytes(const std::string& dir) override {
    struct statvfs info;
    if (statvfs(dir.c_str(), &info) != 0) return ErrnoStatus(errno, absl::StrCat("statvfs ", dir));
    return static_cast<uint64_t>(info.f_bavail) * info.f_frsize;
  }
  absl::StatusOr<std::unique_ptr<Lock>> TakeLock(const std::string& dir) override {
    SLUICE_ASSIGN_OR_RETURN(DirLock lock, DirLock::Acquire(dir));
    return std::make_unique<RealLock>(std::move(lock));
  }

 private:
  static absl::StatusOr<std::unique_ptr<File>> Open(const std::string& path, int flags) {
    const int fd = open(path.c_str(), flags | O_CLOEXEC, 0644);
    if (fd < 0) return ErrnoStatus(errno, absl::StrCat("open ", path));
    return std::make_unique<RealFile>(fd, path);
  }
};
}  // namespace

FileSystem* FileSystem::Real() {
  static auto* const real = new RealFileSystem;
  return real;
}

}  // namespace sluice::wal
