#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/file.h"

namespace sluice::cli {

// Where the daemons of one `sluice run` keep data and logs: the directory that the caller named, or
// a temporary one, sluice-run-XXXXXX. This process holds its lock, by which others see that it is
// in use.
class RunDir {
 public:
  // `wanted` empty: a temporary one. FAILED_PRECONDITION: another process uses the wanted one.
  static absl::StatusOr<RunDir> Make(const std::string& wanted);

  const std::string& path() const { return path_; }
  std::string logs() const { return path_ + "/logs"; }

  // Of a temporary one, once its daemons have ended: nothing stays, or the logs alone. A named one
  // stays whole.
  void Remove();
  void KeepLogs();

 private:
  RunDir(std::string path, bool temporary, DirLock lock)
      : path_(std::move(path)), temporary_(temporary), lock_(std::move(lock)) {}

  std::string path_;
  bool temporary_;
  DirLock lock_;
};

// How long the logs of a temporary run directory stay.
inline constexpr absl::Duration kLogsStay = absl::Hours(24);

// Clears up after runs that were killed: of this user's temporary run directories in `dir` that no
// process uses, removes all but the logs, and those too where nothing was written there for
// kLogsStay.
void SweepRunDirs(const std::string& dir, absl::Time now);

}  // namespace sluice::cli
