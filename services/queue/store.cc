#include "services/queue/store.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/digest.h"
#include "common/base/status.h"
#include "services/queue/core/codec.h"
#include "services/queue/core/fields.h"

namespace sluice::queue {

SLUICE_FIELDS(SourceDigest, rows, sha256)
SLUICE_FIELDS(JobHeader, job, name, queue_incarnation, seed, spec, sources)

namespace {
enum RecordType : uint8_t { kHeader = 1, kSession = 2, kEvent = 3, kState = 4 };

constexpr size_t kStateHeadBytes = 16 << 20;
// After a restart the memory of one record is freed only as a whole, when no field in it is used
// any more. So records of payload are kept small.
constexpr uint64_t kStatePayloadBytes = 1 << 20;

// Begins headers and sessions: it says which builds can read what follows.
struct Written {
  uint32_t format = kFormat, logic = kLogic;
};
SLUICE_FIELDS(Written, format, logic)

template <typename... T>
std::string HeadOf(const T&... values) {
  Writer writer(Payload::kKept);
  writer(values...);
  return std::move(writer).Finish().head;
}

wal::Part PartOf(const Bytes& bytes) {
  return {.owner = bytes.data, .bytes = bytes.view(), .crc32c = bytes.crc32c};
}

absl::Status CheckFormat(const Written& written) {
  if (written.format <= kFormat) return absl::OkStatus();
  return ErrorWith(
      absl::StatusCode::kFailedPrecondition,
      {.reason = "NEWER_FORMAT", .hint = "start the build that wrote it, or a newer one"},
      absl::StrCat("the job is written in format ", written.format, ", and this build reads up to ",
                   kFormat));
}
}  // namespace

SourceDigest DigestOf(const RowSource& rows, uint32_t source) {
  SourceDigest digest{.rows = rows.rows(source)};
  Sha256Stream sha;
  for (uint64_t i = 0; i < digest.rows; ++i) {
    const std::string json = rows.json(source, i);
    sha.Update(absl::StrCat(json.size(), ":"));
    sha.Update(json);
  }
  digest.sha256 = sha.Finish();
  return digest;
}

std::string JobsDir(const std::string& data_dir) { return absl::StrCat(data_dir, "/jobs"); }
std::string JobDir(const std::string& data_dir, const std::string& job) {
  return absl::StrCat(JobsDir(data_dir), "/", job);
}

// Records. ----------------------------------------------------------------------------------------

wal::Record HeaderRecord(const JobHeader& header) {
  return {.type = kHeader, .head = HeadOf(Written(), header)};
}

wal::Record SessionRecord() { return {.type = kSession, .head = HeadOf(Written())}; }

wal::Record EventRecord(const Event& event, Payload payload) {
  Encoded encoded = EncodeEvent(event, payload);
  wal::Record record{.type = kEvent, .head = std::move(encoded.head)};
  record.payload.reserve(encoded.parts.size());
  for (const Bytes& part : encoded.parts) record.payload.push_back(PartOf(part));
  return record;
}

std::vector<wal::Record> Snapshot(const JobHeader& header, Encoded dump) {
  std::vector<wal::Record> records = {HeaderRecord(header)};
  for (size_t at = 0; at < dump.head.size(); at += kStateHeadBytes)
    records.push_back({.type = kState, .head = dump.head.substr(at, kStateHeadBytes)});

  uint64_t bytes = kStatePayloadBytes;
  for (const Bytes& part : dump.parts) {
    if (bytes + part.size > kStatePayloadBytes) {
      records.push_back({.type = kState});
      bytes = 0;
    }
    records.back().payload.push_back(PartOf(part));
    bytes += part.size;
  }
  return records;
}

// Reading. ----------------------------------------------------------------------------------------

absl::StatusOr<wal::Replay::Memory> JobReplay::Allocate(uint8_t type, absl::string_view head,
                                                        uint64_t size) {
  const std::shared_ptr<char> memory = allocate_(size);
  if (memory == nullptr)
    return Error(absl::StatusCode::kResourceExhausted, "NO_MEMORY",
                 absl::StrCat("no memory for ", size, " B of payload"));
  return Memory{.owner = memory, .data = memory.get()};
}

absl::Status JobReplay::OnHeader(absl::string_view head) {
  Reader reader(head, {});
  Written written;
  reader(written);
  if (!reader.failed()) SLUICE_RETURN_IF_ERROR(CheckFormat(written));
  reader(header_);
  SLUICE_RETURN_IF_ERROR(reader.Finish());

  logic_ = written.logic;
  SLUICE_ASSIGN_OR_RETURN(std::shared_ptr<const RowSource> rows, rows_(header_));
  job_ = std::make_unique<Job>(header_.options(), header_.spec, std::move(rows));
  return absl::OkStatus();
}

absl::Status JobReplay::OnSnapshot(wal::Position position) {
  dump_.clear();
  dump_payload_.clear();
  return absl::OkStatus();
}

absl::Status JobReplay::OnSnapshotEnd() {
  if (job_ == nullptr)
    return Error(absl::StatusCode::kDataLoss, "BAD_RECORD", "the snapshot names no job");
  SLUICE_RETURN_IF_ERROR(job_->Load(dump_, std::move(dump_payload_)));
  dump_.clear();
  dump_payload_.clear();
  return absl::OkStatus();
}

absl::Status JobReplay::OnRecord(wal::Entry entry) {
  if (entry.type == kHeader) return OnHeader(entry.head);
  if (job_ == nullptr)
    return Error(
        absl::StatusCode::kDataLoss, "BAD_RECORD",
        absl::StrCat("record ", entry.position, " comes before the record that describes the job"));
  switch (entry.type) {
    case kSession: {
      Reader reader(entry.head, {});
      Written written;
      reader(written);
      if (!reader.failed()) SLUICE_RETURN_IF_ERROR(CheckFormat(written));
      logic_ = written.logic;
      return reader.Finish();
    }
    case kState:
      dump_.append(entry.head.data(), entry.head.size());
      if (!entry.payload.empty()) dump_payload_.push_back({entry.owner, entry.payload});
      return absl::OkStatus();
    case kEvent: {
      if (logic_ != kLogic) {
        return ErrorWith(
            absl::StatusCode::kFailedPrecondition,
            {.reason = "OTHER_LOGIC",
             .hint = "start the build that wrote it, stop it with SIGTERM, then start this one"},
            absl::StrCat("event ", entry.position, " and those after it were written by version ",
                         logic_, " of the logic; this build has version ", kLogic,
                         " and would replay them differently"));
      }
      std::vector<PayloadRun> payload;
      if (!entry.payload.empty()) payload.push_back({entry.owner, entry.payload});
      SLUICE_ASSIGN_OR_RETURN(const Event event, DecodeEvent(entry.head, std::move(payload)));
      Effects effects;
      job_->Step(event, &effects);
      ++events_;
      return absl::OkStatus();
    }
    default:
      return Error(absl::StatusCode::kDataLoss, "BAD_RECORD",
                   absl::StrCat("record ", entry.position, " is of type ", entry.type,
                                ", which this build does not know"));
  }
}

absl::StatusOr<StoredJob> CreateJob(const wal::Log::Options& options, const std::string& dir,
                                    JobHeader header, std::shared_ptr<const RowSource> rows) {
  JobReplay nothing(
      [&](const JobHeader&) -> absl::StatusOr<std::shared_ptr<const RowSource>> { return rows; },
      nullptr);
  StoredJob stored{.header = std::move(header)};
  SLUICE_ASSIGN_OR_RETURN(stored.log, wal::Log::Open(options, dir, &nothing, &stored.found));
  if (stored.found.last > 0) return absl::InternalError(absl::StrCat(dir, " holds a job already"));
  stored.log->Append(HeaderRecord(stored.header));
  stored.job = std::make_unique<Job>(stored.header.options(), stored.header.spec, std::move(rows));
  return stored;
}

absl::StatusOr<StoredJob> OpenJob(const wal::Log::Options& options, const std::string& dir,
                                  JobReplay::OpenRows rows, JobReplay::Allocator allocate) {
  JobReplay replay(std::move(rows), std::move(allocate));
  StoredJob stored;
  SLUICE_ASSIGN_OR_RETURN(stored.log, wal::Log::Open(options, dir, &replay, &stored.found));
  stored.job = replay.TakeJob();
  stored.header = replay.header();
  stored.events = replay.events();
  if (stored.job != nullptr) stored.log->Append(SessionRecord());
  return stored;
}

}  // namespace sluice::queue
