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

// Room for further records.
enum class Space {
  kOk,
  // The next segment could not be allocated ahead, or the disk has less than `low_bytes` free: take
  // in no new work.
  kLow,
  // Only the reserve is left: append small control records alone. Beyond it records wait,
  // unacknowledged.
  kFull,
};

// An append-only log in one directory, with snapshots. A record is durable once on_durable has
// named its position or a later one; a crash at any moment loses nothing durable, and what comes
// back is a gap-free run of what was appended.
//
// Files. `log-<16 hex digits>.seg`, numbered without gaps, each pre-allocated and, once a snapshot
// covers it, used again under a new number; `snapshot-<position>.snap`, written as `snapshot.tmp` -
// fsync - rename - fsync of the directory; `spare-<n>`, allocated ahead. Layout of both:
// common/wal/format.h.
//
// Torn tail or damage. One batch is written at a time and synced before the next one starts, so at
// a crash only the last batch can be half there, in any mixture of its sectors. Every frame says up
// to which position the log was durable when its batch was begun, a segment's header does so too,
// and behind a batch with nothing waiting a mark says it of that batch. Reading stops at the first
// frame that is not whole, at position p. If anything whole behind it, found by its checksum
// wherever it stands, says that p was durable, or a later segment or the snapshot does: DATA_LOSS,
// naming segment and offset. Else it is the torn end of a batch nobody was promised, and is cut
// off. Each segment has a random number that enters all its checksums, and each Open goes on in a
// new segment whose header says at which position the one before ends: bytes left in a used file,
// and whatever stands behind a cut, are never taken for records. Not detectable: damage to the last
// durable batch itself when the machine, not just the process, went down before the mark behind it
// reached the disk (the page cache writes it within seconds, the next batch and Close at once): it
// looks like a torn end. What is returned is whole in any case.
//
// Errors. A failed sync, or any error but a full disk, is final: the log says on_fatal once, writes
// nothing more and acknowledges nothing more (pages after a failed fdatasync may be clean and
// lost). A full disk is waited out: records stay in memory, unacknowledged, until there is room.
// Open writes what may not have reached the disk again before it calls it durable.
//
// Threads. Append and Snapshot may be called under the caller's lock: they do no I/O and never wait
// for it. Two threads are owned, `log` (writes, syncs, says on_durable) and `log-files` (allocates
// ahead, writes snapshots, recycles); both are joined by Close. Callbacks run on them, without
// locks of the log.
class Log {
 public:
  struct Options {
    uint64_t segment_bytes = 64 << 20;
    uint64_t batch_bytes = 4 << 20;    // Most that one sync waits for; one record may be larger.
    uint64_t low_bytes = 256 << 20;    // Free disk below which space() is kLow.
    uint64_t reserve_bytes = 8 << 20;  // Kept for control records; at most half a segment.
    int most_spares = 4;               // Segments kept for re-use; more are removed.
    // Between looks for room while the disk is low or full.
    absl::Duration retry = absl::Seconds(1);
    FileSystem* file_system = FileSystem::Real();  // Outlives the log.
  };

  struct Callbacks {
    std::function<void(Position)> on_durable;  // Thread `log`. Positions rise.
    // Once, on either thread. The process should end.
    std::function<void(const absl::Status&)> on_fatal;
    // Thread `log`. Changes alone, first from kOk.
    std::function<void(Space)> on_space;
    // Thread `log`: how long each sync took. May be empty, as all others.
    std::function<void(absl::Duration)> on_sync;
  };

  struct Stats {
    Position last = 0;  // Appended.
    Position durable = 0;
    Position snapshot = 0;  // Of the newest one on disk; 0: none.
    uint64_t snapshot_bytes = 0;
    // Appended after it (after the one being written, while one is), framing included.
    uint64_t bytes_since_snapshot = 0;
    uint64_t pending_bytes = 0;  // Appended and not durable yet.
    uint64_t segments = 0, spares = 0;
    uint64_t syncs = 0;
  };

  // Reads `dir` (made if absent) into `replay`, makes the end of the log durable and cuts what is
  // torn. `found` may be null; it is filled as far as the reading came, on errors too.
  // DATA_LOSS: damage, naming file and offset.
  // FAILED_PRECONDITION: a newer format (NEWER_FORMAT), or another owner (DATA_DIR_IN_USE).
  // RESOURCE_EXHAUSTED: no room for a segment. Others come from the system or from `replay`.
  static absl::StatusOr<std::unique_ptr<Log>> Open(const Options& options, const std::string& dir,
                                                   Replay* replay, Found* found = nullptr);

  // Starts the threads. Once; records appended before wait for it.
  void Start(Callbacks callbacks);

  // Takes a record; its position is the answer. Order of calls = order in the log. Not bounded
  // here: who appends holds the payload already and limits it (a connection's unacknowledged bytes,
  // a job's quota). After a fatal error it only counts.
  Position Append(Record record);

  // Hands over a description of the state after all records appended so far, to be read back
  // instead of them. `done` runs on `log-files`, with RESOURCE_EXHAUSTED if the disk was full (the
  // snapshot before stays; ask again later). False: one is being written still; nothing happened.
  bool Snapshot(std::vector<Record> state, std::function<void(const absl::Status&)> done);

  uint64_t BytesSinceSnapshot() const;  // As in Stats.
  Space space() const;
  Stats stats() const;

  // Writes and syncs all that was appended (unless fatal or the disk is full), abandons a snapshot
  // under way and joins the threads. The destructor does so too.
  void Close();
  ~Log();
  Log(const Log&) = delete;

 private:
  class Impl;
  explicit Log(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Reads a directory at rest just as Open does, and changes nothing: for `queue fsck`.
absl::Status Scan(FileSystem* file_system, const std::string& dir, Replay* replay, Found* found);

}  // namespace sluice::wal
