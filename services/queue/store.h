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

// How a job is stored: DATA_DIR/jobs/<job>/ is one log. Its first record describes the job, and
// each later one is an event. A snapshot consists of that first record and a dump of the state.
namespace sluice::queue {

// A digest of the rows of a source as they were when the job began. Replaying the log with other
// rows would give other draws.
struct SourceDigest {
  uint64_t rows = 0;
  std::string sha256;  // Over the JSON of all rows, each preceded by its length.

  bool operator==(const SourceDigest&) const = default;
};
SourceDigest DigestOf(const RowSource& rows, uint32_t source);

// The job's settings, which are fixed before its first event.
struct JobHeader {
  std::string job;   // 32 hex digits.
  std::string name;  // For people.
  uint32_t queue_incarnation = 0;
  uint64_t seed = 0;  // Seed of the lease ids.
  Spec spec;
  std::vector<SourceDigest> sources;

  Job::Options options() const {
    return {.id = job, .queue_incarnation = queue_incarnation, .seed = seed};
  }
};

std::string JobsDir(const std::string& data_dir);
std::string JobDir(const std::string& data_dir, const std::string& job);

wal::Record HeaderRecord(const JobHeader& header);
// This record says which version of the state machine's logic wrote the events after it. Each
// process writes one when it starts.
wal::Record SessionRecord();
wal::Record EventRecord(const Event& event, Payload payload);
// The records of a snapshot: the whole state, in records of bounded size.
std::vector<wal::Record> Snapshot(const JobHeader& header, Encoded dump);

// Makes a job from its log. Errors, besides those of the log and of `rows`:
// DATA_LOSS BAD_RECORD: a record that this build cannot have written.
// FAILED_PRECONDITION NEWER_FORMAT: a newer build wrote the log.
// FAILED_PRECONDITION OTHER_LOGIC: another version of the state machine wrote the events.
// The hints of the last two say what to do.
class JobReplay : public wal::Replay {
 public:
  // Opens the job's rows, once its header has been read.
  using OpenRows =
      std::function<absl::StatusOr<std::shared_ptr<const RowSource>>(const JobHeader&)>;
  using Allocator = std::function<std::shared_ptr<char>(uint64_t bytes)>;

  JobReplay(OpenRows rows, Allocator allocate)
      : rows_(std::move(rows)), allocate_(std::move(allocate)) {}

  absl::StatusOr<Memory> Allocate(uint8_t type, absl::string_view head, uint64_t size) override;
  absl::Status OnSnapshot(wal::Position position) override;
  absl::Status OnSnapshotEnd() override;
  absl::Status OnRecord(wal::Entry entry) override;

  // Null if the log has no job: no call for it was ever acknowledged.
  std::unique_ptr<Job> TakeJob() { return std::move(job_); }
  const Job* job() const { return job_.get(); }
  const JobHeader& header() const { return header_; }
  uint64_t events() const { return events_; }  // Number of events replayed.

 private:
  absl::Status OnHeader(absl::string_view head);

  const OpenRows rows_;
  const Allocator allocate_;
  JobHeader header_;
  std::unique_ptr<Job> job_;
  uint32_t logic_ = 0;  // Version of the logic that wrote the events that follow.
  uint64_t events_ = 0;
  std::string dump_;  // State of the snapshot that is being read.
  std::vector<PayloadRun> dump_payload_;
};

// A job with its log, ready for events.
struct StoredJob {
  JobHeader header;
  std::unique_ptr<Job> job;  // Null if the folder has no job.
  std::unique_ptr<wal::Log> log;
  wal::Found found;
  uint64_t events = 0;  // Number of events replayed.
};
// Makes the log of a new job. INTERNAL: the folder has a job already.
absl::StatusOr<StoredJob> CreateJob(const wal::Log::Options& options, const std::string& dir,
                                    JobHeader header, std::shared_ptr<const RowSource> rows);
// Brings back a job from its log. Errors are those of the log and of JobReplay.
absl::StatusOr<StoredJob> OpenJob(const wal::Log::Options& options, const std::string& dir,
                                  JobReplay::OpenRows rows, JobReplay::Allocator allocate);

}  // namespace sluice::queue
