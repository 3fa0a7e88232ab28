#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/wal/file_system.h"
#include "common/wal/record.h"

namespace sluice::wal {

// How much disk space is left for further records.
enum class Space {
  kOk,
  // The next segment could not be allocated ahead of time, or the disk has less than `low_bytes`
  // free. Callers should take in no new work.
  kLow,
  // Only the reserve is left. Callers should append only small control records. Records that do not
  // fit in the reserve wait in memory, unacknowledged.
  kFull,
};

// An append-only log in one directory, with snapshots. A record is durable once on_durable has
// named its position or a later one. A crash at any moment loses no durable record, and the records
// read back are those appended, without gaps.
//
// Files. The layout inside them is in common/wal/format.h.
// - `log-<16 hex digits>.seg`: a segment. Segments are numbered without gaps and allocated in full.
//   Once a snapshot covers a segment, its file is used again under a new number.
// - `snapshot-<16 hex digits>.snap`: a snapshot, named by its position. It is written as
//   `snapshot.tmp`, synced and renamed; then the directory is synced.
// - `spare-<n>`: a file allocated ahead of time, to become a segment.
//
// Torn end or damage. A batch is written and synced before the next one starts, so at a crash only
// the last batch can be incomplete, with any of its sectors missing. Every frame says up to which
// position the log was durable when its batch began. A segment's header says the same, and when no
// record waits, a mark after the batch says that the batch itself is durable. Reading stops at the
// first incomplete frame, at position p. Then the reader looks for a proof that p was durable: a
// frame after that place, searched by its checksum at every multiple of 8 bytes, a later segment,
// or a snapshot. With a proof the result is DATA_LOSS, which names segment and offset. Without one,
// this is the torn end of a batch that was never acknowledged, and it is cut off.
// Each segment has a random number (salt) that is part of all its checksums. Each Open() continues
// in a new segment, whose header says where the one before ends. Therefore old bytes in a reused
// file, and bytes after a cut, are never taken for records.
// One kind of damage cannot be detected: damage to the last durable batch itself, if the machine
// (not only the process) went down before the mark after it reached the disk. It looks like a torn
// end. The page cache writes a mark within seconds; the next batch and Close() write it at once.
// Every record that is read back is intact in any case.
//
// Errors. A failed sync, or any error except a full disk, is final: the log calls on_fatal once,
// then writes and acknowledges nothing more (after a failed fdatasync the kernel may have dropped
// the pages). When the disk is full the log waits: records stay in memory, unacknowledged, until
// there is space. Open() rewrites and syncs whatever may not have reached the disk, before it calls
// it durable.
//
// Threads. Append() and Snapshot() may be called under the caller's lock: they do no I/O and never
// wait for it. The log owns two threads, and Close() joins both: `log` writes, syncs and calls
// on_durable; `log-files` allocates ahead, writes snapshots and recycles segments. Callbacks run on
// these threads, while no lock of the log is held.
class Log {
 public:
  struct Options {
    uint64_t segment_bytes = 64 << 20;
    // Most bytes written before one sync; a single record may be larger.
    uint64_t batch_bytes = 4 << 20;
    uint64_t low_bytes = 256 << 20;    // space() is kLow when the disk has less free.
    uint64_t reserve_bytes = 8 << 20;  // Kept for control records; at most half a segment.
    int most_spares = 4;               // Spare files kept for reuse; further ones are removed.
    // Time between two checks for free space.
    absl::Duration retry = absl::Seconds(1);
    FileSystem* file_system = FileSystem::Real();  // Must outlive the log.
  };

  struct Callbacks {
    std::function<void(Position)> on_durable;  // On thread `log`. Each call has a higher position.
    // Called at most once, on either thread. The process should then end.
    std::function<void(const absl::Status&)> on_fatal;
    // On thread `log`, when the value changes; the first value is kOk and is not reported.
    std::function<void(Space)> on_space;
    // On thread `log`: the duration of each sync. Any callback may be empty.
    std::function<void(absl::Duration)> on_sync;
  };

  struct Stats {
    Position last = 0;  // Position of the last appended record.
    Position durable = 0;
    Position snapshot = 0;  // Position of the newest snapshot on disk; 0 if there is none.
    uint64_t snapshot_bytes = 0;
    // Bytes appended after that snapshot, or after the one being written, with frame headers and
    // padding.
    uint64_t bytes_since_snapshot = 0;
    uint64_t pending_bytes = 0;  // Appended, but not durable yet.
    uint64_t segments = 0, spares = 0;
    uint64_t syncs = 0;
  };

  // Reads `dir` (created if absent) into `replay`, makes the end of the log durable and cuts off a
  // torn end. `found` may be null; it is filled as far as reading came, also on errors.
  // DATA_LOSS: the log is damaged; the message names file and offset.
  // FAILED_PRECONDITION (NEWER_FORMAT): a newer build wrote the log.
  // FAILED_PRECONDITION (DATA_DIR_IN_USE): another process owns the directory.
  // RESOURCE_EXHAUSTED: there is no space for a segment.
  // Any other error comes from the file system or from `replay`.
  static absl::StatusOr<std::unique_ptr<Log>> Open(const Options& options, const std::string& dir,
                                                   Replay* replay, Found* found = nullptr);

  // Starts the threads. Call it once. Records appended before are written from then on.
  void Start(Callbacks callbacks);

  // Appends a record and returns its position. Records are written in the order of these calls. The
  // log sets no limit on pending records: the caller keeps their payloads alive and limits them
  // (for instance a connection's unacknowledged bytes, or a job's quota). After a fatal error
  // records are only counted.
  Position Append(Record record);

  // Starts writing a snapshot: `state` describes the effect of all records appended so far, and
  // later readers get it in place of those records. `done` runs on `log-files`. Its status is
  // RESOURCE_EXHAUSTED if the disk is full; the previous snapshot then stays, and the caller may
  // try again later. Returns false, and does nothing, if a snapshot is still being written or the
  // log has ended.
  bool Snapshot(std::vector<Record> state, std::function<void(const absl::Status&)> done);

  uint64_t BytesSinceSnapshot() const;  // As Stats::bytes_since_snapshot.
  Space space() const;
  Stats stats() const;

  // Writes and syncs all appended records (unless a fatal error came or the disk is full), abandons
  // a snapshot that is being written, and joins the threads. The destructor calls it.
  void Close();
  ~Log();
  Log(const Log&) = delete;

 private:
  class Impl;
  explicit Log(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Reads a directory in the same way as Open(), but changes nothing; used by `queue fsck`. No other
// process may be writing to the log.
absl::Status Scan(FileSystem* file_system, const std::string& dir, Replay* replay, Found* found);

}  // namespace sluice::wal
