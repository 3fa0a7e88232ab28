#include "services/queue/fsck.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/base/status.h"
#include "common/wal/log.h"
#include "services/queue/store.h"

namespace sluice::queue {
namespace {
// Row counts in place of the data, which may be gone. Replaying the draws needs no more.
class RowCounts : public RowSource {
 public:
  explicit RowCounts(const std::vector<SourceDigest>& sources) : sources_(sources) {}
  uint64_t rows(uint32_t source) const override { return sources_[source].rows; }
  std::string json(uint32_t, uint64_t) const override { return ""; }

 private:
  const std::vector<SourceDigest> sources_;
};

FsckJob CheckJob(wal::FileSystem* file_system, const std::string& dir, const std::string& id) {
  FsckJob report{.job = id};
  JobReplay replay(
      [](const JobHeader& header) { return std::make_shared<RowCounts>(header.sources); },
      [](uint64_t bytes) {
        return std::shared_ptr<char>(new char[bytes], std::default_delete<char[]>());
      });
  wal::Found found;
  report.status = wal::Scan(file_system, dir, &replay, &found);
  report.name = replay.header().name;
  report.durability = replay.header().spec.durability;
  report.snapshot = found.snapshot;
  report.last = found.last;
  report.end_file = found.end_segment;
  report.end_offset = found.end_offset;
  report.events = replay.events();
  report.bytes = found.bytes;
  report.torn = found.torn;
  report.remarks = found.remarks;
  if (replay.job() == nullptr) {
    if (report.status.ok())
      report.remarks.push_back(
          "the log has no job, because the job's first call was never answered");
    return report;
  }

  const Job& job = *replay.job();
  if (report.status.ok() && job.id() != id)
    report.status = Error(absl::StatusCode::kDataLoss, "BAD_RECORD",
                          absl::StrCat(dir, " is the log of job ", job.id()));
  report.version = job.version();
  report.groups = job.groups();
  report.stored_bytes = job.stored_bytes();
  report.ledger = job.ledger();
  report.violations = job.FindViolations();
  return report;
}
}  // namespace

bool FsckReport::ok() const {
  return std::all_of(jobs.begin(), jobs.end(), [](const FsckJob& job) { return job.ok(); });
}

absl::StatusOr<FsckReport> FsckDataDir(const std::string& data_dir, wal::FileSystem* file_system) {
  absl::StatusOr<std::vector<std::string>> ids = file_system->List(JobsDir(data_dir));
  if (absl::IsNotFound(ids.status())) {
    return ErrorWith(
        absl::StatusCode::kNotFound,
        {.reason = "NO_DATA_DIR", .hint = "name the --data-dir of a sluice-queue"},
        absl::StrCat(data_dir, " is not the data directory of a queue: it has no folder jobs"));
  }

  SLUICE_RETURN_IF_ERROR(ids.status());
  const absl::StatusOr<DirLock> lock = DirLock::AcquireShared(data_dir);
  if (!lock.ok() && !absl::IsNotFound(lock.status())) return lock.status();
  FsckReport report;
  for (const std::string& id : *ids) {
    // A name with a dot is a job's folder that was being removed (job_folders.cc).
    if (id.find('.') == std::string::npos)
      report.jobs.push_back(CheckJob(file_system, JobDir(data_dir, id), id));
  }
  return report;
}

}  // namespace sluice::queue
