#include "common/wal/directory.h"

#include <algorithm>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/base/failpoint.h"
#include "common/base/id.h"
#include "common/base/status.h"
#include "common/wal/batch.h"
#include "common/wal/format.h"

namespace sluice::wal {
namespace {
constexpr uint64_t kChunkBytes = 4 << 20;  // Bytes of a snapshot that are written at once.
// Sync a snapshot this often, so that a sync of the log never waits for more than this.
constexpr uint64_t kSyncEvery = 16 << 20;

uint64_t NewSalt() {
  uint64_t salt;
  std::memcpy(&salt, RandomId16().data(), sizeof(salt));
  return salt;
}
}  // namespace

std::string Directory::Path(absl::string_view name) const { return absl::StrCat(path_, "/", name); }

absl::Status Directory::Remove(absl::string_view name) {
  const absl::Status status = file_system_->Remove(Path(name));
  return absl::IsNotFound(status) ? absl::OkStatus() : status;
}

absl::StatusOr<uint64_t> Directory::SizeOf(absl::string_view name) {
  SLUICE_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, file_system_->OpenForRead(Path(name)));
  return file->Size();
}

absl::Status Directory::Sync() {
  const absl::Status status = file_system_->SyncDir(path_);
  return absl::IsResourceExhausted(status) ? absl::UnknownError(status.message()) : status;
}

absl::StatusOr<Spare> Directory::AllocateSpare(uint64_t bytes) {
  SLUICE_FAILPOINT_STATUS("wal.segment.allocate.before");
  const Spare spare{.number = next_spare_++, .bytes = bytes};
  absl::Status status;
  {
    SLUICE_ASSIGN_OR_RETURN(const std::unique_ptr<File> file,
                            file_system_->OpenForWrite(Path(SpareName(spare.number))));
    status = file->Allocate(bytes);
  }
  if (!status.ok()) {
    (void)Remove(SpareName(spare.number));
    return status;
  }
  SLUICE_FAILPOINT_STATUS("wal.segment.allocate.after");
  return spare;
}

absl::StatusOr<Spare> Directory::AdoptSpare(uint64_t number) {
  next_spare_ = std::max(next_spare_.load(), number + 1);
  SLUICE_ASSIGN_OR_RETURN(const uint64_t bytes, SizeOf(SpareName(number)));
  return Spare{.number = number, .bytes = bytes};
}

absl::Status Directory::RemoveSpare(const Spare& spare) { return Remove(SpareName(spare.number)); }

absl::StatusOr<Segment> Directory::StartSegment(const Spare& spare, uint64_t number,
                                                Position first) {
  const std::string from = Path(SpareName(spare.number));
  Segment segment{.number = number,
                  .salt = NewSalt(),
                  .bytes = spare.bytes,
                  .offset = sizeof(FileHeader),
                  .path = Path(SegmentName(number))};

  // The header goes to disk before the file gets its name as a segment: a file with that name
  // always has a valid header.
  SLUICE_FAILPOINT_STATUS("wal.segment.header.before");
  {
    SLUICE_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, file_system_->OpenForWrite(from));
    SLUICE_RETURN_IF_ERROR(file->Write(0, {EncodeSegmentHeader(number, segment.salt, first)}));
    SLUICE_RETURN_IF_ERROR(file->Sync());
  }
  SLUICE_FAILPOINT_STATUS("wal.segment.header.after");
  SLUICE_FAILPOINT_STATUS("wal.segment.rename.before");
  SLUICE_RETURN_IF_ERROR(file_system_->Rename(from, segment.path));
  SLUICE_FAILPOINT_STATUS("wal.segment.rename.after");
  SLUICE_FAILPOINT_STATUS("wal.segment.dirsync.before");
  SLUICE_RETURN_IF_ERROR(Sync());
  SLUICE_FAILPOINT_STATUS("wal.segment.dirsync.after");
  // Open it by its new name, which error messages then show.
  SLUICE_ASSIGN_OR_RETURN(segment.file, file_system_->OpenForWrite(segment.path));
  return segment;
}

absl::Status Directory::RewriteEnd(const std::string& segment_path, uint64_t from, uint64_t end) {
  SLUICE_ASSIGN_OR_RETURN(const std::unique_ptr<File> file,
                          file_system_->OpenForWrite(segment_path));
  SLUICE_FAILPOINT_STATUS("wal.open.rewrite.before");
  std::string chunk;
  for (uint64_t at = from; at < end; at += chunk.size()) {
    chunk.resize(std::min(end - at, kChunkBytes));
    SLUICE_ASSIGN_OR_RETURN(const size_t n, file->Read(at, chunk.data(), chunk.size()));
    // A last record may be complete without its padding, which is zeros.
    std::fill(chunk.begin() + n, chunk.end(), '\0');
    SLUICE_RETURN_IF_ERROR(file->Write(at, {chunk}));
  }

  SLUICE_RETURN_IF_ERROR(file->Sync());
  SLUICE_FAILPOINT_STATUS("wal.open.rewrite.after");
  SLUICE_FAILPOINT_STATUS("wal.open.cut.before");
  SLUICE_RETURN_IF_ERROR(file->Truncate(end));
  SLUICE_FAILPOINT_STATUS("wal.open.cut.after");
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> Directory::WriteSnapshot(Position position,
                                                  const std::vector<Record>& state,
                                                  const std::function<bool()>& cancelled) {
  // Each exit before the rename removes the temporary file.
  const std::string temporary = Path(kSnapshotTemporary);
  absl::Cleanup remove = [&] { (void)Remove(kSnapshotTemporary); };
  const uint64_t salt = NewSalt();
  uint64_t bytes = sizeof(FileHeader) + sizeof(FrameHeader);
  for (const Record& record : state) bytes += FrameBytes(record);

  SLUICE_FAILPOINT_STATUS("wal.snapshot.write.before");
  SLUICE_RETURN_IF_ERROR(Remove(kSnapshotTemporary));
  SLUICE_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, file_system_->OpenForWrite(temporary));
  SLUICE_RETURN_IF_ERROR(file->Allocate(bytes));
  SLUICE_RETURN_IF_ERROR(file->Write(0, {EncodeSnapshotHeader(position, salt)}));

  // Write the records and the mark at the end, in pieces of about kChunkBytes.
  uint64_t offset = sizeof(FileHeader), synced = 0;
  Batch batch(salt);
  for (size_t i = 0; i <= state.size(); ++i) {
    if (i < state.size()) batch.AddRecord(i + 1, 0, state[i]);
    else batch.AddMark(state.size());
    if (batch.bytes() < kChunkBytes && i < state.size()) continue;
    if (cancelled()) return absl::CancelledError("the log is being closed");
    SLUICE_RETURN_IF_ERROR(file->Write(offset, batch.Pieces()));
    offset += batch.bytes();
    batch.Clear();
    if (offset - synced >= kSyncEvery) {
      SLUICE_RETURN_IF_ERROR(file->Sync());
      synced = offset;
    }
  }

  SLUICE_FAILPOINT_STATUS("wal.snapshot.write.after");
  SLUICE_FAILPOINT_STATUS("wal.snapshot.sync.before");
  SLUICE_RETURN_IF_ERROR(file->Sync());
  SLUICE_FAILPOINT_STATUS("wal.snapshot.sync.after");
  SLUICE_FAILPOINT_STATUS("wal.snapshot.rename.before");
  std::move(remove).Cancel();
  SLUICE_RETURN_IF_ERROR(file_system_->Rename(temporary, Path(SnapshotName(position))));
  SLUICE_FAILPOINT_STATUS("wal.snapshot.rename.after");
  SLUICE_FAILPOINT_STATUS("wal.snapshot.dirsync.before");
  SLUICE_RETURN_IF_ERROR(Sync());
  SLUICE_FAILPOINT_STATUS("wal.snapshot.dirsync.after");
  return bytes;
}

absl::Status Directory::RemoveSnapshots(const std::vector<Position>& positions, bool temporary) {
  for (const Position position : positions) SLUICE_RETURN_IF_ERROR(Remove(SnapshotName(position)));
  return temporary ? Remove(kSnapshotTemporary) : absl::OkStatus();
}

absl::Status Directory::RecycleSegments(uint64_t bytes, size_t most,
                                        std::vector<uint64_t>* segments,
                                        std::vector<Spare>* spares) {
  SLUICE_FAILPOINT_STATUS("wal.snapshot.recycle.before");
  std::vector<Spare> renamed;
  const auto recycle = [&](const std::string& segment) -> absl::Status {
    SLUICE_ASSIGN_OR_RETURN(const uint64_t size, SizeOf(segment));
    if (size != bytes || renamed.size() >= most) return Remove(segment);
    const Spare spare = {.number = next_spare_++, .bytes = size};
    SLUICE_RETURN_IF_ERROR(file_system_->Rename(Path(segment), Path(SpareName(spare.number))));
    renamed.push_back(spare);
    return absl::OkStatus();
  };

  absl::Status status;
  size_t done = 0;
  for (; done < segments->size(); ++done) {
    status = recycle(SegmentName((*segments)[done]));
    if (!status.ok()) break;
  }
  segments->erase(segments->begin(), segments->begin() + static_cast<int64_t>(done));
  if (!status.ok() && !absl::IsResourceExhausted(status)) return status;

  // Bring the new names to disk before the contents of the files change: a crash must not leave a
  // segment name with other contents.
  SLUICE_RETURN_IF_ERROR(Sync());
  spares->insert(spares->end(), renamed.begin(), renamed.end());
  SLUICE_FAILPOINT_STATUS("wal.snapshot.recycle.after");
  return status;
}

}  // namespace sluice::wal
