#include "tools/sluice/run_dir.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "tools/sluice/fleet.h"

namespace sluice::cli {
namespace {

namespace fs = std::filesystem;

constexpr char kPrefix[] = "sluice-run-";

// Whether `path` is a directory (not a link to one) that belongs to this user.
bool IsOwnDir(const std::string& path) {
  struct stat info{};
  return lstat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == geteuid();
}

absl::Time ModifiedAt(const std::string& path) {
  struct stat info{};
  return stat(path.c_str(), &info) == 0 ? absl::TimeFromTimespec(info.st_mtim)
                                        : absl::InfinitePast();
}

std::vector<std::string> EntriesOf(const std::string& dir) {
  std::vector<std::string> entries;
  std::error_code error;
  for (fs::directory_iterator it(dir, error), end; !error && it != end; it.increment(error)) {
    entries.push_back(it->path().string());
  }
  return entries;
}

// When a log was last written. The time of the directory itself only tells when its last log file
// was created, which is when the run began.
absl::Time LogsWrittenAt(const std::string& logs) {
  absl::Time newest = ModifiedAt(logs);
  for (const std::string& log : EntriesOf(logs)) newest = std::max(newest, ModifiedAt(log));
  return newest;
}

// Removes the contents of a directory except the logs and the lock file. The lock file stays, so
// that others still see that the directory is in use.
void RemoveAllButLogs(const std::string& dir) {
  for (const std::string& path : EntriesOf(dir)) {
    const std::string name = fs::path(path).filename();
    if (name != "lock" && name != "logs") (void)RemoveTree(path);
  }
}

}  // namespace

absl::StatusOr<RunDir> RunDir::Make(const std::string& wanted) {
  if (!wanted.empty()) {
    const std::string path = fs::absolute(wanted).lexically_normal().string();
    SLUICE_RETURN_IF_ERROR(MakeDirs(path + "/logs"));
    SLUICE_ASSIGN_OR_RETURN(DirLock lock, DirLock::Acquire(path));
    return RunDir(path, false, std::move(lock));
  }

  const std::string dir = fs::temp_directory_path().string();
  SweepRunDirs(dir, absl::Now());
  for (;;) {
    std::string path = absl::StrCat(dir, "/", kPrefix, "XXXXXX");
    if (mkdtemp(path.data()) == nullptr)
      return ErrnoStatus(errno, absl::StrCat("temporary directory ", path));
    absl::StatusOr<DirLock> lock = DirLock::Acquire(path);
    // Another run found the directory unlocked and is removing it: try another name.
    if (absl::IsFailedPrecondition(lock.status())) continue;
    SLUICE_RETURN_IF_ERROR(lock.status());
    SLUICE_RETURN_IF_ERROR(MakeDirs(path + "/logs"));
    return RunDir(path, true, *std::move(lock));
  }
}

void RunDir::Remove() {
  if (temporary_) (void)RemoveTree(path_);
}

void RunDir::KeepLogs() {
  if (temporary_) RemoveAllButLogs(path_);
}

void SweepRunDirs(const std::string& dir, absl::Time now) {
  for (const std::string& path : EntriesOf(dir)) {
    if (!absl::StartsWith(fs::path(path).filename().string(), kPrefix) || !IsOwnDir(path)) continue;
    const absl::Time written = LogsWrittenAt(path + "/logs");
    if (const auto fleet = ReadFleetState(path); fleet.ok() && IsAlive(*fleet)) continue;
    const absl::StatusOr<DirLock> lock = DirLock::Acquire(path);
    if (!lock.ok()) continue;

    if (now - written < kLogsKeptFor) RemoveAllButLogs(path);
    else (void)RemoveTree(path);
  }
}

}  // namespace sluice::cli
