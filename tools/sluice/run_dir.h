#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/file.h"

namespace sluice::cli {

// The directory for data and logs of the daemons of one `sluice run`: one that the caller named, or
// a temporary one, sluice-run-XXXXXX. This process holds the directory's lock, so that others see
// that it is in use.
class RunDir {
 public:
  // Makes the directory `wanted`; if that is empty, a temporary one. FAILED_PRECONDITION: another
  // process uses `wanted`.
  static absl::StatusOr<RunDir> Make(const std::string& wanted);

  const std::string& path() const { return path_; }
  std::string logs() const { return path_ + "/logs"; }

  // Call after the daemons have ended. For a temporary directory, Remove() deletes everything and
  // KeepLogs() everything but the logs. A named directory is not changed.
  void Remove();
  void KeepLogs();

 private:
  RunDir(std::string path, bool temporary, DirLock lock)
      : path_(std::move(path)), temporary_(temporary), lock_(std::move(lock)) {}

  std::string path_;
  bool temporary_;
  DirLock lock_;
};

// How long the logs of a temporary directory are kept.
inline constexpr absl::Duration kLogsKeptFor = absl::Hours(24);

// Cleans up after runs that were killed. For each temporary directory of this user in `dir` that no
// process uses, removes everything but the logs. Removes the logs too if the last line was
// written to them more than kLogsKeptFor ago.
void SweepRunDirs(const std::string& dir, absl::Time now);

}  // namespace sluice::cli
