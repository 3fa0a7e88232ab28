#include "services/queue/job_folders.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/status.h"
#include "common/log/job_lines.h"
#include "common/log/log.h"
#include "services/queue/row_sources.h"

namespace sluice::queue {
namespace {

constexpr char kFreedSuffix[] = ".freed";

}  // namespace

JobFolders::JobFolders(std::string data_dir, wal::Log::Options log, Clock* clock,
                       std::function<void(absl::Duration)> recovered)
    : data_dir_(std::move(data_dir)),
      log_(std::move(log)),
      clock_(clock),
      recovered_(std::move(recovered)) {}

absl::StatusOr<std::vector<std::string>> JobFolders::List() {
  if (!stored()) return std::vector<std::string>();
  const std::string dir = JobsDir(data_dir_);
  SLUICE_RETURN_IF_ERROR(MakeDirs(dir));
  SLUICE_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListDir(dir));

  std::vector<std::string> jobs;
  for (const std::string& name : names) {
    if (absl::EndsWith(name, kFreedSuffix)) {
      SLUICE_RETURN_IF_ERROR(RemoveTree(absl::StrCat(dir, "/", name)));
    } else {
      jobs.push_back(name);
    }
  }
  return jobs;
}

absl::StatusOr<StoredJob> JobFolders::Create(JobHeader header,
                                             std::shared_ptr<const RowSource> rows) {
  const std::string dir = JobDir(data_dir_, header.job);
  return CreateJob(log_, dir, std::move(header), std::move(rows));
}

absl::StatusOr<StoredJob> JobFolders::Recover(const std::string& job, Arena* arena) {
  const absl::Duration start = clock_->Monotonic();
  SLUICE_ASSIGN_OR_RETURN(StoredJob stored,
                          OpenJob(log_, JobDir(data_dir_, job), ReadRowSourcesAgain,
                                  [arena](uint64_t bytes) { return arena->Allocate(bytes); }));
  if (stored.job == nullptr || stored.job->phase() == Phase::kFreed) {
    stored.log.reset();
    SLUICE_RETURN_IF_ERROR(Remove(job));
    return StoredJob();
  }

  const absl::Duration took = clock_->Monotonic() - start;
  if (recovered_) recovered_(took);
  const log::JobScope lines(job, stored.header.name);  // There is no runner yet.
  log::Info("job_recovered", {{"job_id", stored.header.name},
                              {"job", job},
                              {"snapshot_bytes", stored.found.snapshot_bytes},
                              {"log_bytes", stored.found.bytes},
                              {"events", stored.events},
                              {"step", stored.job->version()},
                              {"seconds", absl::ToDoubleSeconds(took)}});
  for (const std::string& remark : stored.found.remarks)
    log::Warning("job_log", {{"job_id", stored.header.name}, {"job", job}, {"message", remark}});
  return stored;
}

absl::Status JobFolders::Remove(const std::string& job) {
  if (!stored()) return absl::OkStatus();
  const std::string dir = JobDir(data_dir_, job), freed = absl::StrCat(dir, kFreedSuffix);
  if (!PathExists(dir)) return absl::OkStatus();
  SLUICE_RETURN_IF_ERROR(wal::FileSystem::Real()->Rename(dir, freed));
  SLUICE_RETURN_IF_ERROR(SyncDir(JobsDir(data_dir_)));
  return RemoveTree(freed);
}

}  // namespace sluice::queue
