#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "services/queue/arena.h"
#include "services/queue/store.h"

namespace sluice {
class Clock;
}

namespace sluice::queue {

// The folders of the stored jobs below one data directory, DATA_DIR/jobs/<job>. A folder that is to
// be removed is renamed first, so that a crash cannot leave a part of a job behind.
//
// Not thread-safe for one job; different jobs are independent.
class JobFolders {
 public:
  // `data_dir` may be empty: then no job is stored. `recovered` is called with the time that each
  // Recover() took, and may be empty. `clock` outlives this.
  JobFolders(std::string data_dir, wal::Log::Options log, Clock* clock,
             std::function<void(absl::Duration)> recovered);

  bool stored() const { return !data_dir_.empty(); }

  // Finishes removals that a crash interrupted, and lists the jobs that are left.
  absl::StatusOr<std::vector<std::string>> List();

  // Makes the log of a new job.
  absl::StatusOr<StoredJob> Create(JobHeader header, std::shared_ptr<const RowSource> rows);

  // Brings back a job; its payload is in `arena`. The answer has no job if there was nothing to
  // bring back; then the folder is removed. Errors are those of OpenJob() and
  // ReadRowSourcesAgain().
  absl::StatusOr<StoredJob> Recover(const std::string& job, Arena* arena);

  // Removes a job's folder. OK if there is none.
  absl::Status Remove(const std::string& job);

 private:
  const std::string data_dir_;
  const wal::Log::Options log_;
  Clock* const clock_;
  const std::function<void(absl::Duration)> recovered_;
};

}  // namespace sluice::queue
