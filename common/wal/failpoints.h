#pragma once

namespace sluice::wal {

// Every place in the log where a crash test kills, before and after each effect that lasts, in the
// order of a log's life. The code names them by the same words; a test sees to it that each one is
// hit.
inline constexpr const char* kFailpoints[] = {
    // The end of the log is written and synced once more.
    "wal.open.rewrite.before",
    "wal.open.rewrite.after",
    "wal.open.cut.before",
    "wal.open.cut.after",  // What is torn is cut off.
    "wal.segment.allocate.before",
    "wal.segment.allocate.after",  // A spare is allocated.
    // A spare gets its header, synced.
    "wal.segment.header.before",
    "wal.segment.header.after",
    "wal.segment.rename.before",
    "wal.segment.rename.after",  // .. its name.
    "wal.segment.dirsync.before",
    "wal.segment.dirsync.after",
    "wal.write.before",
    "wal.write.after",  // A batch is written.
    "wal.sync.before",
    "wal.sync.after",  // .. and synced.
    "wal.mark.before",
    "wal.mark.after",  // The mark behind it.
    "wal.snapshot.write.before",
    "wal.snapshot.write.after",
    "wal.snapshot.sync.before",
    "wal.snapshot.sync.after",
    "wal.snapshot.rename.before",
    "wal.snapshot.rename.after",
    "wal.snapshot.dirsync.before",
    "wal.snapshot.dirsync.after",
    // What the snapshot covers becomes spares.
    "wal.snapshot.recycle.before",
    "wal.snapshot.recycle.after",
};

}  // namespace sluice::wal
