#include "common/wal/log.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <filesystem>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/wal/batch.h"
#include "common/wal/directory.h"
#include "common/wal/format.h"
#include "common/wal/reader.h"

namespace sluice::wal {
namespace {
// Smallest segment that Open() starts with when the disk is nearly full.
constexpr uint64_t kLeastSegmentBytes = 64 << 10;

struct Pending {
  Position position = 0;
  uint64_t bytes = 0;  // Size of the record's frame.
  Record record;
};

struct SegmentStart {
  uint64_t number = 0;
  Position first = 0;
};
}  // namespace

class Log::Impl {
 public:
  Impl(const Options& options, const std::string& dir)
      : options_(options), directory_(options.file_system, dir) {}

  absl::Status Open(const std::string& dir, Replay* replay, Found* found);
  void Start(Callbacks callbacks);
  Position Append(Record record) ABSL_LOCKS_EXCLUDED(mu_);
  bool Snapshot(std::vector<Record> state, std::function<void(const absl::Status&)> done)
      ABSL_LOCKS_EXCLUDED(mu_);
  void Close() ABSL_LOCKS_EXCLUDED(mu_);
  Stats stats() const ABSL_LOCKS_EXCLUDED(mu_);
  Space space() const { return space_; }

 private:
  struct SnapshotJob {
    Position position = 0;
    uint64_t base_before = 0;  // snapshot_base_ is reset to this if the snapshot fails.
    std::vector<Record> state;
    std::function<void(const absl::Status&)> done;
  };

  absl::Status ContinueLog(const Layout& layout, const Found& found);

  // Run on thread `log`.
  void WriteLoop() ABSL_LOCKS_EXCLUDED(mu_);
  bool WaitForWork(std::vector<Pending>* batch) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status ProtectReserve() ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status WriteRecords(const std::vector<Pending>& batch) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status WriteFrames() ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status SyncSegment();
  absl::Status WriteMark() ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Rotate(uint64_t frame_bytes, Position first) ABSL_LOCKS_EXCLUDED(mu_);
  void AdvanceDurable(Position position, uint64_t bytes) ABSL_LOCKS_EXCLUDED(mu_);
  void ReportSpace() ABSL_LOCKS_EXCLUDED(mu_);
  // Waits until space may be available, or for Options::retry. CANCELLED: the log is closed or has
  // failed.
  absl::Status WaitForSpace() ABSL_LOCKS_EXCLUDED(mu_);

  // Run on thread `log-files`.
  void FilesLoop() ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status AllocateAhead() ABSL_LOCKS_EXCLUDED(mu_);  // Also called on thread `log`.
  void TakeSnapshot(SnapshotJob job) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status WriteSnapshot(const SnapshotJob& job) ABSL_LOCKS_EXCLUDED(mu_);
  // Removes the snapshots older than the newest, and recycles the segments that it covers.
  absl::Status RemoveCovered() ABSL_LOCKS_EXCLUDED(mu_);

  void EndWithError(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);

  // Nothing more will be accepted: the log is closing or has failed.
  bool Ended() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return closing_ || !fatal_.ok(); }

  // The reserve would no longer fit if all pending records were written.
  bool ReserveAtRisk() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // The value of space() that the current state calls for.
  Space CurrentSpace() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Options options_;
  Directory directory_;
  std::unique_ptr<FileSystem::Lock> lock_;
  Callbacks callbacks_;
  std::thread log_thread_, files_thread_;
  std::atomic<Space> space_ = Space::kOk;  // The value that on_space reported last.

  // Used by thread `log` alone, once it runs.
  Segment segment_;
  std::unique_ptr<Batch> frames_;
  Position written_durable_ = 0;  // Last position that this thread has synced; equals durable_.
  // A mark has been written since the last sync.
  bool unsynced_mark_ = false;

  mutable Mutex mu_;
  CondVar work_;  // Wakes `log`: there are records or space, or the log ends.
  // Wakes `log-files`: a snapshot is requested, a spare was used, durable_ moved while a snapshot
  // waits for it, or the log ends.
  CondVar chores_;

  // snapshot_ <= durable_ <= last_. pending_ holds records after durable_, in order; the batch
  // that `log` is writing has already left it. segments_ is in rising order and ends with the
  // current one.
  std::deque<Pending> pending_ ABSL_GUARDED_BY(mu_);
  Position last_ ABSL_GUARDED_BY(mu_) = 0;
  Position durable_ ABSL_GUARDED_BY(mu_) = 0;
  // Frame bytes of the records after durable_, including the batch that `log` is writing.
  uint64_t pending_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  // Bytes of all records appended since the snapshot that Open() read, those read by Open()
  // included.
  uint64_t appended_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  // Space for records in the current segment, as Segment::room().
  uint64_t room_ ABSL_GUARDED_BY(mu_) = 0;
  std::deque<SegmentStart> segments_ ABSL_GUARDED_BY(mu_);
  std::vector<Spare> spares_ ABSL_GUARDED_BY(mu_);
  bool allocation_failed_ ABSL_GUARDED_BY(mu_) = false;
  // Free space on the disk at the last check.
  uint64_t free_bytes_ ABSL_GUARDED_BY(mu_) = ~uint64_t{0};
  std::unique_ptr<SnapshotJob> snapshot_job_ ABSL_GUARDED_BY(mu_);
  // A snapshot is requested or being written.
  bool snapshot_busy_ ABSL_GUARDED_BY(mu_) = false;
  // Value of appended_bytes_ up to which a snapshot covers the records.
  uint64_t snapshot_base_ ABSL_GUARDED_BY(mu_) = 0;
  Position snapshot_ ABSL_GUARDED_BY(mu_) = 0;  // Position of the newest complete snapshot on disk.
  // Positions of all snapshots on disk, the newest last. More than one if Open() passed over a
  // damaged newer one, or if an older one could not be removed.
  std::vector<Position> snapshots_ ABSL_GUARDED_BY(mu_);
  uint64_t snapshot_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t syncs_ ABSL_GUARDED_BY(mu_) = 0;
  bool closing_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status fatal_ ABSL_GUARDED_BY(mu_);
};

absl::Status Log::Impl::Open(const std::string& dir, Replay* replay, Found* found) {
  // Sync the parent too, or a crash could lose the new directory.
  SLUICE_RETURN_IF_ERROR(options_.file_system->MakeDirs(dir));
  const std::string parent = std::filesystem::path(dir).parent_path().string();
  SLUICE_RETURN_IF_ERROR(options_.file_system->SyncDir(parent.empty() ? "." : parent));
  SLUICE_ASSIGN_OR_RETURN(lock_, options_.file_system->TakeLock(dir));
  Layout layout;
  SLUICE_RETURN_IF_ERROR(ReadDirectory(options_.file_system, dir, replay, found, &layout));
  return ContinueLog(layout, *found);
}

// Makes the records that were read durable and starts a new segment. Old files are removed only
// after that, so that a crash in between loses nothing.
absl::Status Log::Impl::ContinueLog(const Layout& layout, const Found& found) {
  MutexLock lock(&mu_);  // There are no threads yet; the lock is for the thread-safety annotations.

  // First make the end of the log durable.
  if (!found.end_segment.empty())
    SLUICE_RETURN_IF_ERROR(
        directory_.RewriteEnd(found.end_segment, layout.doubt_offset, found.end_offset));

  // Keep spares of the right size.
  for (const uint64_t number : layout.spares) {
    SLUICE_ASSIGN_OR_RETURN(const Spare spare, directory_.AdoptSpare(number));
    if (spare.bytes == options_.segment_bytes &&
        spares_.size() < static_cast<size_t>(options_.most_spares))
      spares_.push_back(spare);
    else SLUICE_RETURN_IF_ERROR(directory_.RemoveSpare(spare));
  }

  // Reuse a spare, or allocate one.
  Spare spare;
  if (!spares_.empty()) {
    spare = spares_.back();
    spares_.pop_back();
  } else {
    // Halve the size until the disk has room, so that a nearly full disk does not prevent a
    // restart.
    for (uint64_t bytes = options_.segment_bytes;; bytes /= 2) {
      absl::StatusOr<Spare> allocated = directory_.AllocateSpare(bytes);
      if (allocated.ok()) {
        spare = *allocated;
        break;
      }
      if (!absl::IsResourceExhausted(allocated.status()) || bytes / 2 < kLeastSegmentBytes)
        return allocated.status();
    }
  }

  const uint64_t number = layout.segments.empty() ? 1 : layout.segments.rbegin()->first + 1;
  SLUICE_ASSIGN_OR_RETURN(segment_, directory_.StartSegment(spare, number, found.last + 1));
  frames_ = std::make_unique<Batch>(segment_.salt);

  // The end of the log is safe now. Remove or recycle what the snapshot covers.
  std::vector<uint64_t> covered;
  for (const auto& [old, first] : layout.segments) {
    if (first == 0) covered.push_back(old);
    else segments_.push_back({old, first});
  }

  segments_.push_back({number, found.last + 1});

  std::vector<Position> older;
  for (const Position position : layout.snapshots)
    (position < found.snapshot ? older : snapshots_).push_back(position);
  SLUICE_RETURN_IF_ERROR(directory_.RemoveSnapshots(older, layout.temporary));
  if (!covered.empty()) {
    SLUICE_RETURN_IF_ERROR(directory_.RecycleSegments(
        options_.segment_bytes,
        options_.most_spares - std::min<size_t>(options_.most_spares, spares_.size()), &covered,
        &spares_));
  }

  last_ = durable_ = written_durable_ = found.last;
  appended_bytes_ = found.bytes;
  snapshot_ = found.snapshot;
  SLUICE_CHECK(snapshot_ <= durable_);
  snapshot_bytes_ = found.snapshot_bytes;
  room_ = segment_.room();
  SLUICE_ASSIGN_OR_RETURN(free_bytes_, directory_.FreeBytes());
  return absl::OkStatus();
}

void Log::Impl::Start(Callbacks callbacks) {
  callbacks_ = std::move(callbacks);
  log_thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "log");
    WriteLoop();
  });
  files_thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "log-files");
    FilesLoop();
  });
}

Position Log::Impl::Append(Record record) {
  const uint64_t bytes = FrameBytes(record);
  MutexLock lock(&mu_);
  const Position position = ++last_;
  if (!fatal_.ok()) return position;
  pending_.push_back({position, bytes, std::move(record)});
  pending_bytes_ += bytes;
  appended_bytes_ += bytes;
  work_.NotifyOne();
  return position;
}

// BytesSinceSnapshot() counts from here on. If the snapshot fails, TakeSnapshot() sets
// snapshot_base_ back.
bool Log::Impl::Snapshot(std::vector<Record> state, std::function<void(const absl::Status&)> done) {
  MutexLock lock(&mu_);
  if (snapshot_busy_ || Ended()) return false;
  snapshot_busy_ = true;
  snapshot_job_ = std::make_unique<SnapshotJob>(SnapshotJob{
      last_, std::exchange(snapshot_base_, appended_bytes_), std::move(state), std::move(done)});
  chores_.NotifyAll();
  return true;
}

void Log::Impl::Close() {
  {
    MutexLock lock(&mu_);
    closing_ = true;
    work_.NotifyAll();
    chores_.NotifyAll();
  }
  if (log_thread_.joinable()) log_thread_.join();
  if (files_thread_.joinable()) files_thread_.join();
}

Log::Stats Log::Impl::stats() const {
  MutexLock lock(&mu_);
  return {.last = last_,
          .durable = durable_,
          .snapshot = snapshot_,
          .snapshot_bytes = snapshot_bytes_,
          .bytes_since_snapshot = appended_bytes_ - snapshot_base_,
          .pending_bytes = pending_bytes_,
          .segments = segments_.size(),
          .spares = spares_.size(),
          .syncs = syncs_};
}

void Log::Impl::EndWithError(const absl::Status& why) {
  // The dropped records are destroyed after the lock is released.
  std::deque<Pending> dropped;
  {
    MutexLock lock(&mu_);
    if (!fatal_.ok()) return;
    fatal_ = why;
    dropped.swap(pending_);
    work_.NotifyAll();
    chores_.NotifyAll();
  }
  if (callbacks_.on_fatal) callbacks_.on_fatal(why);
}

bool Log::Impl::ReserveAtRisk() const {
  uint64_t room = room_;
  for (const Spare& spare : spares_) room += spare.bytes;
  return room < options_.reserve_bytes + pending_bytes_;
}

Space Log::Impl::CurrentSpace() const {
  if (!allocation_failed_ && free_bytes_ >= options_.low_bytes) return Space::kOk;
  return ReserveAtRisk() ? Space::kFull : Space::kLow;
}

// Reports a change of space() through on_space, without holding the lock.
void Log::Impl::ReportSpace() {
  Space space;
  {
    MutexLock lock(&mu_);
    space = CurrentSpace();
  }
  if (space == space_) return;
  space_ = space;
  if (callbacks_.on_space) callbacks_.on_space(space);
}

// --- thread `log` ---

void Log::Impl::WriteLoop() {
  std::vector<Pending> batch;
  while (WaitForWork(&batch)) {
    absl::Status status = WriteRecords(batch);
    if (status.ok()) status = WriteMark();
    if (absl::IsCancelled(status)) return;
    if (!status.ok()) return EndWithError(status);
    batch.clear();
  }
  // The log is closed and all records are written. Bring the last mark to the disk.
  if (!unsynced_mark_) return;
  if (const absl::Status status = SyncSegment(); !status.ok()) EndWithError(status);
}

// Finds out whether another segment can be allocated before the reserve of the last segment is
// used, even if `log-files` has not tried yet. Otherwise space() would not be kFull in time, and
// ordinary records would use up the reserve that control records need.
absl::Status Log::Impl::ProtectReserve() {
  {
    MutexLock lock(&mu_);
    if (allocation_failed_ || !spares_.empty() || !ReserveAtRisk()) return absl::OkStatus();
  }
  return AllocateAhead();
}

// Moves the next records to write into `batch`. Returns false if nothing more will be written.
bool Log::Impl::WaitForWork(std::vector<Pending>* batch) {
  while (true) {
    if (const absl::Status status = ProtectReserve(); !status.ok())
      return EndWithError(status), false;
    ReportSpace();
    MutexLock lock(&mu_);
    // Sleep only if nothing has changed since ReportSpace().
    if (pending_.empty() && !Ended() && CurrentSpace() == space_) work_.Wait(&mu_);
    if (!fatal_.ok()) return false;
    if (!pending_.empty()) {
      // Take records up to batch_bytes, but at least one.
      for (uint64_t bytes = 0;
           !pending_.empty() &&
           (batch->empty() || bytes + pending_.front().bytes <= options_.batch_bytes);) {
        bytes += pending_.front().bytes;
        batch->push_back(std::move(pending_.front()));
        pending_.pop_front();
      }
      return true;
    }
    if (closing_) return false;
  }
}

// Writes a batch. If the segment has too little room for all of it, the rest goes to the next
// segment. Each part is synced before anything is written after it.
absl::Status Log::Impl::WriteRecords(const std::vector<Pending>& batch) {
  // Each turn of the loop writes as many frames as fit in the segment.
  for (size_t at = 0; at < batch.size();) {
    if (segment_.room() < batch[at].bytes)
      SLUICE_RETURN_IF_ERROR(Rotate(batch[at].bytes, batch[at].position));
    frames_->Clear();
    size_t end = at;
    while (end < batch.size() && frames_->bytes() + batch[end].bytes <= segment_.room()) {
      frames_->AddRecord(batch[end].position, written_durable_, batch[end].record);
      ++end;
    }
    SLUICE_RETURN_IF_ERROR(WriteFrames());
    SLUICE_RETURN_IF_ERROR(SyncSegment());
    segment_.offset += frames_->bytes();
    SLUICE_CHECK(segment_.offset + sizeof(FrameHeader) <= segment_.bytes);  // A mark still fits.
    AdvanceDurable(batch[end - 1].position, frames_->bytes());
    at = end;
  }
  return absl::OkStatus();
}

absl::Status Log::Impl::WriteFrames() {
  SLUICE_FAILPOINT_STATUS("wal.write.before");
  absl::Status status = segment_.file->Write(segment_.offset, frames_->Pieces());
  // A copy-on-write file system can be full even though the space is allocated. Nothing was synced
  // yet, so writing the same bytes again is safe.
  while (absl::IsResourceExhausted(status)) {
    SLUICE_RETURN_IF_ERROR(WaitForSpace());
    status = segment_.file->Write(segment_.offset, frames_->Pieces());
  }
  SLUICE_RETURN_IF_ERROR(status);
  SLUICE_FAILPOINT_STATUS("wal.write.after");
  return absl::OkStatus();
}

absl::Status Log::Impl::SyncSegment() {
  SLUICE_FAILPOINT_STATUS("wal.sync.before");
  const absl::Duration start = Clock::Real()->Monotonic();
  absl::Status status = segment_.file->Sync();
  // Never retry a failed sync: the kernel may have dropped the pages. Change the codes that callers
  // would wait out into a final error.
  if (absl::IsResourceExhausted(status) || absl::IsCancelled(status))
    status = absl::UnknownError(status.message());
  SLUICE_RETURN_IF_ERROR(status);
  if (callbacks_.on_sync) callbacks_.on_sync(Clock::Real()->Monotonic() - start);
  unsynced_mark_ = false;
  SLUICE_FAILPOINT_STATUS("wal.sync.after");
  return absl::OkStatus();
}

void Log::Impl::AdvanceDurable(Position position, uint64_t bytes) {
  written_durable_ = position;
  {
    MutexLock lock(&mu_);
    SLUICE_CHECK(durable_ < position && position <= last_);
    SLUICE_CHECK(bytes <= pending_bytes_);
    durable_ = position;
    pending_bytes_ -= bytes;
    room_ = segment_.room();
    ++syncs_;
    if (snapshot_busy_) chores_.NotifyAll();
  }
  if (callbacks_.on_durable) callbacks_.on_durable(position);
}

// If no more records wait, writes a mark that says the last batch is durable. The mark is not
// synced here; the page cache, the next batch or Close() brings it to the disk.
absl::Status Log::Impl::WriteMark() {
  {
    MutexLock lock(&mu_);
    if (!pending_.empty()) return absl::OkStatus();
  }
  SLUICE_FAILPOINT_STATUS("wal.mark.before");
  frames_->Clear();
  frames_->AddMark(written_durable_);
  const absl::Status status = segment_.file->Write(segment_.offset, frames_->Pieces());
  // The disk is full. The mark can be left out, since the next batch is written over it.
  if (absl::IsResourceExhausted(status)) return absl::OkStatus();
  SLUICE_RETURN_IF_ERROR(status);
  segment_.offset += sizeof(FrameHeader);
  unsynced_mark_ = true;
  SLUICE_FAILPOINT_STATUS("wal.mark.after");
  return absl::OkStatus();
}

// The timeout is there because nobody tells the log when other programs free space.
absl::Status Log::Impl::WaitForSpace() {
  ReportSpace();
  MutexLock lock(&mu_);
  if (!Ended()) work_.WaitFor(&mu_, options_.retry);
  return Ended() ? absl::CancelledError("the log ends while the disk is full") : absl::OkStatus();
}

// Starts the next segment, with space for a frame of `frame_bytes`. Waits while the disk is full.
absl::Status Log::Impl::Rotate(uint64_t frame_bytes, Position first) {
  const uint64_t need = sizeof(FileHeader) + frame_bytes + sizeof(FrameHeader);
  while (true) {
    // Prefer a spare; allocate here only if there is none large enough.
    absl::StatusOr<Spare> spare = absl::NotFoundError("none allocated ahead");
    {
      MutexLock lock(&mu_);
      if (!spares_.empty() && spares_.back().bytes >= need) {
        spare = spares_.back();
        spares_.pop_back();
      }
    }

    if (!spare.ok()) spare = directory_.AllocateSpare(std::max(options_.segment_bytes, need));
    if (spare.ok()) {
      absl::StatusOr<Segment> segment = directory_.StartSegment(*spare, segment_.number + 1, first);
      if (segment.ok()) {
        segment_ = *std::move(segment);
        frames_ = std::make_unique<Batch>(segment_.salt);
        MutexLock lock(&mu_);
        segments_.push_back({segment_.number, first});
        room_ = segment_.room();
        chores_.NotifyAll();
        return absl::OkStatus();
      }
      if (!absl::IsResourceExhausted(segment.status())) return segment.status();
      // The disk is full, and StartSegment() has not used the spare.
      MutexLock lock(&mu_);
      spares_.push_back(*spare);
    } else if (!absl::IsResourceExhausted(spare.status())) {
      return spare.status();
    }

    {
      MutexLock lock(&mu_);
      allocation_failed_ = true;
    }
    SLUICE_RETURN_IF_ERROR(WaitForSpace());
  }
}

// --- thread `log-files` ---

void Log::Impl::FilesLoop() {
  while (true) {
    if (const absl::Status status = AllocateAhead(); !status.ok()) EndWithError(status);
    std::unique_ptr<SnapshotJob> job;
    {
      MutexLock lock(&mu_);
      work_.NotifyAll();  // `log` may wait for the outcome of AllocateAhead().
      // If no spare is left, AllocateAhead() must run again at once, unless the disk is full.
      if (!Ended() && snapshot_job_ == nullptr && (!spares_.empty() || allocation_failed_))
        chores_.WaitFor(&mu_, options_.retry);
      job = std::move(snapshot_job_);
      if (Ended() && job == nullptr) return;
    }
    if (job != nullptr) TakeSnapshot(std::move(*job));
  }
}

// Reads the free space and makes sure that one spare exists.
absl::Status Log::Impl::AllocateAhead() {
  SLUICE_ASSIGN_OR_RETURN(const uint64_t free, directory_.FreeBytes());
  bool wanted;
  {
    MutexLock lock(&mu_);
    free_bytes_ = free;
    wanted = spares_.empty() && !Ended();
    if (!spares_.empty()) allocation_failed_ = false;
  }

  if (!wanted) return absl::OkStatus();
  // Allocate without the lock, because this may take long.
  const absl::StatusOr<Spare> spare = directory_.AllocateSpare(options_.segment_bytes);
  if (!spare.ok() && !absl::IsResourceExhausted(spare.status())) return spare.status();
  MutexLock lock(&mu_);
  allocation_failed_ = !spare.ok();
  if (spare.ok()) spares_.push_back(*spare);
  return absl::OkStatus();
}

void Log::Impl::TakeSnapshot(SnapshotJob job) {
  const absl::Status status = WriteSnapshot(job);
  job.state.clear();
  {
    MutexLock lock(&mu_);
    snapshot_busy_ = false;
    if (!status.ok()) snapshot_base_ = job.base_before;
  }
  if (!status.ok() && !absl::IsResourceExhausted(status) && !absl::IsCancelled(status))
    EndWithError(status);
  if (job.done) job.done(status);
}

absl::Status Log::Impl::WriteSnapshot(const SnapshotJob& job) {
  {
    // Wait until the log is durable up to the snapshot's position. A snapshot ahead of the log
    // would leave a gap between it and the records read after it.
    MutexLock lock(&mu_);
    while (durable_ < job.position && !Ended()) chores_.Wait(&mu_);
    if (Ended()) return absl::CancelledError("the log is being closed");
  }

  const auto cancelled = [this] {
    MutexLock lock(&mu_);
    return Ended();
  };
  SLUICE_ASSIGN_OR_RETURN(const uint64_t bytes,
                          directory_.WriteSnapshot(job.position, job.state, cancelled));

  // From here on readers use the new snapshot.
  {
    MutexLock lock(&mu_);
    snapshots_.erase(std::remove(snapshots_.begin(), snapshots_.end(), job.position),
                     snapshots_.end());
    snapshots_.push_back(job.position);
    SLUICE_CHECK(snapshot_ <= job.position && job.position <= durable_);
    snapshot_ = job.position;
    snapshot_bytes_ = bytes;
  }

  // Some file systems need space to remove or rename a file. What stays on a full disk goes after
  // the next snapshot; this snapshot is complete without that.
  const absl::Status status = RemoveCovered();
  return absl::IsResourceExhausted(status) ? absl::OkStatus() : status;
}

absl::Status Log::Impl::RemoveCovered() {
  std::vector<Position> older;
  std::vector<uint64_t> covered;
  size_t most;
  {
    MutexLock lock(&mu_);
    older.assign(snapshots_.begin(), snapshots_.end() - 1);
    // A segment is covered if the next one starts at or before the first record after the snapshot.
    for (size_t i = 0; i + 1 < segments_.size() && segments_[i + 1].first <= snapshot_ + 1; ++i)
      covered.push_back(segments_[i].number);
    most = options_.most_spares - std::min<size_t>(options_.most_spares, spares_.size());
  }

  SLUICE_RETURN_IF_ERROR(directory_.RemoveSnapshots(older, false));
  std::vector<uint64_t> left = covered;
  std::vector<Spare> spares;
  absl::Status status;
  if (!covered.empty())
    status = directory_.RecycleSegments(options_.segment_bytes, most, &left, &spares);

  MutexLock lock(&mu_);
  snapshots_.erase(snapshots_.begin(), snapshots_.end() - 1);
  segments_.erase(segments_.begin(),
                  segments_.begin() + static_cast<int64_t>(covered.size() - left.size()));
  if (covered.empty()) return absl::OkStatus();
  spares_.insert(spares_.begin(), spares.begin(), spares.end());
  if (!spares_.empty()) allocation_failed_ = false;
  work_.NotifyAll();
  return status;
}

// --- the public class ---

Log::Log(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Log::~Log() { Close(); }

absl::StatusOr<std::unique_ptr<Log>> Log::Open(const Options& options, const std::string& dir,
                                               Replay* replay, Found* found) {
  Found ignored;
  auto impl = std::make_unique<Impl>(options, dir);
  SLUICE_RETURN_IF_ERROR(impl->Open(dir, replay, found != nullptr ? found : &ignored));
  return std::unique_ptr<Log>(new Log(std::move(impl)));
}

void Log::Start(Callbacks callbacks) { impl_->Start(std::move(callbacks)); }
Position Log::Append(Record record) { return impl_->Append(std::move(record)); }
bool Log::Snapshot(std::vector<Record> state, std::function<void(const absl::Status&)> done) {
  return impl_->Snapshot(std::move(state), std::move(done));
}
uint64_t Log::BytesSinceSnapshot() const { return impl_->stats().bytes_since_snapshot; }
Space Log::space() const { return impl_->space(); }
Log::Stats Log::stats() const { return impl_->stats(); }
void Log::Close() { impl_->Close(); }

absl::Status Scan(FileSystem* file_system, const std::string& dir, Replay* replay, Found* found) {
  Layout layout;
  Found ignored;
  return ReadDirectory(file_system, dir, replay, found != nullptr ? found : &ignored, &layout);
}

}  // namespace sluice::wal
