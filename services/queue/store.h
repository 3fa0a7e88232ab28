#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/wal/log.h"
#include "services/queue/core/job.h"

// How a job lies on disk: DATA_DIR/jobs/<job>/ is one log. Its first record says what the job is,
// each further one is an event; a snapshot is that first record and the dump of the state.
namespace sluice::queue {

// The rows of a source as the job saw them first. Replayed over other rows, its draws would be
// others.
struct SourceDigest {
  uint64_t rows = 0;
  std::string sha256;  // Of all rows' JSON, each behind its length.

  bool operator==(const SourceDigest&) const = default;
};
SourceDigest DigestOf(const RowSource& rows, uint32_t source);

// What a job is before its first event.
struct JobHeader {
  std::string job;   // 32 hex digits.
  std::string name;  // For people.
  uint32_t queue_incarnation = 0;
  uint64_t seed = 0;  // Of lease ids.
  Spec spec;
  std::vector<SourceDigest> sources;

  Job::Options options() const {
    return {.id = job, .queue_incarnation = queue_incarnation, .seed = seed};
  }
};

std::string JobsDir(const std::string& data_dir);
std::string JobDir(const std::string& data_dir, const std::string& job);

wal::Record HeaderRecord(const JobHeader& header);
// Says by which logic the events behind it are written; at the start of each process.
wal::Record SessionRecord();
wal::Record EventRecord(const Event& event, Payload payload);
// The whole state, in records of bounded size.
std::vector<wal::Record> Snapshot(const JobHeader& header, Encoded dump);

// Makes a job of its log. Errors, besides the log's own: DATA_LOSS (a record that this build cannot
// have written), FAILED_PRECONDITION NEWER_FORMAT and OTHER_LOGIC, which say what to do; and those
// of `rows`.
class JobReplay : public wal::Replay {
 public:
  // Gives the job's rows, once its header is read.
  using OpenRows =
      std::function<absl::StatusOr<std::shared_ptr<const RowSource>>(const JobHeader&)>;
  using Allocator = std::function<std::shared_ptr<char>(uint64_t bytes)>;

  JobReplay(OpenRows rows, Allocator allocate)
      : rows_(std::move(rows)), allocate_(std::move(allocate)) {}

  absl::StatusOr<Memory> Allocate(uint8_t type, absl::string_view head, uint64_t size) override;
  absl::Status OnSnapshot(wal::Position position) override;
  absl::Status OnSnapshotEnd() override;
  absl::Status OnRecord(wal::Entry entry) override;

  // Null: the log holds nothing; no call on the job was ever acknowledged.
  std::unique_ptr<Job> TakeJob() { return std::move(job_); }
  const Job* job() const { return job_.get(); }
  const JobHeader& header() const { return header_; }
  uint64_t events() const { return events_; }  // Replayed.

 private:
  absl::Status OnHeader(absl::string_view head);

  const OpenRows rows_;
  const Allocator allocate_;
  JobHeader header_;
  std::unique_ptr<Job> job_;
  uint32_t logic_ = 0;  // Of the events to come.
  uint64_t events_ = 0;
  std::string dump_;  // Of the snapshot being read.
  std::vector<PayloadRun> dump_payload_;
};

// A job with its log, ready for events.
struct StoredJob {
  JobHeader header;
  std::unique_ptr<Job> job;  // Null: the folder holds nothing.
  std::unique_ptr<wal::Log> log;
  wal::Found found;
  uint64_t events = 0;  // Replayed.
};
// A new one. INTERNAL: the folder holds a job.
absl::StatusOr<StoredJob> CreateJob(const wal::Log::Options& options, const std::string& dir,
                                    JobHeader header, std::shared_ptr<const RowSource> rows);
// As it was. Errors of the log and of JobReplay.
absl::StatusOr<StoredJob> OpenJob(const wal::Log::Options& options, const std::string& dir,
                                  JobReplay::OpenRows rows, JobReplay::Allocator allocate);

}  // namespace sluice::queue
